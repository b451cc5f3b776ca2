"""From kernels and a plan to the workflow files of a repository: GitHub, GitLab, Snakemake; pins
and drift.
"""
