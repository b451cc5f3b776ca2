"""The catalog room."""
