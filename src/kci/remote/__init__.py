"""Runs on engines: this machine, Slurm, a host over SSH, Hugging Face Jobs, your own commands; and their journal."""
