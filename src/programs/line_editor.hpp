// Lines from a user (libedit: editing and history) or from a script.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace verbena::programs {

/// Reads lines of stdin; with editing and a session history if stdin is a terminal. \thread owner
class LineEditor {
 public:
  /// `prompt` must have static storage.
  [[nodiscard]] static std::unique_ptr<LineEditor> create(const char* name, const char* prompt);
  virtual ~LineEditor() = default;
  /// The next line without its line break; nothing at the end of input. A line cancelled with ^C is empty.
  [[nodiscard]] virtual std::optional<std::string> next() = 0;
  [[nodiscard]] virtual bool interactive() const noexcept = 0;
};

}  // namespace verbena::programs
