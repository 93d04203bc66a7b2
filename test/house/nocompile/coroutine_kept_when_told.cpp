// An awaited write with an immediate has its segment until it is complete.
// expect: cannot bind|no matching|no viable
#include <verbena/coroutines.hpp>

using namespace verbena;

coroutine::Task<Status> put(coroutine::Loop& /*loop*/, typed::Link& link, typed::Segment<int> mine,
                            typed::RemoteSegment<int> there) {
#ifdef WRONG
  co_return (co_await coroutine::write_with_immediate(link, mine, there, 1)).status;
#else
  co_return (co_await coroutine::write_with_immediate(link, std::move(mine), there, 1)).status;
#endif
}
