// Nor is a part of it.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

void receive(typed::Ready<typed::Uc>& pair, std::tuple<typed::Segment<int>, typed::ConstSegment<int>>& shared,
             std::tuple<typed::Segment<int>, typed::Segment<char>>& own) {
#ifdef WRONG
  (void)own;
  (void)pair.post_receive(std::move(shared));
#else
  (void)shared;
  (void)pair.post_receive(std::move(own));
#endif
}
