// Two tasks would run and free the same frame.
// expect: deleted
#include <verbena/coroutines.hpp>

using namespace verbena;

coroutine::Task<Status> other(coroutine::Task<Status>& task) {
#ifdef WRONG
  return task;
#else
  return std::move(task);
#endif
}
