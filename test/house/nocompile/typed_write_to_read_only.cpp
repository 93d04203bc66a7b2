// A part of the peer's memory that may only be read is not written.
// expect: cannot convert .*RemoteSegment<const int>|no known conversion from .*RemoteSegment<const int>
#include <verbena/typed.hpp>

using namespace verbena;

void store(typed::Link& link, typed::Segment<int>& segment, typed::RemoteSegment<const int> there) {
#ifdef WRONG
  (void)link.write(segment, there);
#else
  (void)link.read(segment, there);
#endif
}
