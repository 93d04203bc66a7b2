// A receive that was posted has its segment to itself.
// expect: deleted|implicitly-deleted
#include <verbena/queue_pair.hpp>

using namespace verbena;

void receive(typed::Ready<typed::Uc>& pair, typed::Segment<int>& to) {
#ifdef WRONG
  (void)pair.post_receive(to);
#else
  (void)pair.post_receive(std::move(to));
#endif
}
