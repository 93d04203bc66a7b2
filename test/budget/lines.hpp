// Which cache lines of shared memory a piece of code reads and writes. The memory is taken away from the process
// meanwhile: each access faults, is noted, and is carried out alone (x86-64: the trap flag) before the memory goes
// again.
#pragma once

#include <cstdint>

namespace verbena::budget::lines {

/// Lines of all operations: those that an operation only reads, and those that it writes.
struct Touched {
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};

/// Finds the shared mappings of the process. Map nothing new until `close`. \thread one, for all calls
void open();
/// From here to `end` accesses are noted. Between them only this thread may use shared memory.
void begin() noexcept;
void end() noexcept;
/// A line that the next operation touches counts again.
void end_operation() noexcept;
/// The sum since `open`.
[[nodiscard]] Touched close();
/// Whether this machine can do it.
[[nodiscard]] bool is_available() noexcept;

}  // namespace verbena::budget::lines
