"""What compiles: compilers, CUDA, ROCm, oneAPI, CUTLASS, environments with torch."""
