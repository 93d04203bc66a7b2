// Nothing is received into what others read, awaited or not.
// expect: no matching function|constraints not satisfied
#include <verbena/coroutines_queue_pair.hpp>

using namespace verbena;

#ifdef WRONG
using Part = typed::ConstSegment<int>;
#else
using Part = typed::Segment<int>;
#endif

coroutine::Task<Status> take(coroutine::Loop& /*loop*/, typed::Ready<typed::Rc>& pair, Part room) {
  co_return (co_await coroutine::receive(pair, std::move(room))).status;
}
