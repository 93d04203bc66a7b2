// Who freezes a segment gives it away, and cannot write to it any more.
// expect: discards qualifiers|ref-qualifi|rvalue|as .this. argument
#include <verbena/typed.hpp>

using namespace verbena;

typed::ConstSegment<int> share(typed::Segment<int>& segment) {
#ifdef WRONG
  return segment.freeze();
#else
  return std::move(segment).freeze();
#endif
}
