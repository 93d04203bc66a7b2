// The same for a list of them.
// expect: deleted|implicitly-deleted
#include <verbena/queue_pair.hpp>

using namespace verbena;

void write(typed::Ready<typed::Rc>& pair, std::array<typed::Segment<int>, 2>& from, typed::RemoteSegment<int> to) {
#ifdef WRONG
  (void)pair.post_write(from, to);
#else
  (void)pair.post_write(std::move(from), to);
#endif
}
