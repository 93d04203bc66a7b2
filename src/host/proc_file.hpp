// Reading the kernel's small text files.
#pragma once

#include "base/error.hpp"
#include "base/files.hpp"

#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace verbena::host {

/// Formats into an array, cut at its end.
template <std::size_t N, class... Args>
void print(char (&to)[N], fmt::format_string<Args...> format, Args&&... args) noexcept {
  *fmt::format_to_n(to, N - 1, format, std::forward<Args>(args)...).out = '\0';
}

/// The path of a kernel file, cut if it is too long.
struct KernelPath {
  template <class... Args>
  explicit KernelPath(fmt::format_string<Args...> format, Args&&... args) noexcept {
    print(text, format, std::forward<Args>(args)...);
  }
  char text[1024];
};

/// The lines of a file, with their ends. A line of more than 1024 bytes comes in parts.
class Lines {
 public:
  /// Has no lines if the file cannot be opened.
  explicit Lines(const char* path) noexcept : file_(File::open(path, File::How::kRead)) {}
  /// Returns the next line, valid until the next call; empty: there are no more.
  [[nodiscard]] std::string_view next() noexcept {
    std::string_view left = std::string_view(buffer_, size_).substr(taken_);
    if (!left.contains('\n')) left = read_behind(left);
    const std::size_t end = left.find('\n');
    const std::string_view line = left.substr(0, end == std::string_view::npos ? end : end + 1);
    taken_ += line.size();
    return line;
  }

 private:
  /// Returns `left` followed by the file's next bytes.
  [[nodiscard]] std::string_view read_behind(std::string_view left) noexcept {
    std::memmove(buffer_, left.data(), left.size());
    size_ = left.size();
    taken_ = 0;
    const std::span<std::byte> room = std::as_writable_bytes(std::span(buffer_)).subspan(size_);
    const std::size_t got = file_ ? file_->read(offset_, room).value_or(0) : 0;
    offset_ += got;
    size_ += got;
    return {buffer_, size_};
  }

  Result<File> file_;
  std::uint64_t offset_ = 0;
  std::size_t taken_ = 0;
  std::size_t size_ = 0;
  char buffer_[1024];
};

/// Calls visit(line) for the lines of a file, until it returns false.
template <class Visit>
void for_each_line(const char* path, Visit&& visit) {
  Lines lines(path);
  for (auto line = lines.next(); !line.empty() && visit(line); line = lines.next()) {}
}

/// The first decimal number in `text`. Empty if there is none, or it does not fit.
[[nodiscard]] inline std::optional<std::uint64_t> first_number(std::string_view text) noexcept {
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && !is_digit(text.front())) text.remove_prefix(1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

/// The number in a file of one line. Empty if the file cannot be read or has a word ("max").
[[nodiscard]] inline std::optional<std::uint64_t> number_in_file(const char* path) noexcept {
  std::optional<std::uint64_t> number;
  for_each_line(path, [&](std::string_view line) {
    number = first_number(line);
    return false;
  });
  return number;
}
[[nodiscard]] inline std::optional<std::uint64_t> number_in_file(const KernelPath& path) noexcept {
  return number_in_file(path.text);
}

/// Sum of the numbers on the lines of `path` that start with `prefix` and one of `keys`. Empty if there is no such
/// line.
template <std::size_t N>
[[nodiscard]] std::optional<std::uint64_t> sum_of_lines(const char* path, const std::string_view (&keys)[N],
                                                        std::string_view prefix = {}) noexcept {
  std::optional<std::uint64_t> sum;
  for_each_line(path, [&](std::string_view text) {
    if (!text.starts_with(prefix)) return true;
    text.remove_prefix(prefix.size());
    for (const std::string_view key : keys) {
      if (!text.starts_with(key)) continue;
      // Skips the key, which may have a digit.
      if (const auto value = first_number(text.substr(key.size()))) sum = sum.value_or(0) + *value;
    }
    return true;
  });
  return sum;
}

}  // namespace verbena::host
