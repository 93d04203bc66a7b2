// Lines from a person (libedit: editing and history) or from a script.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace verbena::programs {

/// Reads lines of stdin, with editing and a history of this session when stdin is a terminal. \thread owner
class LineEditor {
 public:
  /// `prompt` has static storage.
  [[nodiscard]] static std::unique_ptr<LineEditor> create(const char* name, const char* prompt);
  virtual ~LineEditor() = default;
  /// The next line without its end; nothing at the end of input. A line given up with ^C is empty.
  [[nodiscard]] virtual std::optional<std::string> next() = 0;
  [[nodiscard]] virtual bool interactive() const noexcept = 0;
};

}  // namespace verbena::programs
