// Two owners of a queue pair would destroy it twice.
// expect: deleted|implicitly-deleted
#include <verbena/queue_pair.hpp>

using namespace verbena;

typed::Ready<typed::Rc> other(typed::Ready<typed::Rc>& pair) {
#ifdef WRONG
  return pair;
#else
  return std::move(pair);
#endif
}
