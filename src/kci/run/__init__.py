"""A run on this machine: plan, build, merge, verify, test."""
