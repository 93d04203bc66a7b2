// A task that got no frame has a result, too.
// expect: must have a result too
#include <verbena/coroutines.hpp>

using namespace verbena;

#ifdef WRONG
coroutine::Task<int> count(coroutine::Loop& /*loop*/) { co_return 1; }
#else
coroutine::Task<std::expected<int, Status>> count(coroutine::Loop& /*loop*/) { co_return 1; }
#endif
