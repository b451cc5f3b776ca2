#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

inline cudaStream_t current_stream(int32_t device) {
  void* stream = nullptr;
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream(device, &stream) == 0, "halve: no stream");
  return static_cast<cudaStream_t>(stream);
}
