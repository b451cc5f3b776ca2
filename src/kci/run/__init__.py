"""A run on this machine, tests in the real loader, and what the jobs of a CI run leave for its
gate.
"""
