"""New kernels: from templates, a setup.py or a kernel-builder repository; and a repository with CI of its own."""
