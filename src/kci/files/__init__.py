"""The ground: replacing directories and files whole, locks, bounded reading, dated data, git, portable names."""
