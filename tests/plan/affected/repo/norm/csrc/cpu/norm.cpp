#include "util.h"
#include "csrc/shared.h"
