// A write with an immediate has its segment until it is complete, as every operation.
// expect: cannot bind|no matching
#include <verbena/typed.hpp>

using namespace verbena;

void write(typed::Link& link, typed::Segment<int> own, const typed::RemoteSegment<int>& there) {
#ifdef WRONG
  (void)link.start_write_with_immediate(own, there, 1);
#else
  (void)link.start_write_with_immediate(std::move(own), there, 1);
#endif
}
