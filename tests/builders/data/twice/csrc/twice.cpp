#include "twice.h"

#include <torch/csrc/stable/ops.h>

torch::stable::Tensor twice(const torch::stable::Tensor& input) {
  torch::stable::Tensor source = torch::stable::contiguous(input);
  torch::stable::Tensor output = torch::stable::empty_like(source);
  STD_TORCH_CHECK(source.scalar_type() == torch::headeronly::ScalarType::Float, "twice: float32 only");
  const float* from = source.const_data_ptr<float>();
  float* to = output.mutable_data_ptr<float>();
  for (int64_t i = 0; i < source.numel(); ++i) {
    to[i] = 2 * from[i];
  }
  return output;
}
