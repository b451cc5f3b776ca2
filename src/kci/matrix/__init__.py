"""The variants of a kernel: names, archs, selection and tiers; `catalog` has the toolchains as
dated data.
"""
