"""New kernels: from templates, setup.py, CMake or a kernel-builder repository; a repository with CI of its own."""
