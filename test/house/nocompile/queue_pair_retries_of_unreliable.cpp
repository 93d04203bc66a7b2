// Nothing is sent again on an unreliable connection.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

void set(typed::QueuePairBuilder<typed::Rc>& reliable, typed::QueuePairBuilder<typed::Uc>& unreliable) {
#ifdef WRONG
  (void)reliable;
  unreliable.retry_count(3);
#else
  (void)unreliable;
  reliable.retry_count(3);
#endif
}
