#pragma once
#include <ATen/core/Tensor.h>

namespace shop {
enum Mode { SUM, MEAN = 5 };
namespace inner {
enum class Order : int { UP, DOWN };
at::Tensor ordered(at::Tensor x, Order order, Mode mode = SUM);
}  // namespace inner
void fill(at::Tensor& out, double value);
struct Counter {
  explicit Counter(int64_t start) : at(start) {}
  int64_t next() { return at++; }
  int64_t at;
};
}  // namespace shop
