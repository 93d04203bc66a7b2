// An unreliable queue pair has no READ, awaited or not.
// expect: no matching function|constraints not satisfied
#include <verbena/coroutines_queue_pair.hpp>

using namespace verbena;

#ifdef WRONG
using Type = typed::Uc;
#else
using Type = typed::Rc;
#endif

coroutine::Task<Status> get(coroutine::Loop& /*loop*/, typed::Ready<Type>& pair, typed::Segment<int> mine,
                            typed::RemoteSegment<int> there) {
  co_return (co_await coroutine::read(pair, std::move(mine), there)).status;
}
