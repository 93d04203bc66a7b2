// An operation takes its segment.
// expect: deleted|implicitly-deleted
#include <verbena/queue_pair.hpp>

using namespace verbena;

void write(typed::Ready<typed::Rc>& pair, typed::Segment<int>& from, typed::RemoteSegment<int> to) {
#ifdef WRONG
  (void)pair.post_write(from, to);
#else
  (void)pair.post_write(std::move(from), to);
#endif
}
