/// \file
/// Errors of the control plane: the status, the call that failed, errno, and a sentence with the fix. They need no
/// heap.
#pragma once

#include <verbena/status.hpp>

#include <array>
#include <expected>
#include <string_view>

#pragma GCC visibility push(default)

namespace verbena {

/// An error as control-plane calls return it. A value: copy it freely. \alloc none
class Error {
 public:
  /// Room for the sentence, with its null.
  static constexpr std::size_t kTextBytes = 320;

  /// No error: kOk and "".
  Error() noexcept = default;
  /// `call` names the failing call and must have static storage. `text` is copied, and cut at kTextBytes - 1.
  Error(Status status, const char* call, int system_errno, std::string_view text) noexcept;

  /// The code, for programs to decide by.
  [[nodiscard]] Status status() const noexcept { return status_; }
  /// The call that failed, such as "memfd_create". Static storage.
  [[nodiscard]] const char* call() const noexcept { return call_; }
  /// errno as it was when the call failed; 0 where none applies.
  [[nodiscard]] int system_errno() const noexcept { return errno_; }
  /// One sentence: the cause and the fix. Null-terminated; lives as long as this object.
  [[nodiscard]] const char* text() const noexcept { return text_.data(); }

 private:
  Status status_ = Status::kOk;
  int errno_ = 0;
  const char* call_ = "";
  std::array<char, kTextBytes> text_{};
};

/// One sentence about the last call that failed in this thread, among the calls that return a Status: the call, the
/// argument, and the fix. "" before any failed. Valid until the next call that fails in this thread. \thread any
[[nodiscard]] const char* error_detail() noexcept;

/// The result of a control-plane call: either a value or an Error.
template <class T>
using Result = std::expected<T, Error>;

}  // namespace verbena

#pragma GCC visibility pop
