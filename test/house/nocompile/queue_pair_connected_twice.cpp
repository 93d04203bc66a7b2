// What is ready is not connected again.
// expect: no member named|has no member
#include <verbena/queue_pair.hpp>

using namespace verbena;

void again(typed::Ready<typed::Rc> ready, typed::Prepared<typed::Rc> prepared, const typed::QueuePairEndpoint& peer) {
#ifdef WRONG
  (void)prepared;
  (void)std::move(ready).begin(peer);
#else
  (void)ready;
  (void)std::move(prepared).begin(peer);
#endif
}
