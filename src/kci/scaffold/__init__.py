"""New kernels: from templates, a project with a setup.py, or a kernel-builder repository."""
