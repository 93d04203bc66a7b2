// Nor in a batch.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

void read(typed::Batch<typed::Rc, int>& reliable, typed::Batch<typed::Uc, int>& unreliable, typed::Segment<int>& to,
          typed::RemoteSegment<int> from) {
#ifdef WRONG
  (void)reliable;
  (void)unreliable.add_read(std::move(to), from);
#else
  (void)unreliable;
  (void)reliable.add_read(std::move(to), from);
#endif
}
