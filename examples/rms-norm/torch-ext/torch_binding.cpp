// SPDX-License-Identifier: Apache-2.0
#include "torch_binding.h"

#include <torch/csrc/stable/library.h>

#include "registration.h"

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("rms_norm(Tensor input, Tensor weight, float eps) -> Tensor");
  ops.def(
      "add_rms_norm(Tensor input, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
}

#if defined(CPU_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
  ops.impl("rms_norm", TORCH_BOX(&rms_norm_cpu));
  ops.impl("add_rms_norm", TORCH_BOX(&add_rms_norm_cpu));
}
#elif defined(CUDA_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
  ops.impl("rms_norm", TORCH_BOX(&rms_norm_cuda));
  ops.impl("add_rms_norm", TORCH_BOX(&add_rms_norm_cuda));
}
#else
#error "rms-norm has kernels for CPU and CUDA only"
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
