"""Versions, archs, images, runners and prices of the world, as dated data."""
