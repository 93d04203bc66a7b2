// What is const is a ConstSegment, which operations do not write.
// expect: constraint
#include <verbena/typed.hpp>

#ifdef WRONG
using Bad = verbena::typed::Segment<const int>;
#else
using Bad = verbena::typed::Segment<int>;
#endif
std::size_t count(const Bad& segment) { return segment.size(); }
