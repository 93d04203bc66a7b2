// What may only be read stays so.
// expect: no matching|could not convert|no viable|conversion
#include <verbena/typed.hpp>

using namespace verbena;

typed::RemoteSegment<int> back(typed::RemoteSegment<int> there, typed::RemoteSegment<const int> there_only) {
  (void)there.size();
  (void)there_only.size();
#ifdef WRONG
  return there_only;
#else
  return there;
#endif
}
