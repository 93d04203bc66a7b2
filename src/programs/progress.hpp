// A progress bar on stderr, only when that is a terminal.
#pragma once

#include <verbena/deadline.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace verbena::programs {

/// The text of a bar, at most `width` columns: "load [#####.....]  50 %  note".
[[nodiscard]] std::string bar_text(std::string_view label, double fraction, std::string_view note, std::size_t width);

/// Draws at most ten times a second; cheap to call after every operation. \thread owner
class Progress {
 public:
  explicit Progress(std::string label);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }

  /// Whether there is a terminal for it.
  [[nodiscard]] bool is_shown() const noexcept { return enabled_; }
  /// Whether it is time to draw; otherwise skip making the note.
  [[nodiscard]] bool due() noexcept;
  /// `fraction` is 0 to 1.
  void draw(double fraction, std::string_view note);
  /// Removes the bar, so that a line of text can follow.
  void clear() noexcept;

 private:
  std::string label_;
  bool enabled_;
  bool drawn_ = false;
  Deadline next_ = Deadline::now();
};

}  // namespace verbena::programs
