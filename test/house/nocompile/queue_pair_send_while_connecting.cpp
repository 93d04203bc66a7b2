// Nor does one on its way.
// expect: no member named|has no member
#include <verbena/queue_pair.hpp>

using namespace verbena;

void send(typed::Connecting<typed::Uc>& connecting, typed::Segment<int>& segment) {
#ifdef WRONG
  (void)connecting.post_send(std::move(segment));
#else
  (void)segment;
  (void)connecting.step();
#endif
}
