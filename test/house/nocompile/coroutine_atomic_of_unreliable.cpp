// An unreliable queue pair has no atomics, awaited or not.
// expect: no matching function|constraints not satisfied
#include <verbena/coroutines_queue_pair.hpp>

using namespace verbena;

#ifdef WRONG
using Type = typed::Uc;
#else
using Type = typed::Rc;
#endif

coroutine::Task<Status> count(coroutine::Loop& /*loop*/, typed::Ready<Type>& pair,
                              typed::RemoteSegment<std::uint64_t> word) {
  const auto before = co_await coroutine::fetch_add(pair, word, 1);
  co_return before ? Status::kOk : before.error();
}
