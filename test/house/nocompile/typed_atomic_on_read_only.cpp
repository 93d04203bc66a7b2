// An atomic changes memory of the peer.
// expect: no matching|constraint
#include <verbena/typed.hpp>

using namespace verbena;

void count(typed::Link& link, typed::RemoteSegment<std::uint64_t> word) {
#ifdef WRONG
  (void)link.fetch_add(typed::RemoteSegment<const std::uint64_t>(word), 1);
#else
  (void)link.fetch_add(word, 1);
#endif
}
