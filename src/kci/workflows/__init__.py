"""From kernels and a plan to the workflow files of a repository.

`workflow` renders, `pins` knows the commits of the actions, and `committed` compares the result with what is there,
reads and writes.
"""
