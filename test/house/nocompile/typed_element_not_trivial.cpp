// A NIC copies bytes: a string's would be an address of the other process.
// expect: constraint
#include <verbena/typed.hpp>

#include <array>
#include <string>

#ifdef WRONG
using Bad = verbena::typed::Segment<std::string>;
#else
using Bad = verbena::typed::Segment<std::array<char, 16>>;
#endif
std::size_t count(const Bad& segment) { return segment.size(); }
