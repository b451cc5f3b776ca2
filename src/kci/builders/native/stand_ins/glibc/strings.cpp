// Part of kci. GLIBCXX_3.4.31: a rare case of std::string::replace, which was a part of that before.
#include <string>

#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 13 && _GLIBCXX_USE_CXX11_ABI
#define KCI_REPLACE(CHAR)                                                                          \
  template void std::basic_string<CHAR>::_M_replace_cold(CHAR *, size_type, const CHAR *, const size_type, \
                                                         const size_type);
KCI_REPLACE(char)
KCI_REPLACE(wchar_t)
#endif
