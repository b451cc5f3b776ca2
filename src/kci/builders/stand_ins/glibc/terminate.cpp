// Part of kci. CXXABI_1.3.15: what GCC 14 calls where an exception would leave a function that is noexcept.
#include "kci_call.h"

#include <cxxabi.h>
#include <exception>

KCI_HIDDEN __attribute__((noreturn)) void kci_terminate(void *) asm("__cxa_call_terminate");
void kci_terminate(void *exception) {
  if (exception != nullptr) abi::__cxa_begin_catch(exception);
  std::terminate();
}
