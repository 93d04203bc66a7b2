// Large values on their way to the server: it READs those in registered memory, others are streamed in pieces.
#pragma once

#include "kv/links.hpp"
#include "kv/operation.hpp"

#include <cstdint>

namespace verbena::kv {

/// \thread owner  \alloc none
class Puts {
 public:
  explicit Puts(Links& links) noexcept : links_(links) {}
  /// Lends a value that is in registered memory.
  [[nodiscard]] Status send_lent(Operation& operation, const Ask& ask) noexcept;
  /// Streams any other value through the channel's lease. Waits for room until the deadline.
  [[nodiscard]] Status send_chunks(Operation& operation, const Ask& ask, Deadline deadline) noexcept;

 private:
  [[nodiscard]] Status send_head(Operation& operation, const Ask& ask, channel::LocalSpan body,
                                 std::uint64_t token) noexcept;
  [[nodiscard]] channel::Connection& channel_of(const Operation& operation) const noexcept {
    return links_.channel(operation.worker);
  }

  Links& links_;
};

}  // namespace verbena::kv
