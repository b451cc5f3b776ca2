#include "bare.h"
#include "registration.h"

extern "C" int bare_binding() { return bare(); }

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
