// The rest of a split, or a segment that comes back, is somebody's.
// expect: nodiscard|unused
#include <verbena/typed.hpp>

using namespace verbena;

void end(typed::Operation<typed::Segment<int>>& operation) {
#ifdef WRONG
  operation.take();
#else
  (void)operation.take();
#endif
}
