// Part of kci. Functions of libm that no longer set errno have a newer version.
#include "kci_call.h"

#define KCI_ONE(TYPE, NAME) KCI_CALL(TYPE, NAME, (TYPE x), #NAME, "2.2.5", (TYPE), (x))
#define KCI_TWO(TYPE, NAME) KCI_CALL(TYPE, NAME, (TYPE x, TYPE y), #NAME, "2.2.5", (TYPE, TYPE), (x, y))
#define KCI_NTH(TYPE, NAME) KCI_CALL(TYPE, NAME, (int n, TYPE x), #NAME, "2.2.5", (int, TYPE), (n, x))

// GLIBC_2.29
KCI_ONE(double, exp)
KCI_ONE(double, exp2)
KCI_ONE(double, log)
KCI_ONE(double, log2)
KCI_TWO(double, pow)
// GLIBC_2.32
KCI_ONE(float, exp10f)
// GLIBC_2.35
KCI_TWO(double, hypot)
KCI_TWO(float, hypotf)
// GLIBC_2.38
KCI_TWO(double, fmod)
KCI_TWO(float, fmodf)
// GLIBC_2.39
KCI_ONE(double, exp10)
// GLIBC_2.43
KCI_ONE(float, acosf)
KCI_ONE(float, acoshf)
KCI_ONE(float, asinf)
KCI_TWO(float, atan2f)
KCI_ONE(float, atanhf)
KCI_ONE(float, coshf)
KCI_ONE(float, j0f)
KCI_ONE(float, j1f)
KCI_NTH(float, jnf)
KCI_CALL_AT(float, lgammaf, (float x), "lgammaf@GLIBC_2.23", (float), (x))
KCI_CALL(float, lgammaf_r, (float x, int *sign), "lgammaf_r", "2.2.5", (float, int *), (x, sign))
KCI_ONE(float, log10f)
KCI_TWO(double, remainder)
KCI_TWO(float, remainderf)
KCI_ONE(float, sinhf)
KCI_ONE(float, sqrtf)
KCI_ONE(float, tgammaf)
KCI_ONE(float, y0f)
KCI_ONE(float, y1f)
KCI_NTH(float, ynf)
