// Two handles of a region would each say when it ends.
// expect: deleted|implicitly-deleted
#include <verbena/typed.hpp>

using namespace verbena;

typed::MemoryRegion<int> other(typed::MemoryRegion<int>& region) {
#ifdef WRONG
  return region;
#else
  return std::move(region);
#endif
}
