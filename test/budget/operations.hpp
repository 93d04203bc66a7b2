// The operations with a budget. Each connects its two sides over the soft NIC in this process, and runs under a meter.
// The sides are static, and the program ends without destroying them: no thread is left that would take leave of them.
#pragma once

#include "meter.hpp"

#include <verbena/error.hpp>

#include <cstdio>
#include <cstdlib>
#include <expected>
#include <span>
#include <utility>

namespace verbena::budget {

struct Operation {
  const char* name;
  bool (*run)(Meter& meter);  ///< False: an operation failed.
};

[[nodiscard]] std::span<const Operation> one_sided_operations();
[[nodiscard]] std::span<const Operation> message_operations();
[[nodiscard]] std::span<const Operation> store_operations();

[[nodiscard]] inline const char* text_of(const Error& why) { return why.text(); }
[[nodiscard]] inline const char* text_of(Status why) { return to_string(why); }
/// The value; or ends the program, with the reason.
template <class Value, class Why>
[[nodiscard]] Value must(std::expected<Value, Why>&& result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "budget: %s\n", text_of(result.error()));
  std::_Exit(EXIT_FAILURE);
}

}  // namespace verbena::budget
