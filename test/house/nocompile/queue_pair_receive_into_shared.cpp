// A message is not received into what others read.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

void receive(typed::Ready<typed::Uc>& pair, typed::ConstSegment<int> shared, typed::Segment<int>& own) {
#ifdef WRONG
  (void)own;
  (void)pair.post_receive(shared);
#else
  (void)shared;
  (void)pair.post_receive(std::move(own));
#endif
}
