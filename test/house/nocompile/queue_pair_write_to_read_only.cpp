// What may only be read is not written.
// expect: no matching|convert|conversion
#include <verbena/queue_pair.hpp>

using namespace verbena;

void write(typed::Ready<typed::Uc>& pair, typed::Segment<int>& from, typed::RemoteSegment<const int> readable,
           typed::RemoteSegment<int> to) {
#ifdef WRONG
  (void)to;
  (void)pair.post_write(std::move(from), readable);
#else
  (void)readable;
  (void)pair.post_write(std::move(from), to);
#endif
}
