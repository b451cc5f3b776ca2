"""A module below."""
