// A message comes into a segment of one's own, not into what others read.
// expect: no matching|no instance|cannot convert
#include <verbena/typed.hpp>

using namespace verbena;

void receive(typed::Link& link, typed::Segment<int> own, typed::ConstSegment<int> shared) {
  (void)shared.size();
#ifdef WRONG
  (void)link.start_receive(std::move(shared));
#else
  (void)link.start_receive(std::move(own));
#endif
}
