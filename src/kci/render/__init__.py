"""From kernels and a plan to the workflow files of a repository.

`workflow` renders, `pins` knows the commits of the actions, `workflow_rules` checks the result against what GitHub
accepts, and `committed` compares it with what is there, reads and writes.
"""
