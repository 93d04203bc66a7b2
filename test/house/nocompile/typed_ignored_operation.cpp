// An operation that nobody keeps is in quarantine at once, which nobody wants.
// expect: nodiscard|unused
#include <verbena/typed.hpp>

using namespace verbena;

void start(typed::Link& link, typed::Segment<int>& segment, typed::RemoteSegment<int> from) {
#ifdef WRONG
  link.start_read(std::move(segment), from);
#else
  (void)link.start_read(std::move(segment), from);
#endif
}
