"""Which variants a kernel has: the name grammar, the arch rules, and the selection of candidates."""
