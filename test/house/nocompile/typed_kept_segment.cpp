// An operation takes its segment: who keeps it could change what the NIC reads.
// expect: cannot bind rvalue reference|no matching|expects an rvalue|no viable
#include <verbena/typed.hpp>

using namespace verbena;

void start(typed::Link& link, typed::Segment<int>& segment, typed::RemoteSegment<int> from) {
#ifdef WRONG
  (void)link.start_read(segment, from);
#else
  (void)link.start_read(std::move(segment), from);
#endif
}
