#include <torch/csrc/stable/ops.h>

#include "halve.h"
#include "launch_cuda.cuh"

#ifdef ONLY_FOR_CXX
#error "flags for C++ do not belong here"
#endif
#if !defined(ROCM_KERNEL) || !defined(USE_ROCM) || TORCH_TARGET_VERSION != 0x020b000000000000
#error "a ROCm build for the stable ABI says so"
#endif

namespace {

__global__ void halve_kernel(const float* from, float* to, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) {
    to[i] = HALVE_FACTOR * from[i];
  }
}

}  // namespace

torch::stable::Tensor halve(const torch::stable::Tensor& input) {
  torch::stable::Tensor source = torch::stable::contiguous(input);
  torch::stable::Tensor output = torch::stable::empty_like(source);
  const int64_t count = source.numel();
  if (count > 0) {
    const unsigned int blocks = static_cast<unsigned int>((count + 255) / 256);
    halve_kernel<<<blocks, 256, 0, current_stream(source.get_device_index())>>>(
        source.const_data_ptr<float>(), output.mutable_data_ptr<float>(), count);
    STD_TORCH_CHECK(cudaGetLastError() == cudaSuccess, "halve: the launch failed");
  }
  return output;
}
