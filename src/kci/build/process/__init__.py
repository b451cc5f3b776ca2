"""Running programs: groups that end together, compilers at once, memory, containers."""
