#include <hip/hip_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include "halve.h"

__global__ void twice_kernel(float* data, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) {
    data[i] *= 2;
  }
}

torch::stable::Tensor twice(const torch::stable::Tensor& input) {
  torch::stable::Tensor output = torch::stable::clone(input);
  void* stream = nullptr;
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream(output.get_device_index(), &stream) == 0, "twice: no stream");
  const int64_t count = output.numel();
  if (count > 0) {
    twice_kernel<<<static_cast<unsigned int>((count + 255) / 256), 256, 0, static_cast<hipStream_t>(stream)>>>(
        output.mutable_data_ptr<float>(), count);
  }
  return output;
}
