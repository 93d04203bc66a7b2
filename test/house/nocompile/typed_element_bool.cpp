// A byte from a peer that is neither 0 nor 1 is no bool.
// expect: constraint
#include <verbena/typed.hpp>

#ifdef WRONG
using Bad = verbena::typed::Segment<bool>;
#else
using Bad = verbena::typed::Segment<unsigned char>;
#endif
std::size_t count(const Bad& segment) { return segment.size(); }
