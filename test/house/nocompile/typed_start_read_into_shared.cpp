// Nor does an operation.
// expect: no matching
#include <verbena/typed.hpp>

using namespace verbena;

void fetch(typed::Link& link, typed::ConstSegment<int>& shared, typed::RemoteSegment<int> there) {
#ifdef WRONG
  (void)link.start_read(std::move(shared), there);
#else
  (void)link.start_write(shared, there);
#endif
}
