#include <torch/library.h>

#include "plus_one.h"
#include "registration.h"

#if !defined(CPU_KERNEL) || defined(USE_CUDA)
#error "a CPU build defines CPU_KERNEL and nothing of CUDA"
#endif

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("plus_one(Tensor input) -> Tensor"); }

TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) { ops.impl("plus_one", &plus_one); }

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
