// Part of kci. Stands in front of the C++ library's own file of this name.
//
// The string streams of a newer library import constructors and accessors that older ones do not export (GLIBCXX_3.4.26
// and 3.4.29), while kernels promise 3.4.24. Without the `extern template` declarations of that file they are compiled
// into the kernel. Only this file is treated so: streams and locales must stay the library's, which has their state.
#pragma push_macro("_GLIBCXX_EXTERN_TEMPLATE")
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#include_next <bits/sstream.tcc>
#pragma pop_macro("_GLIBCXX_EXTERN_TEMPLATE")
