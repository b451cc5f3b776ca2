"""Kernels, kci.toml, catalog and overlays of one invocation, read once; commands and actions ask here."""
