"""Compiles a variant with the compilers of this machine."""
