#include "plus_one.h"

#include <c10/util/Exception.h>

#include <memory>
#include <sstream>
#include <vector>

// What a newer C++ library compiles into imports that older ones lack: string streams, growing containers, shared
// pointers. The test looks at the versions that the binary needs.
at::Tensor plus_one(const at::Tensor& input) {
  std::stringstream message;
  auto sizes = std::make_shared<std::vector<int64_t>>();
  for (int64_t size : input.sizes()) {
    sizes->push_back(size);
    message << size << ' ' << 1.5 * static_cast<double>(size) << ' ';
  }
  TORCH_CHECK(sizes->size() < 3, "plus_one: too many dimensions: ", message.str());
  return input.add(PLUS_ONE_STEP);
}
