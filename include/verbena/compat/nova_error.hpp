/// \file
/// The exception of the RDMALib interface.
#pragma once

#include <verbena/error.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace nova {

/// Every call that fails throws this. The call has had no effect, unless its description says otherwise.
class NovaError : public std::runtime_error {
 public:
  /// `wr_id` of a call that concerns no single operation.
  static constexpr std::uint64_t kNoRequest = ~std::uint64_t{0};
  /// `server_id` of a call that concerns no single server.
  static constexpr std::int64_t kNoServer = -1;

  /// `what()` returns `sentence`.
  NovaError(verbena::Status status, const std::string& sentence, std::int64_t server_id = kNoServer,
            std::uint64_t wr_id = kNoRequest)
      : std::runtime_error(sentence), status_(status), server_id_(server_id), wr_id_(wr_id) {}
  /// The code, for programs to decide by.
  [[nodiscard]] verbena::Status status() const noexcept { return status_; }
  /// The server that the call was about.
  [[nodiscard]] std::int64_t server_id() const noexcept { return server_id_; }
  /// The operation that has failed.
  [[nodiscard]] std::uint64_t wr_id() const noexcept { return wr_id_; }

 private:
  verbena::Status status_;
  std::int64_t server_id_;
  std::uint64_t wr_id_;
};

namespace detail {

/// Throws kBadArgument.
[[noreturn]] inline void refuse(const std::string& sentence) {
  throw NovaError(verbena::Status::kBadArgument, sentence);
}

/// Throws kBadArgument for a number that is out of range.
inline std::uint32_t check_number(const char* name, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (value < least || value > most)
    refuse(std::string(name) + " must be " + std::to_string(least) + " to " + std::to_string(most) + "; got " +
           std::to_string(value));
  return static_cast<std::uint32_t>(value);
}

/// The value of a result; throws its error.
template <class T>
T value_of(verbena::Result<T> result, std::int64_t server_id = NovaError::kNoServer) {
  if (!result) throw NovaError(result.error().status(), result.error().text(), server_id);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace detail

}  // namespace nova
