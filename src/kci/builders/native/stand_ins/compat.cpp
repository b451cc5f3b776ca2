// Part of kci. Functions that inline code of a newer C++ library calls and that an older one does not export.
#include <exception>
#include <new>

#if defined(__GLIBCXX__)
namespace std {

// GLIBCXX_3.4.29, called by every allocation of a container.
__attribute__((visibility("hidden"), noreturn)) void __throw_bad_array_new_length() { throw bad_array_new_length(); }

// CXXABI_1.3.13, called by every copy and end of an exception_ptr. Older libraries do the same inside of a constructor
// and of the destructor, which is named with its version: the compiler may have made a copy of it, which calls these.
extern "C" void kci_count_exception(void *, void *) asm("_ZNSt15__exception_ptr13exception_ptrC1EPv");
extern "C" void kci_end_exception_ptr(void *);
__asm__(".symver kci_end_exception_ptr, _ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");

namespace __exception_ptr {

void exception_ptr::_M_addref() noexcept {
  void *counted = nullptr;
  kci_count_exception(&counted, _M_exception_object);
}

void exception_ptr::_M_release() noexcept {
  void *counted = _M_exception_object;
  _M_exception_object = nullptr;
  kci_end_exception_ptr(&counted);
}

}  // namespace __exception_ptr
}  // namespace std
#endif
