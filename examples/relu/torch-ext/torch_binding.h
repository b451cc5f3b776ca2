// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

// Both return a new contiguous tensor with the shape, dtype and device of `input`.
at::Tensor relu_cpu(const at::Tensor& input);
// Built from the same source for CUDA and for ROCm, hence neither in the name.
at::Tensor relu_gpu(const at::Tensor& input);
