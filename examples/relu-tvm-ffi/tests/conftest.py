def pytest_configure(config):
    config.addinivalue_line("markers", "kernels_ci: a kernel's own tests, run by its CI")
