#include <ATen/core/op_registration/op_registration.h>
#include <torch/library.h>
#include "forms.h"

namespace shop {
void fill(at::Tensor& out, double value) { out.fill_(value); }
namespace inner {
at::Tensor ordered(at::Tensor x, Order order, Mode mode) {
  auto made = order == Order::UP ? std::get<0>(x.sort()) : std::get<0>(x.sort(0, true));
  return mode == MEAN ? made.div(made.numel()) : made;
}
}  // namespace inner
}  // namespace shop

namespace {
int64_t registered(const at::Tensor& x) { return x.numel(); }
at::Tensor in_library(const at::Tensor& x) { return x.add(5); }
}  // namespace

static auto registry = c10::RegisterOperators("forms::registered", &registered)
                           .op("forms::registered_too(Tensor x) -> int", &registered);
TORCH_LIBRARY(forms, m) {
  m.def("in_library(Tensor x) -> Tensor");
  m.def("forms::at_once", &in_library);
}
TORCH_LIBRARY_IMPL(forms, CPU, m) { m.impl("in_library", &in_library); }
