// SPDX-License-Identifier: Apache-2.0
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cmath>

#include "../torch-ext/torch_binding.h"
#include "rms_norm_check.h"

namespace {

using rms_norm::ScalarType;
using rms_norm::Shape;
using torch::stable::Tensor;

// Elements a thread must have before it is worth starting another one.
constexpr int64_t kGrainElements = 16384;

template <typename scalar_t>
void normalise_row(const scalar_t* row, const scalar_t* weight, scalar_t* output, int64_t hidden,
                   float eps) {
  float sum = 0.0f;
  for (int64_t i = 0; i < hidden; ++i) {
    const float value = static_cast<float>(row[i]);
    sum += value * value;
  }
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(hidden) + eps);
  for (int64_t i = 0; i < hidden; ++i) {
    output[i] = scalar_t(static_cast<float>(row[i]) * scale * static_cast<float>(weight[i]));
  }
}

// With a residual, `summed` receives input + residual and is what gets normalised.
template <typename scalar_t>
void run(const Tensor& input, const Tensor* residual, const Tensor& weight, Tensor& output,
         Tensor* summed, Shape shape, float eps) {
  const scalar_t* in = input.const_data_ptr<scalar_t>();
  const scalar_t* add = residual ? residual->const_data_ptr<scalar_t>() : nullptr;
  const scalar_t* scale = weight.const_data_ptr<scalar_t>();
  scalar_t* out = output.mutable_data_ptr<scalar_t>();
  scalar_t* sum = summed ? summed->mutable_data_ptr<scalar_t>() : nullptr;

  const int64_t grain = std::max<int64_t>(1, kGrainElements / shape.hidden);
  torch::stable::parallel_for(0, shape.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t offset = r * shape.hidden;
      const scalar_t* row = in + offset;
      if (add != nullptr) {
        for (int64_t i = 0; i < shape.hidden; ++i) {
          sum[offset + i] =
              scalar_t(static_cast<float>(row[i]) + static_cast<float>(add[offset + i]));
        }
        row = sum + offset;
      }
      normalise_row(row, scale, out + offset, shape.hidden, eps);
    }
  });
}

void dispatch(const Tensor& input, const Tensor* residual, const Tensor& weight, Tensor& output,
              Tensor* summed, Shape shape, float eps) {
  switch (input.scalar_type()) {
    case ScalarType::Half:
      run<torch::headeronly::Half>(input, residual, weight, output, summed, shape, eps);
      break;
    case ScalarType::BFloat16:
      run<torch::headeronly::BFloat16>(input, residual, weight, output, summed, shape, eps);
      break;
    default:  // check_arguments lets nothing else through than float32
      run<float>(input, residual, weight, output, summed, shape, eps);
  }
}

}  // namespace

Tensor rms_norm_cpu(const Tensor& input, const Tensor& weight, double eps) {
  const Shape shape = rms_norm::check_arguments("rms_norm", input, weight, eps);
  const Tensor source = torch::stable::contiguous(input);
  Tensor output = torch::stable::empty_like(source);
  dispatch(source, nullptr, torch::stable::contiguous(weight), output, nullptr, shape,
           static_cast<float>(eps));
  return output;
}

std::tuple<Tensor, Tensor> add_rms_norm_cpu(const Tensor& input, const Tensor& residual,
                                            const Tensor& weight, double eps) {
  const Shape shape = rms_norm::check_arguments("add_rms_norm", input, weight, eps);
  rms_norm::check_residual("add_rms_norm", residual, input);
  const Tensor source = torch::stable::contiguous(input);
  const Tensor other = torch::stable::contiguous(residual);
  Tensor output = torch::stable::empty_like(source);
  Tensor summed = torch::stable::empty_like(source);
  dispatch(source, &other, torch::stable::contiguous(weight), output, &summed, shape,
           static_cast<float>(eps));
  return {output, summed};
}
