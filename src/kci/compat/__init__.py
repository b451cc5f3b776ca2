"""The compat room."""
