// A message that is under way has its segment: nobody changes it meanwhile.
// expect: cannot bind|no matching
#include <verbena/typed.hpp>

using namespace verbena;

void send(typed::Link& link, typed::Segment<int> own) {
#ifdef WRONG
  (void)link.start_send(own);
#else
  (void)link.start_send(std::move(own));
#endif
}
