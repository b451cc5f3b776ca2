// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include "../torch-ext/torch_binding.h"
#include "relu_check.h"

namespace {

// Elements a thread must have before it is worth starting another one.
constexpr int64_t kGrainSize = 32768;

template <typename scalar_t>
void launch_relu(const at::Tensor& input, at::Tensor& output) {
  const scalar_t* in = input.const_data_ptr<scalar_t>();
  scalar_t* out = output.mutable_data_ptr<scalar_t>();
  at::parallel_for(0, input.numel(), kGrainSize, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // NaN is not less than zero, so it passes through, as it does in torch.relu.
      out[i] = static_cast<float>(in[i]) < 0.0f ? scalar_t(0.0f) : in[i];
    }
  });
}

}  // namespace

at::Tensor relu_cpu(const at::Tensor& input) {
  const at::Tensor source = input.contiguous();
  at::Tensor output = at::empty_like(source);
  switch (source.scalar_type()) {
    case at::kFloat:
      launch_relu<float>(source, output);
      break;
    case at::kHalf:
      launch_relu<at::Half>(source, output);
      break;
    case at::kBFloat16:
      launch_relu<at::BFloat16>(source, output);
      break;
    default:
      throw_unsupported_dtype(input);
  }
  return output;
}
