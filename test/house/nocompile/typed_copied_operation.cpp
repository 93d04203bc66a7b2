// Two operations would each give the same segment back.
// expect: deleted
#include <verbena/typed.hpp>

using namespace verbena;

typed::Operation<typed::Segment<int>> other(typed::Operation<typed::Segment<int>>& operation) {
#ifdef WRONG
  return operation;
#else
  return std::move(operation);
#endif
}
