// A queue pair without a peer sends nothing.
// expect: no member named|has no member
#include <verbena/queue_pair.hpp>

using namespace verbena;

void send(typed::Prepared<typed::Rc>& prepared, typed::Segment<int>& segment) {
#ifdef WRONG
  (void)prepared.post_send(std::move(segment));
#else
  (void)prepared.post_receive(std::move(segment));
#endif
}
