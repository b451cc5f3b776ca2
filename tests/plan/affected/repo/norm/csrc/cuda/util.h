#include "../shared.h"
