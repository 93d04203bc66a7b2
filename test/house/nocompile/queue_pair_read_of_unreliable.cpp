// An unreliable connection has no READ.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

void read(typed::Ready<typed::Rc>& reliable, typed::Ready<typed::Uc>& unreliable, typed::Segment<int>& to,
          typed::RemoteSegment<int> from) {
#ifdef WRONG
  (void)reliable;
  (void)unreliable.post_read(std::move(to), from);
#else
  (void)unreliable;
  (void)reliable.post_read(std::move(to), from);
#endif
}
