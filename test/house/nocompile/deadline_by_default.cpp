// A deadline nobody chose would be a wait nobody bounded.
// expect: no matching function|no default constructor|no matching constructor
#include <verbena/deadline.hpp>

verbena::Deadline some() {
#ifdef WRONG
  verbena::Deadline deadline;
  return deadline;
#else
  return verbena::Deadline::now();
#endif
}
