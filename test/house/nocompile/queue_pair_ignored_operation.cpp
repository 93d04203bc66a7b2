// An operation that is ignored is over at once.
// expect: nodiscard|unused
#include <verbena/queue_pair.hpp>

using namespace verbena;

void send(typed::Ready<typed::Uc>& pair, typed::Segment<int>& from) {
#ifdef WRONG
  pair.post_send(std::move(from));
#else
  (void)pair.post_send(std::move(from));
#endif
}
