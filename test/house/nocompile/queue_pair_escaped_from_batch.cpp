// Elements of a batch stay in the function that uses them.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

void use(typed::Batch<typed::Uc, int>& batch) {
#ifdef WRONG
  (void)batch.use(0, [](std::span<int> all) { return all; });
#else
  (void)batch.use(0, [](std::span<int> all) { all[0] = 1; });
#endif
}
