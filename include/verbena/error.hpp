// Errors of the control plane: what failed, where, errno, and a sentence with the fix, without heap.
#pragma once

#include <verbena/status.hpp>

#include <array>
#include <expected>
#include <string_view>

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

  /// What it came to, which is what a program decides by.
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

/// What a control-plane call returns: the thing, or why there is none.
template <class T>
using Result = std::expected<T, Error>;

}  // namespace verbena
