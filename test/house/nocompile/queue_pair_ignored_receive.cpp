// And so is a receive.
// expect: nodiscard|unused
#include <verbena/queue_pair.hpp>

using namespace verbena;

void receive(typed::Ready<typed::Uc>& pair, typed::Segment<int>& to) {
#ifdef WRONG
  pair.post_receive(std::move(to));
#else
  (void)pair.post_receive(std::move(to));
#endif
}
