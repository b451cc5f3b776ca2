"""Shared helpers: atomic replacement of files and directories, locks, bounded reading, dated data,
git, file names.
"""
