// There are two types of queue pairs.
// expect: constraint|does not satisfy|same_as
#include <verbena/queue_pair.hpp>

using namespace verbena;

void make() {
#ifdef WRONG
  (void)typed::QueuePairBuilder<int>();
#else
  (void)typed::QueuePairBuilder<typed::Uc>();
#endif
}
