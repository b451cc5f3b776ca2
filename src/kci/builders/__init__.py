"""The builders room."""
