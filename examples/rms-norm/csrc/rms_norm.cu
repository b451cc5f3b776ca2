// SPDX-License-Identifier: Apache-2.0
#include "../torch-ext/torch_binding.h"
#include "rms_norm_device.cuh"

namespace {

using rms_norm::ScalarType;
using rms_norm::Shape;
using torch::stable::Tensor;

template <typename scalar_t>
__global__ void rms_norm_kernel(const scalar_t* input, const scalar_t* weight, scalar_t* output,
                                int64_t hidden, float eps) {
  const int64_t offset = blockIdx.x * hidden;
  const scalar_t* row = input + offset;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    const float value = static_cast<float>(row[i]);
    sum += value * value;
  }
  rms_norm::normalise_row(row, weight, output + offset, hidden, eps, sum);
}

template <typename scalar_t>
void run(const Tensor& input, const Tensor& weight, Tensor& output, Shape shape, float eps) {
  const rms_norm::Launch launch = rms_norm::make_launch("rms_norm", input, shape);
  rms_norm_kernel<scalar_t><<<launch.blocks, launch.threads, 0, launch.stream>>>(
      input.const_data_ptr<scalar_t>(), weight.const_data_ptr<scalar_t>(),
      output.mutable_data_ptr<scalar_t>(), shape.hidden, eps);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

Tensor rms_norm_cuda(const Tensor& input, const Tensor& weight, double eps) {
  const Shape shape = rms_norm::check_arguments("rms_norm", input, weight, eps);
  const torch::stable::accelerator::DeviceGuard guard(input.get_device_index());
  const Tensor source = torch::stable::contiguous(input);
  const Tensor scale = torch::stable::contiguous(weight);
  Tensor output = torch::stable::empty_like(source);
  if (shape.rows == 0) {
    return output;  // a launch with no blocks is an error
  }
  const float epsilon = static_cast<float>(eps);
  switch (source.scalar_type()) {
    case ScalarType::Half:
      run<torch::headeronly::Half>(source, scale, output, shape, epsilon);
      break;
    case ScalarType::BFloat16:
      run<torch::headeronly::BFloat16>(source, scale, output, shape, epsilon);
      break;
    default:  // check_arguments lets nothing else through than float32
      run<float>(source, scale, output, shape, epsilon);
  }
  return output;
}
