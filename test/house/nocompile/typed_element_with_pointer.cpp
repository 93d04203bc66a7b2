// An address is worth nothing in another process.
// expect: constraint
#include <verbena/typed.hpp>

#ifdef WRONG
using Bad = verbena::typed::Segment<int*>;
#else
using Bad = verbena::typed::Segment<int>;
#endif
std::size_t count(const Bad& segment) { return segment.size(); }
