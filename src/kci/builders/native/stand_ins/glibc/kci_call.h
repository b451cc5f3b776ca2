// Part of kci. Functions of newer libraries, by those of older ones.
#pragma once

#if defined(__aarch64__)
#define KCI_VERSION(X86) "GLIBC_2.17"
#define KCI_STAT_VERSION 0
#else
#define KCI_VERSION(X86) "GLIBC_" X86
#define KCI_STAT_VERSION 1
#endif

#define KCI_HIDDEN extern "C" __attribute__((visibility("hidden")))

// A function of an older version, by a name of ours.
#define KCI_OLD(RETURNS, NAME, ARGUMENTS, VERSIONED)      \
  __asm__(".symver kci_old_" #NAME ", " VERSIONED);       \
  extern "C" RETURNS kci_old_##NAME ARGUMENTS asm("kci_old_" #NAME);

// A function that only this module sees, the older one that it calls, and its body.
#define KCI_CALL_AT(RETURNS, NAME, ARGUMENTS, VERSIONED, OLD_ARGUMENTS, PASSED) \
  KCI_OLD(RETURNS, NAME, OLD_ARGUMENTS, VERSIONED)                              \
  KCI_HIDDEN RETURNS kci_##NAME ARGUMENTS asm(#NAME);                           \
  RETURNS kci_##NAME ARGUMENTS { return kci_old_##NAME PASSED; }

#define KCI_CALL(RETURNS, NAME, ARGUMENTS, OLD, SINCE, OLD_ARGUMENTS, PASSED) \
  KCI_CALL_AT(RETURNS, NAME, ARGUMENTS, OLD "@" KCI_VERSION(SINCE), OLD_ARGUMENTS, PASSED)
