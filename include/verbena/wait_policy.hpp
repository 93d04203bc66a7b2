/// \file
/// How a thread waits while there is nothing to do.
#pragma once

#include <verbena/status.hpp>

#include <cstdint>

#pragma GCC visibility push(default)

namespace verbena {

/// How a thread waits for completions.
enum class WaitPolicy : std::uint8_t {
  kSpin,      ///< Polls until the deadline. Needs a core of its own.
  kAdaptive,  ///< Polls for the time that the options call `spin`, then sleeps until an event.
  kEvent,     ///< Sleeps at once: for more threads than cores.
};

/// "spin", "adaptive" or "event". Static storage. \thread any  \alloc none
[[nodiscard]] const char* to_string(WaitPolicy policy) noexcept;

}  // namespace verbena

#pragma GCC visibility pop
