// Whether a batch was posted is not ignored.
// expect: nodiscard|unused
#include <verbena/queue_pair.hpp>

using namespace verbena;

void post(typed::Batch<typed::Uc, int>& batch) {
#ifdef WRONG
  batch.post();
#else
  (void)batch.post();
#endif
}
