"""From kernels and a plan to the workflow files of a repository.

`workflow` renders, `pins` knows the commits of the actions, `limits` and `expressions` check what came out against
what GitHub accepts, `drift` compares it with what is committed, `files` reads and writes.
"""
