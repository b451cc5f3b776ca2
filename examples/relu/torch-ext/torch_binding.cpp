// SPDX-License-Identifier: Apache-2.0
#include "torch_binding.h"

#include <torch/library.h>

#include "registration.h"

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("relu(Tensor input) -> Tensor"); }

#if defined(CPU_KERNEL)
TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) { ops.impl("relu", &relu_cpu); }
#elif defined(CUDA_KERNEL) || defined(ROCM_KERNEL)
// PyTorch dispatches ROCm tensors under the CUDA key as well.
TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) { ops.impl("relu", &relu_gpu); }
#else
#error "relu has kernels for CPU, CUDA and ROCm only"
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
