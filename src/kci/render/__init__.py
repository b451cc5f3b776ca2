"""From kernels and a plan to the workflow files of a repository.

`workflow` renders, `pins` knows the commits of the actions, `github_limits` and `expressions` check the result against
what GitHub accepts, `drift` compares it with what is committed, `committed` reads and writes.
"""
