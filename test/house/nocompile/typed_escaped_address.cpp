// Nor does the address of one.
// expect: elements must not leave the function
#include <verbena/typed.hpp>

using namespace verbena;

int first(typed::ConstSegment<int>& shared) {
#ifdef WRONG
  return *shared.use([](std::span<const int> all) { return all.data(); });
#else
  return shared.use([](std::span<const int> all) { return all[0]; });
#endif
}
