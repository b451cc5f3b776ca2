"""Shared helpers: replacing files and directories atomically, locks, bounded reading, dated data, git, portable names."""
