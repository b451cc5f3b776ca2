"""What compiles: compilers, CUDA, ROCm, oneAPI, CUTLASS, environments with torch, the C library of older systems."""
