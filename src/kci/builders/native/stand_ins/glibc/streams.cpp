// Part of kci. GLIBCXX_3.4.32: whoever includes <iostream> names this function, which has std::cout and the others
// made. In older libraries every such file had an object that did it.
#include <ios>

namespace std {

__attribute__((visibility("hidden"))) void ios_base_library_init() {}

}  // namespace std

namespace {

__attribute__((init_priority(101))) std::ios_base::Init kci_streams;

}  // namespace
