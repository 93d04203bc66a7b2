// A receive that is posted has its segment: nobody changes or reads it before the message is there.
// expect: cannot bind|no matching
#include <verbena/typed.hpp>

using namespace verbena;

void receive(typed::Link& link, typed::Segment<int> own) {
#ifdef WRONG
  (void)link.start_receive(own);
#else
  (void)link.start_receive(std::move(own));
#endif
}
