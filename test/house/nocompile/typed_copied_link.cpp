// Two owners of a connection would close it twice.
// expect: deleted|implicitly-deleted
#include <verbena/typed.hpp>

using namespace verbena;

typed::Link other(typed::Link& link) {
#ifdef WRONG
  return link;
#else
  return std::move(link);
#endif
}
