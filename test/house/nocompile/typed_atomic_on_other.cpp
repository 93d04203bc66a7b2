// Atomics of NICs are on words of eight bytes.
// expect: no matching|constraint
#include <verbena/typed.hpp>

using namespace verbena;

void count(typed::Link& link, typed::RemoteSegment<std::uint64_t> word, typed::RemoteSegment<std::uint32_t> half) {
  (void)word.size();
  (void)half.size();
#ifdef WRONG
  (void)link.fetch_add(half, 1);
#else
  (void)link.fetch_add(word, 1);
#endif
}
