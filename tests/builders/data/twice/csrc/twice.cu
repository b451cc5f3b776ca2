#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include "twice.h"

__global__ void twice_kernel(const float* from, float* to, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) {
    to[i] = TWICE_FACTOR * from[i];
  }
}

torch::stable::Tensor twice(const torch::stable::Tensor& input) {
  torch::stable::Tensor source = torch::stable::contiguous(input);
  torch::stable::Tensor output = torch::stable::empty_like(source);
  void* stream = nullptr;
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream(source.get_device_index(), &stream) == 0, "twice: no stream");
  const int64_t count = source.numel();
  if (count > 0) {
    const unsigned int blocks = static_cast<unsigned int>((count + 255) / 256);
    twice_kernel<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(source.const_data_ptr<float>(),
                                                                        output.mutable_data_ptr<float>(), count);
  }
  return output;
}
