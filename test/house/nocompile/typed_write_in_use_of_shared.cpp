// The function that uses a frozen segment gets elements that are const.
// expect: read-only|const-qualified
#include <verbena/typed.hpp>

using namespace verbena;

void change(typed::Segment<int>& segment, typed::ConstSegment<int>& shared) {
  (void)segment.size();
  (void)shared.size();
#ifdef WRONG
  shared.use([](auto all) { all[0] = 1; });
#else
  segment.use([](std::span<int> all) { all[0] = 1; });
#endif
}
