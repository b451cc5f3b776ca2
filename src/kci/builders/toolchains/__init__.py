"""Compilers, CUDA, ROCm, oneAPI, CUTLASS, and environments with torch."""
