#include <hip/hip_runtime_api.h>
#include <torch/csrc/stable/library.h>

#include "halve.h"
#include "registration.h"

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("halve(Tensor input) -> Tensor");
  ops.def("twice(Tensor input) -> Tensor");
}

#if defined(ROCM_KERNEL) && defined(USE_ROCM)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
  ops.impl("halve", TORCH_BOX(&halve));
  ops.impl("twice", TORCH_BOX(&twice));
}
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
