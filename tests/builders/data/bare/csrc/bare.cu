#include "bare.h"

namespace {

__global__ void bare_kernel(float* to) { to[threadIdx.x] = 1.0f; }

}  // namespace

int bare() {
  bare_kernel<<<1, 32>>>(nullptr);
  return 1;
}

const char* bare_source() { return __FILE__; }
