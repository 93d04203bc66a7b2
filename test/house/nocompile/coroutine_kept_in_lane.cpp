// An awaited send of a lane has its segment: nobody changes it meanwhile.
// expect: cannot bind|no matching|no viable
#include <verbena/coroutines_mesh.hpp>

using namespace verbena;

coroutine::Task<Status> pass(coroutine::Loop& /*loop*/, typed::MeshLane& lane, typed::Segment<int> mine) {
#ifdef WRONG
  co_return (co_await coroutine::send(lane, 1, mine)).status;
#else
  co_return (co_await coroutine::send(lane, 1, std::move(mine))).status;
#endif
}
