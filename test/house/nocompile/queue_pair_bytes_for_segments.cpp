// Memory that nothing guards is not posted.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

void send(typed::Ready<typed::Uc>& pair, std::span<int> bytes, typed::Segment<int>& from) {
#ifdef WRONG
  (void)from;
  (void)pair.post_send(bytes);
#else
  (void)bytes;
  (void)pair.post_send(std::move(from));
#endif
}
