// flags: -std=c++20
// expect: Verbena needs C\+\+23
#include <verbena/status.hpp>

#ifdef WRONG
// Refused by the header: `flags` above.
#endif
verbena::Status status() { return verbena::Status::kOk; }
