// Elements of one type are not written as another's.
// expect: no matching|convert|conversion
#include <verbena/queue_pair.hpp>

using namespace verbena;

void write(typed::Ready<typed::Uc>& pair, typed::Segment<int>& from, typed::RemoteSegment<float> other,
           typed::RemoteSegment<int> to) {
#ifdef WRONG
  (void)to;
  (void)pair.post_write(std::move(from), other);
#else
  (void)other;
  (void)pair.post_write(std::move(from), to);
#endif
}
