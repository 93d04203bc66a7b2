// What comes of connecting is not ignored.
// expect: nodiscard|unused
#include <verbena/queue_pair.hpp>

using namespace verbena;

void finish(typed::Connecting<typed::Rc>& connecting) {
#ifdef WRONG
  std::move(connecting).finish(Deadline::now());
#else
  (void)std::move(connecting).finish(Deadline::now());
#endif
}
