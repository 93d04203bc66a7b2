// A batch takes its segments.
// expect: rvalue|cannot bind
#include <verbena/queue_pair.hpp>

using namespace verbena;

void add(typed::Batch<typed::Uc, int>& batch, typed::Segment<int>& from) {
#ifdef WRONG
  (void)batch.add_send(from);
#else
  (void)batch.add_send(std::move(from));
#endif
}
