// A task that nobody awaits never runs.
// expect: nodiscard|unused-result|unused-value
#include <verbena/coroutines.hpp>

using namespace verbena;

coroutine::Task<Status> work(coroutine::Loop& /*loop*/) { co_return Status::kOk; }

void start(coroutine::Loop& loop) {
#ifdef WRONG
  work(loop);
#else
  (void)loop.spawn(work(loop));
#endif
}
