// SPDX-License-Identifier: Apache-2.0
// What both operators demand of their arguments. Only headers of the stable ABI are used here.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>

namespace rms_norm {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The input seen as a matrix: `rows` vectors of `hidden` elements, each normalised on its own.
struct Shape {
  int64_t rows;
  int64_t hidden;
};

inline void check_same_kind(const char* op, const char* name, const Tensor& tensor,
                            const Tensor& input) {
  STD_TORCH_CHECK(tensor.scalar_type() == input.scalar_type(), op, ": ", name, " has dtype ",
                  torch::headeronly::toString(tensor.scalar_type()), " but input has dtype ",
                  torch::headeronly::toString(input.scalar_type()));
  STD_TORCH_CHECK(tensor.device() == input.device(), op, ": ", name,
                  " and input must be on the same device");
}

inline Shape check_arguments(const char* op, const Tensor& input, const Tensor& weight,
                             double eps) {
  const ScalarType dtype = input.scalar_type();
  STD_TORCH_CHECK(
      dtype == ScalarType::Float || dtype == ScalarType::Half || dtype == ScalarType::BFloat16, op,
      ": input must be float32, float16 or bfloat16, got ", torch::headeronly::toString(dtype));
  STD_TORCH_CHECK(input.dim() >= 1, op, ": input must have at least one dimension");
  const int64_t hidden = input.size(input.dim() - 1);
  STD_TORCH_CHECK(hidden > 0, op, ": the last dimension of input must not be empty");
  STD_TORCH_CHECK(weight.dim() == 1 && weight.size(0) == hidden, op,
                  ": weight must have one dimension of size ", hidden,
                  ", the last dimension of input");
  check_same_kind(op, "weight", weight, input);
  // Written so that NaN is refused as well.
  STD_TORCH_CHECK(eps >= 0.0, op, ": eps must not be negative, got ", eps);
  return {input.numel() / hidden, hidden};
}

inline void check_residual(const char* op, const Tensor& residual, const Tensor& input) {
  bool same_shape = residual.dim() == input.dim();
  for (int64_t d = 0; same_shape && d < input.dim(); ++d) {
    same_shape = residual.size(d) == input.size(d);
  }
  STD_TORCH_CHECK(same_shape, op, ": residual must have the shape of input");
  check_same_kind(op, "residual", residual, input);
}

}  // namespace rms_norm
