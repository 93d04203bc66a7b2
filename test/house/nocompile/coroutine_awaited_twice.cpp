// A task is awaited once, and is moved there.
// expect: deleted
#include <verbena/coroutines.hpp>

using namespace verbena;

coroutine::Task<Status> twice(coroutine::Loop& /*loop*/, coroutine::Task<Status> task) {
#ifdef WRONG
  co_return co_await task;
#else
  co_return co_await std::move(task);
#endif
}
