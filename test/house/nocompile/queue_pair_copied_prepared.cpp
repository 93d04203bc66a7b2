// The same before it has a peer.
// expect: deleted|implicitly-deleted
#include <verbena/queue_pair.hpp>

using namespace verbena;

typed::Prepared<typed::Uc> other(typed::Prepared<typed::Uc>& prepared) {
#ifdef WRONG
  return prepared;
#else
  return std::move(prepared);
#endif
}
