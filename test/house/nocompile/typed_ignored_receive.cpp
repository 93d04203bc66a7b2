// Who does not look at a receive that was started has dropped it.
// expect: nodiscard|ignoring
#include <verbena/typed.hpp>

using namespace verbena;

void receive(typed::Link& link, typed::Segment<int> own) {
#ifdef WRONG
  link.start_receive(std::move(own));
#else
  const auto receiving = link.start_receive(std::move(own));
#endif
}
