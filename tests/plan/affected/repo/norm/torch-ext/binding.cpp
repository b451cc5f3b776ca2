#include "binding.h"
