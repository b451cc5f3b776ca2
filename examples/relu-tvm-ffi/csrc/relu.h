#pragma once

#include <tvm/ffi/tvm_ffi.h>

// Writes max(x, 0) for every element of x to out; NaN stays NaN.
void relu(tvm::ffi::TensorView out, tvm::ffi::TensorView x);
