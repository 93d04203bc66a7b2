// Elements of one type are not read as another's.
// expect: cannot convert .*RemoteSegment<float>|no known conversion from .*RemoteSegment<float>
#include <verbena/typed.hpp>

using namespace verbena;

void fetch(typed::Link& link, typed::Segment<int>& segment, typed::RemoteSegment<int> there,
           typed::RemoteSegment<float> others) {
  (void)there.size();
  (void)others.size();
#ifdef WRONG
  (void)link.read(segment, others);
#else
  (void)link.read(segment, there);
#endif
}
