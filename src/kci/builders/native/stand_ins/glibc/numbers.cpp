// Part of kci. GLIBC_2.38, whose functions know binary numbers as well.
#include "kci_call.h"

#define KCI_NUMBER(TYPE, NAME, CHAR)                                                        \
  KCI_CALL(TYPE, __isoc23_##NAME, (const CHAR *a, CHAR **b, int c), #NAME, "2.2.5",         \
           (const CHAR *, CHAR **, int), (a, b, c))
KCI_NUMBER(long, strtol, char)
KCI_NUMBER(long long, strtoll, char)
KCI_NUMBER(unsigned long, strtoul, char)
KCI_NUMBER(unsigned long long, strtoull, char)
KCI_NUMBER(long, wcstol, wchar_t)
KCI_NUMBER(long long, wcstoll, wchar_t)
KCI_NUMBER(unsigned long, wcstoul, wchar_t)
KCI_NUMBER(unsigned long long, wcstoull, wchar_t)

// The first is a text, or a file. Functions that take any number of arguments go by those that take a list of them.
#define KCI_SCAN(NAME, FROM)                                                                                 \
  KCI_CALL(int, __isoc23_v##NAME, (FROM a, const char *b, __builtin_va_list c), "__isoc99_v" #NAME, "2.7",   \
           (FROM, const char *, __builtin_va_list), (a, b, c))                                               \
  KCI_HIDDEN int kci_##NAME(FROM, const char *, ...) asm("__isoc23_" #NAME);                                 \
  int kci_##NAME(FROM from, const char *format, ...) {                                                       \
    __builtin_va_list arguments;                                                                             \
    __builtin_va_start(arguments, format);                                                                   \
    int found = kci_old___isoc23_v##NAME(from, format, arguments);                                           \
    __builtin_va_end(arguments);                                                                             \
    return found;                                                                                            \
  }
KCI_SCAN(sscanf, const char *)
KCI_SCAN(fscanf, void *)
