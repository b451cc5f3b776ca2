"""Which files decide which variant: sources, what they include, what compilers read, and is a file what it was."""
