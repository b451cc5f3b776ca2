// Part of kci. Functions of newer libraries, by those of older ones.
#include "kci_call.h"

// GLIBC_2.32. 0 says that there may be threads.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;

// GLIBC_2.33. Before that, these were inline and called functions with the version of the structure that they fill.
#define KCI_STAT(NAME, OLD) \
  KCI_CALL(int, NAME, (const char *a, void *b), OLD, "2.2.5", (int, const char *, void *), (KCI_STAT_VERSION, a, b))
#define KCI_FSTAT(NAME, OLD) \
  KCI_CALL(int, NAME, (int a, void *b), OLD, "2.2.5", (int, int, void *), (KCI_STAT_VERSION, a, b))
#define KCI_FSTATAT(NAME, OLD)                                              \
  KCI_CALL(int, NAME, (int a, const char *b, void *c, int d), OLD, "2.4", \
           (int, int, const char *, void *, int), (KCI_STAT_VERSION, a, b, c, d))
KCI_STAT(stat, "__xstat")
KCI_STAT(stat64, "__xstat64")
KCI_STAT(lstat, "__lxstat")
KCI_STAT(lstat64, "__lxstat64")
KCI_FSTAT(fstat, "__fxstat")
KCI_FSTAT(fstat64, "__fxstat64")
KCI_FSTATAT(fstatat, "__fxstatat")
KCI_FSTATAT(fstatat64, "__fxstatat64")
