// Nor compare-and-swap.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

void swap(typed::Ready<typed::Rc>& reliable, typed::Ready<typed::Uc>& unreliable,
          typed::RemoteSegment<std::uint64_t> word) {
#ifdef WRONG
  (void)reliable;
  (void)unreliable.post_compare_swap(word, 1, 2);
#else
  (void)unreliable;
  (void)reliable.post_compare_swap(word, 1, 2);
#endif
}
