#include "relu.h"

#include <cstdint>

namespace {

template <typename T>
void relu_of(T *out, const T *x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] < T(0) ? T(0) : x[i];
}

bool is_float(DLDataType type, int bits) { return type.code == kDLFloat && type.bits == bits && type.lanes == 1; }

}  // namespace

void relu(tvm::ffi::TensorView out, tvm::ffi::TensorView x) {
  TVM_FFI_CHECK(x.device().device_type == kDLCPU && out.device().device_type == kDLCPU, ValueError)
      << "relu: both tensors must be on the CPU";
  TVM_FFI_CHECK(x.IsContiguous() && out.IsContiguous(), ValueError) << "relu: both tensors must be contiguous";
  TVM_FFI_CHECK(x.dtype() == out.dtype() && x.numel() == out.numel(), ValueError)
      << "relu: both tensors must have the same dtype and number of elements";
  if (is_float(x.dtype(), 32)) {
    relu_of(static_cast<float *>(out.data_ptr()), static_cast<const float *>(x.data_ptr()), x.numel());
  } else if (is_float(x.dtype(), 64)) {
    relu_of(static_cast<double *>(out.data_ptr()), static_cast<const double *>(x.data_ptr()), x.numel());
  } else {
    TVM_FFI_THROW(TypeError) << "relu: neither float32 nor float64";
  }
}
