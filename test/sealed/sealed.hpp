// A data path that allocates nothing and, where the NIC is used without the kernel, makes no system call.
#pragma once

#include <allocations.hpp>
#include <device.hpp>
#include <system_calls.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace verbena::test {

/// Why system calls are not watched in this process; empty where they are. Set by `main`.
inline std::string why_not_watched;

/// Why a thread of the test at hand makes system calls by right; empty where it does not.
inline std::string why_calls_are_due;

/// Whether system calls of a polled path are errors. A device's provider may post through the kernel, as Soft-RoCE's.
[[nodiscard]] inline bool no_calls_are_due() {
  return why_not_watched.empty() && why_calls_are_due.empty() && device_under_test() == nullptr;
}

/// What all threads of the process did while `operation` ran.
struct Cost {
  Allocations allocations;
  std::size_t calls = 0;
};

/// Runs `operation` `rounds` times; it returns whether it was as it should.
template <class Operation>
[[nodiscard]] Cost cost_of(std::uint64_t rounds, Operation&& operation) {
  bool is_well = true;
  const Allocations before = process_allocations();
  tell_allocations(true);
  SystemCallSection::begin();
  for (std::uint64_t i = 0; i < rounds && is_well; ++i) is_well = operation();
  SystemCallSection::end();
  tell_allocations(false);
  const Cost cost{.allocations = process_allocations() - before, .calls = SystemCallSection::count()};
  EXPECT_TRUE(is_well);
  return cost;
}

/// The cost of `rounds` of the operation, after some that warm up, once it is what `is_right` wants; else of the last
/// attempt. A control thread that was woken by the set-up ends its work there, and goes back to sleep, when the machine
/// lets it. That is no operation's, and happens once: what an operation costs comes with each attempt.
template <class Operation, class IsRight>
[[nodiscard]] Cost settled_cost_of(std::uint64_t rounds, Operation&& operation, IsRight&& is_right) {
  (void)cost_of(rounds / 10 + 1, operation);
  constexpr int kAttempts = 4;
  Cost cost;
  for (int i = 0; i < kAttempts; ++i) {
    cost = cost_of(rounds, operation);
    if (is_right(cost)) break;
  }
  return cost;
}

/// Nothing is allocated or mapped by any thread, and no system call made.
template <class Operation>
void expect_sealed(const char* what, std::uint64_t rounds, Operation&& operation) {
  SCOPED_TRACE(what);
  const Cost cost = settled_cost_of(rounds, operation, [](const Cost& now) {
    return now.allocations == Allocations{} && (now.calls == 0 || !no_calls_are_due());
  });
  EXPECT_EQ(cost.allocations, Allocations{});
  if (!no_calls_are_due()) return;
  EXPECT_EQ(cost.calls, 0u) << testing::PrintToString(SystemCallSection::calls());
}

/// The same of what is handed from thread to thread, who wake each other by system calls: nothing is allocated or
/// mapped.
template <class Operation>
void expect_unallocated(const char* what, std::uint64_t rounds, Operation&& operation) {
  SCOPED_TRACE(what);
  const auto is_right = [](const Cost& now) { return now.allocations == Allocations{}; };
  EXPECT_EQ(settled_cost_of(rounds, operation, is_right).allocations, Allocations{});
}

/// Nothing is allocated while `operation(length)` runs with lengths up to `longest`, each longer than the last: nothing
/// grows with the bytes that pass through. A growth happens once, so there is no second attempt: the other side must
/// have begun to serve this one, which it has once it answered something.
template <class Operation>
void expect_unallocated_as_it_grows(const char* what, std::size_t longest, Operation&& operation) {
  SCOPED_TRACE(what);
  std::size_t length = 1;
  const Cost cost = cost_of(60, [&] {
    length = std::min(length + length / 4 + 1, longest);
    return operation(length);
  });
  EXPECT_EQ(length, longest);
  EXPECT_EQ(cost.allocations, Allocations{});
}

}  // namespace verbena::test
