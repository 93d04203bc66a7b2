// What the library has told its log.
#pragma once

#include "mailbox.hpp"

#include <verbena/log.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace verbena::test {

/// Lines as they came, from any thread.
class Lines {
 public:
  struct Line {
    verbena_log_level level;
    std::string text;
    std::thread::id thread;
  };
  explicit Lines(verbena_log_level least) { verbena_set_log(take, this, least); }
  ~Lines() { verbena_set_log(nullptr, nullptr, VERBENA_LOG_INFO); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  /// Those that begin so.
  [[nodiscard]] std::vector<Line> with(std::string_view beginning) const {
    const std::lock_guard lock(mutex_);
    std::vector<Line> found;
    std::ranges::copy_if(lines_, std::back_inserter(found),
                         [&](const Line& line) { return line.text.starts_with(beginning); });
    return found;
  }
  [[nodiscard]] std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return lines_.size();
  }
  /// Waits for the next line that begins so.
  [[nodiscard]] Line next(std::string_view beginning) {
    for (;;) {
      Line line = arrived_.take();
      if (line.text.empty() || line.text.starts_with(beginning)) return line;
    }
  }

  /// All of them, for the message of a test that fails.
  friend std::ostream& operator<<(std::ostream& out, const Lines& lines) {
    const std::lock_guard lock(lines.mutex_);
    for (const Line& line : lines.lines_) out << line.text << '\n';
    return out;
  }

 private:
  static void take(verbena_log_level level, const char* line, void* user) {
    auto* const self = static_cast<Lines*>(user);
    const Line taken{.level = level, .text = line, .thread = std::this_thread::get_id()};
    {
      const std::lock_guard lock(self->mutex_);
      self->lines_.push_back(taken);
    }
    self->arrived_.put(taken);
  }
  mutable std::mutex mutex_;
  std::vector<Line> lines_;
  Mailbox<Line> arrived_;
};

}  // namespace verbena::test
