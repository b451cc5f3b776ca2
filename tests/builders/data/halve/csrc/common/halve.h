#pragma once

#include <torch/csrc/stable/tensor.h>

torch::stable::Tensor halve(const torch::stable::Tensor& input);
torch::stable::Tensor twice(const torch::stable::Tensor& input);
