// To connect takes the queue pair that was prepared.
// expect: discards qualifiers|rvalue|no matching|expects an
#include <verbena/queue_pair.hpp>

using namespace verbena;

void begin(typed::Prepared<typed::Rc>& prepared, const typed::QueuePairEndpoint& peer) {
#ifdef WRONG
  (void)prepared.begin(peer);
#else
  (void)std::move(prepared).begin(peer);
#endif
}
