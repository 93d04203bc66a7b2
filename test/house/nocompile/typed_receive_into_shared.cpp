// Nor does a message.
// expect: no matching
#include <verbena/typed.hpp>

using namespace verbena;

void take(typed::Link& link, typed::ConstSegment<int>& shared) {
#ifdef WRONG
  (void)link.receive(shared);
#else
  (void)link.send(shared);
#endif
}
