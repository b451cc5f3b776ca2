"""Versions, archs, images, runners and prices, as dated data."""
