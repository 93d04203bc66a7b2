// Nobody connects without the peer's endpoint.
// expect: no matching|too few
#include <verbena/queue_pair.hpp>

using namespace verbena;

void begin(typed::Prepared<typed::Rc>& prepared, const typed::QueuePairEndpoint& peer) {
#ifdef WRONG
  (void)peer;
  (void)std::move(prepared).begin();
#else
  (void)std::move(prepared).begin(peer);
#endif
}
