// Part of kci. How a program ends that does what it must not.
#include "kci_call.h"

#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <exception>

// CXXABI_1.3.15: what GCC 14 calls where an exception would leave a function that is noexcept.
KCI_HIDDEN __attribute__((noreturn)) void kci_terminate(void *) asm("__cxa_call_terminate");
void kci_terminate(void *exception) {
  if (exception != nullptr) abi::__cxa_begin_catch(exception);
  std::terminate();
}

// GLIBCXX_3.4.30: an assertion of the C++ library has failed, under _GLIBCXX_ASSERTIONS.
KCI_HIDDEN __attribute__((noreturn)) void kci_failed(const char *, int, const char *, const char *)
    asm("_ZSt21__glibcxx_assert_failPKciS0_S0_");
void kci_failed(const char *file, int line, const char *function, const char *condition) {
  if (file != nullptr && function != nullptr && condition != nullptr) {
    std::fprintf(stderr, "%s:%d: %s: Assertion '%s' failed.\n", file, line, function, condition);
  }
  std::abort();
}
