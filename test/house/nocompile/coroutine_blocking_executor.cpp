// An executor takes what it runs, and neither throws nor allocates.
// expect: constraint|Executor
#include <verbena/coroutines.hpp>

using namespace verbena;

struct Other {
#ifdef WRONG
  void post(coroutine::Resumption& resumption);
#else
  void post(coroutine::Resumption& resumption) noexcept;
#endif
};

coroutine::Task<Status> hop(coroutine::Loop& /*loop*/, Other& other) {
  co_await coroutine::resume_on(other);
  co_return Status::kOk;
}
