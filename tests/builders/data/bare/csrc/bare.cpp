#include "bare.h"

int bare() { return 1; }

const char* bare_source() { return __FILE__; }
