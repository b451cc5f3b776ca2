"""What a kernel's Python files say before anything is built."""
