/* Part of kci. Stands in for the header of glibc 2.32 and later.
 *
 * The C++ library reads __libc_single_threaded in inline code if this header exists, and that one symbol would tie the
 * binary to glibc 2.32, while kernels promise 2.28. A constant 0 means "there may be threads": atomics are always used,
 * which is what an older glibc gives. */
#pragma once
static const char __libc_single_threaded = 0;
