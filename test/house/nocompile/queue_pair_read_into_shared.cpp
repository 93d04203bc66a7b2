// Nor is the peer's memory read into it.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

void read(typed::Ready<typed::Rc>& pair, typed::ConstSegment<int> shared, typed::Segment<int>& own,
          typed::RemoteSegment<int> from) {
#ifdef WRONG
  (void)own;
  (void)pair.post_read(shared, from);
#else
  (void)shared;
  (void)pair.post_read(std::move(own), from);
#endif
}
