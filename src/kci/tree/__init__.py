"""The tree room."""
