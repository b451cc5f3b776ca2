/* Part of kci. Stands in front of the C library's own file of this name.
 *
 * glibc 2.41 and 2.42 brought functions of C23, such as sinpi and rsqrt, that CUDA has had for long. Up to 13.1 its headers
 * declare them otherwise, which C++ does not accept. Under nvcc they are CUDA's. */
#include_next <bits/libc-header-start.h>

#if defined(__CUDACC__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1302
#undef __GLIBC_USE_IEC_60559_FUNCS_EXT_C23
#define __GLIBC_USE_IEC_60559_FUNCS_EXT_C23 0
#endif
