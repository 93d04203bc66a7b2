// An MTU is one that verbs has.
// expect: convert|no matching|conversion|initialize
#include <verbena/queue_pair.hpp>

using namespace verbena;

void set(typed::QueuePairBuilder<typed::Rc>& builder) {
#ifdef WRONG
  builder.mtu(1024);
#else
  builder.mtu(typed::Mtu::k1024);
#endif
}
