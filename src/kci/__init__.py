"""kci: CI for GPU kernels, from build.toml to a verified tree of binaries."""

__version__ = "0.1.0"
