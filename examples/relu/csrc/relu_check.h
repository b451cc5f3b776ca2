// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

// The dispatcher has already chosen the device; what is left to check is the dtype.
[[noreturn]] inline void throw_unsupported_dtype(const at::Tensor& input) {
  TORCH_CHECK_TYPE(false, "relu: input must be float32, float16 or bfloat16, got ",
                   input.scalar_type());
}
