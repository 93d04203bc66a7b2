// Nor atomics.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

void add(typed::Ready<typed::Rc>& reliable, typed::Ready<typed::Uc>& unreliable,
         typed::RemoteSegment<std::uint64_t> word) {
#ifdef WRONG
  (void)reliable;
  (void)unreliable.post_fetch_add(word, 1);
#else
  (void)unreliable;
  (void)reliable.post_fetch_add(word, 1);
#endif
}
