#include <tvm/ffi/tvm_ffi.h>

#include "relu.h"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relu, relu);
