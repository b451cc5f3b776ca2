// SPDX-License-Identifier: Apache-2.0
// What both CUDA operators share: the launch configuration and the normalisation of one row.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/macros.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "rms_norm_check.h"

namespace rms_norm {

constexpr int kWarpSize = 32;
constexpr int kMaxThreads = 1024;

// One block a row, and no more threads in it than the row has elements (in whole warps).
struct Launch {
  unsigned int blocks;
  unsigned int threads;
  cudaStream_t stream;
};

inline Launch make_launch(const char* op, const Tensor& input, Shape shape) {
  STD_TORCH_CHECK(shape.rows <= std::numeric_limits<int32_t>::max(), op,
                  ": input has more rows than a CUDA grid can have blocks");
  const int64_t warps = (shape.hidden + kWarpSize - 1) / kWarpSize;
  const int64_t threads = std::min<int64_t>(warps * kWarpSize, kMaxThreads);
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(input.get_device_index(), &stream));
  return {static_cast<unsigned int>(shape.rows), static_cast<unsigned int>(threads),
          static_cast<cudaStream_t>(stream)};
}

// The sum over all threads of the block, in every thread. Called once in a kernel: a second call
// could overwrite the partial sums while a slow warp still reads them.
__device__ inline float block_sum(float value) {
  __shared__ float partial[kMaxThreads / kWarpSize];
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % kWarpSize == 0) {
    partial[threadIdx.x / kWarpSize] = value;
  }
  __syncthreads();
  float total = 0.0f;
  const unsigned int warps = blockDim.x / kWarpSize;
  for (unsigned int w = 0; w < warps; ++w) {
    total += partial[w];
  }
  return total;
}

// `sum` is this thread's part of the sum of squares. A thread reads back only the elements of `row`
// that it took into account itself, so a row that the same kernel wrote needs no barrier in
// between.
template <typename scalar_t>
__device__ void normalise_row(const scalar_t* row, const scalar_t* weight, scalar_t* output,
                              int64_t hidden, float eps, float sum) {
  const float scale = rsqrtf(block_sum(sum) / static_cast<float>(hidden) + eps);
  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    output[i] = scalar_t(static_cast<float>(row[i]) * scale * static_cast<float>(weight[i]));
  }
}

}  // namespace rms_norm
