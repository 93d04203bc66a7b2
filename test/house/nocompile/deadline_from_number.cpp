// A bare number has no unit: a deadline is made by `after`, `now` or `never`.
// expect: conver|no matching|private
#include <verbena/deadline.hpp>

verbena::Deadline in_five() {
#ifdef WRONG
  return 5U;
#else
  return verbena::Deadline::after(std::chrono::milliseconds{5});
#endif
}
