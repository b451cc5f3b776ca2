// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <tuple>

// The last dimension of `input` is normalised: input / sqrt(mean(input^2) + eps) * weight.
torch::stable::Tensor rms_norm_cpu(const torch::stable::Tensor& input,
                                   const torch::stable::Tensor& weight, double eps);
torch::stable::Tensor rms_norm_cuda(const torch::stable::Tensor& input,
                                    const torch::stable::Tensor& weight, double eps);

// Returns rms_norm(input + residual) and input + residual.
std::tuple<torch::stable::Tensor, torch::stable::Tensor> add_rms_norm_cpu(
    const torch::stable::Tensor& input, const torch::stable::Tensor& residual,
    const torch::stable::Tensor& weight, double eps);
std::tuple<torch::stable::Tensor, torch::stable::Tensor> add_rms_norm_cuda(
    const torch::stable::Tensor& input, const torch::stable::Tensor& residual,
    const torch::stable::Tensor& weight, double eps);
