"""The centre: kernels, kci.toml, catalog and overlays of one invocation, read once; what is asked is asked here."""
