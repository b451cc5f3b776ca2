"""Which files decide which variant: what build.toml lists, the package, what is declared; and is a file what it was."""
