#include <torch/csrc/stable/library.h>

#include "registration.h"
#include "twice.h"

#if TORCH_TARGET_VERSION != 0x020b000000000000
#error "a stable ABI build names the version"
#endif

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("twice(Tensor input) -> Tensor"); }

#if defined(CPU_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) { ops.impl("twice", TORCH_BOX(&twice)); }
#elif defined(CUDA_KERNEL) && defined(USE_CUDA)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) { ops.impl("twice", TORCH_BOX(&twice)); }
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
