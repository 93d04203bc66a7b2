#include "programs/progress.hpp"

#include <fmt/core.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace verbena::programs {
namespace {

std::size_t terminal_columns() noexcept {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0 ? size.ws_col : kUsual;
}

}  // namespace

std::string bar_text(std::string_view label, double fraction, std::string_view note, std::size_t width) {
  const double part = std::clamp(fraction, 0.0, 1.0);
  const std::string tail = fmt::format("] {:3.0f} %  {}", part * 100, note);
  std::string text = fmt::format("{} [", label);
  const std::size_t taken = text.size() + tail.size();
  const std::size_t cells = taken + 4 > width ? 0 : std::min<std::size_t>(40, width - taken);
  const auto filled = static_cast<std::size_t>(part * static_cast<double>(cells));
  text.append(filled, '#').append(cells - filled, '.').append(tail);
  if (text.size() > width) text.resize(width);
  return text;
}

Progress::Progress(std::string label) : label_(std::move(label)), enabled_(::isatty(STDERR_FILENO) == 1) {}

bool Progress::due() noexcept { return enabled_ && next_.passed(); }

void Progress::draw(double fraction, std::string_view note) {
  if (!enabled_) return;
  next_ = Deadline::after(std::chrono::milliseconds{100});
  const std::string text = bar_text(label_, fraction, note, terminal_columns() - 1);
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() noexcept {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace verbena::programs
