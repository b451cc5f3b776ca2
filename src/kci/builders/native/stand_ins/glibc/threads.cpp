// Part of kci. Functions of newer libraries, by those of older ones.
#include "kci_call.h"

// GLIBCXX_3.4.30: std::condition_variable::wait, which had the same name before.
#define KCI_WAIT "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
__asm__(".symver kci_old_wait, " KCI_WAIT "@GLIBCXX_3.4.11");
extern "C" void kci_old_wait(void *, void *) asm("kci_old_wait");
extern "C" __attribute__((visibility("hidden"))) void kci_wait(void *, void *) asm(KCI_WAIT);
void kci_wait(void *condition, void *lock) { kci_old_wait(condition, lock); }
