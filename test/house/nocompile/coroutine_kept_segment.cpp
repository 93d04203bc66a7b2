// A segment that is being read into is nobody else's meanwhile.
// expect: cannot bind|no matching function|no viable
#include <verbena/coroutines.hpp>

using namespace verbena;

coroutine::Task<Status> get(coroutine::Loop& /*loop*/, typed::Link& link, typed::Segment<int> mine,
                            typed::RemoteSegment<const int> there) {
#ifdef WRONG
  co_return (co_await coroutine::read(link, mine, there)).status;
#else
  co_return (co_await coroutine::read(link, std::move(mine), there)).status;
#endif
}
