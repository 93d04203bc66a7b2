// Two owners of the same elements could both write them.
// expect: deleted
#include <verbena/typed.hpp>

using namespace verbena;

typed::Segment<int> other(typed::Segment<int>& segment) {
#ifdef WRONG
  return segment;
#else
  return std::move(segment);
#endif
}
