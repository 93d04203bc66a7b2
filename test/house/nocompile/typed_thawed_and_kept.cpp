// Who thaws a segment is no reader any more.
// expect: discards qualifiers|ref-qualifi|rvalue|as .this. argument
#include <verbena/typed.hpp>

using namespace verbena;

bool own(typed::ConstSegment<int>& shared) {
#ifdef WRONG
  return shared.thaw().has_value();
#else
  return std::move(shared).thaw().has_value();
#endif
}
