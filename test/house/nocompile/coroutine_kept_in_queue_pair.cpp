// A queue pair's awaited write has its segment: nobody changes it meanwhile.
// expect: deleted function|deleted constructor|no matching|no viable|cannot bind
#include <verbena/coroutines_queue_pair.hpp>

using namespace verbena;

coroutine::Task<Status> put(coroutine::Loop& /*loop*/, typed::Ready<typed::Uc>& pair, typed::Segment<int> mine,
                            typed::RemoteSegment<int> there) {
#ifdef WRONG
  co_return (co_await coroutine::write(pair, mine, there)).status;
#else
  co_return (co_await coroutine::write(pair, std::move(mine), there)).status;
#endif
}
