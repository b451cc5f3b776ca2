"""What a kernel's files say before anything is built: imports and ops of its Python package, ops in C++."""
