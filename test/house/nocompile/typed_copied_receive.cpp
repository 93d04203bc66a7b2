// Two owners of a posted receive would be two owners of its segment.
// expect: deleted
#include <verbena/typed.hpp>

using namespace verbena;

typed::MessageOperation<int> keep(typed::MessageOperation<int>& receiving) {
#ifdef WRONG
  return receiving;
#else
  return std::move(receiving);
#endif
}
