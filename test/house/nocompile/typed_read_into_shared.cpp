// Nobody writes to elements that others read.
// expect: no matching
#include <verbena/typed.hpp>

using namespace verbena;

void fetch(typed::Link& link, typed::ConstSegment<int>& shared, typed::RemoteSegment<int> there) {
#ifdef WRONG
  (void)link.read(shared, there);
#else
  (void)link.write(shared, there);
#endif
}
