"""Where legs run beyond this process: this machine, Slurm, a host over SSH, Hugging Face Jobs, own commands."""
