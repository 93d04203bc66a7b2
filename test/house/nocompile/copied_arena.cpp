// Two owners of one mapping would unmap it twice.
// expect: deleted function|deleted constructor|implicitly-deleted copy constructor
#include "host/arena.hpp"

#include <utility>

void take(verbena::host::Arena& arena) {
#ifdef WRONG
  const verbena::host::Arena other = arena;
#else
  const verbena::host::Arena other = std::move(arena);
#endif
}
