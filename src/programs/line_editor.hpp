// Lines from a user (libedit: editing and history) or from a script.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// Reads lines of stdin; with editing, history and completion if stdin is a terminal. \thread owner
class LineEditor {
 public:
  /// The words that the last word of the text may become.
  using Complete = std::function<std::vector<std::string>(std::string_view)>;
  struct Options {
    const char* name;        ///< The program's, for the user's own key bindings. Static storage.
    const char* prompt;      ///< Static storage.
    std::string history;     ///< File that keeps the lines from session to session; empty: none.
    Complete complete = {};  ///< Called by Tab.
  };
  [[nodiscard]] static std::unique_ptr<LineEditor> create(Options options);
  virtual ~LineEditor() = default;
  /// The next line without its line break; nothing at the end of input. A line cancelled with ^C is empty.
  [[nodiscard]] virtual std::optional<std::string> next() = 0;
  [[nodiscard]] virtual bool interactive() const noexcept = 0;
};

}  // namespace verbena::programs
