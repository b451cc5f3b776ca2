// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "../torch-ext/torch_binding.h"
#include "rms_norm_device.cuh"

namespace {

using rms_norm::ScalarType;
using rms_norm::Shape;
using torch::stable::Tensor;

template <typename scalar_t>
__global__ void add_rms_norm_kernel(const scalar_t* input, const scalar_t* residual,
                                    const scalar_t* weight, scalar_t* output, scalar_t* summed,
                                    int64_t hidden, float eps) {
  const int64_t offset = blockIdx.x * hidden;
  scalar_t* row = summed + offset;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    // Rounded to the dtype first, so that the result equals rms_norm of the sum that is returned.
    row[i] =
        scalar_t(static_cast<float>(input[offset + i]) + static_cast<float>(residual[offset + i]));
    const float value = static_cast<float>(row[i]);
    sum += value * value;
  }
  rms_norm::normalise_row<scalar_t>(row, weight, output + offset, hidden, eps, sum);
}

template <typename scalar_t>
void run(const Tensor& input, const Tensor& residual, const Tensor& weight, Tensor& output,
         Tensor& summed, Shape shape, float eps) {
  const rms_norm::Launch launch = rms_norm::make_launch("add_rms_norm", input, shape);
  add_rms_norm_kernel<scalar_t><<<launch.blocks, launch.threads, 0, launch.stream>>>(
      input.const_data_ptr<scalar_t>(), residual.const_data_ptr<scalar_t>(),
      weight.const_data_ptr<scalar_t>(), output.mutable_data_ptr<scalar_t>(),
      summed.mutable_data_ptr<scalar_t>(), shape.hidden, eps);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

std::tuple<Tensor, Tensor> add_rms_norm_cuda(const Tensor& input, const Tensor& residual,
                                             const Tensor& weight, double eps) {
  const Shape shape = rms_norm::check_arguments("add_rms_norm", input, weight, eps);
  rms_norm::check_residual("add_rms_norm", residual, input);
  const torch::stable::accelerator::DeviceGuard guard(input.get_device_index());
  const Tensor source = torch::stable::contiguous(input);
  const Tensor other = torch::stable::contiguous(residual);
  const Tensor scale = torch::stable::contiguous(weight);
  Tensor output = torch::stable::empty_like(source);
  Tensor summed = torch::stable::empty_like(source);
  if (shape.rows == 0) {
    return {output, summed};  // a launch with no blocks is an error
  }
  const float epsilon = static_cast<float>(eps);
  switch (source.scalar_type()) {
    case ScalarType::Half:
      run<torch::headeronly::Half>(source, other, scale, output, summed, shape, epsilon);
      break;
    case ScalarType::BFloat16:
      run<torch::headeronly::BFloat16>(source, other, scale, output, summed, shape, epsilon);
      break;
    default:  // check_arguments lets nothing else through than float32
      run<float>(source, other, scale, output, summed, shape, epsilon);
  }
  return {output, summed};
}
