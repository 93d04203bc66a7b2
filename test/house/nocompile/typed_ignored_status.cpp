// A failed read leaves elements as they were.
// expect: nodiscard|unused
#include <verbena/typed.hpp>

using namespace verbena;

void fetch(typed::Link& link, typed::Segment<int>& segment, typed::RemoteSegment<int> from) {
#ifdef WRONG
  link.read(segment, from);
#else
  (void)link.read(segment, from);
#endif
}
