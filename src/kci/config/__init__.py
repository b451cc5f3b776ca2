"""build.toml and kci.toml to values, with the place of each word; `sources` is what a kernel's
Python says.
"""
