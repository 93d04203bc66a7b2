// Elements do not leave the function that may use them.
// expect: elements must not leave the function
#include <verbena/typed.hpp>

using namespace verbena;

std::size_t count(typed::Segment<int>& segment) {
#ifdef WRONG
  return segment.use([](std::span<int> all) { return all; }).size();
#else
  return segment.use([](std::span<int> all) { return all.size(); });
#endif
}
