// A frozen segment has no call that changes it.
// expect: no member named|has no member
#include <verbena/typed.hpp>

using namespace verbena;

void change(typed::ConstSegment<int>& shared) {
#ifdef WRONG
  (void)shared.set(0, 1);
#else
  (void)shared.get(0);
#endif
}
