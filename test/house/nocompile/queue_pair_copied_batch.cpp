// Two owners of a batch would both have its segments.
// expect: deleted|implicitly-deleted
#include <verbena/queue_pair.hpp>

using namespace verbena;

typed::Batch<typed::Uc, int> other(typed::Batch<typed::Uc, int>& batch) {
#ifdef WRONG
  return batch;
#else
  return std::move(batch);
#endif
}
