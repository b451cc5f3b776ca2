// SPDX-License-Identifier: Apache-2.0
// Compiled as CUDA by nvcc, and as HIP after the build has translated it.
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../torch-ext/torch_binding.h"
#include "relu_check.h"

namespace {

constexpr int kThreads = 256;
// More blocks than any device runs at once; the loop in the kernel takes what is left over.
constexpr int64_t kMaxBlocks = 65535;

template <typename scalar_t>
__global__ void relu_kernel(const scalar_t* __restrict__ input, scalar_t* __restrict__ output,
                            int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    // NaN is not less than zero, so it passes through, as it does in torch.relu.
    output[i] = static_cast<float>(input[i]) < 0.0f ? scalar_t(0.0f) : input[i];
  }
}

template <typename scalar_t>
void launch_relu(const at::Tensor& input, at::Tensor& output) {
  const int64_t count = input.numel();
  if (count == 0) {
    return;  // a launch with no blocks is an error
  }
  const c10::cuda::CUDAGuard guard(input.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  // No std::min: the translation to HIP turns it into a function of the device.
  const int64_t wanted = (count + kThreads - 1) / kThreads;
  const int64_t blocks = wanted < kMaxBlocks ? wanted : kMaxBlocks;
  relu_kernel<scalar_t><<<static_cast<unsigned int>(blocks), kThreads, 0, stream>>>(
      input.const_data_ptr<scalar_t>(), output.mutable_data_ptr<scalar_t>(), count);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

at::Tensor relu_gpu(const at::Tensor& input) {
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
