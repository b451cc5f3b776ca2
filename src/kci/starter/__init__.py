"""New kernels: from kci's templates, from an existing setup.py, or from a kernel-builder repository."""
