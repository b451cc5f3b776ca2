#include "bare.h"

extern "C" int bare_binding() { return bare(); }
