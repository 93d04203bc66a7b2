// The kernel's small files below a root directory. Each is read as if it were hostile: a bounded part, without waiting.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// Reads sysfs, procfs and /dev below a root directory. What is missing, unreadable or no regular file is simply not
/// there. Paths are relative to the root, without a leading slash. \thread any
class SystemFiles {
 public:
  explicit SystemFiles(std::filesystem::path root = "/") : root_(std::move(root)) {}

  /// The first 64 KiB of a file, as they are.
  [[nodiscard]] std::optional<std::string> text(std::string_view path) const;
  /// Its first line without the blanks around it, cut at 160 bytes; what is not printable ASCII becomes '?'. Empty when
  /// there is none.
  [[nodiscard]] std::string line(std::string_view path) const;
  /// The decimal number that its first line consists of.
  [[nodiscard]] std::optional<std::int64_t> number(std::string_view path) const;
  /// Names in a directory in numeric, then alphabetic order, 4096 at most; names that are not printable are left out.
  [[nodiscard]] std::vector<std::string> names(std::string_view path) const;
  [[nodiscard]] bool exists(std::string_view path) const;
  /// Whether this process may open it for reading and writing.
  [[nodiscard]] bool may_open(std::string_view path) const;
  /// Where the path is in the real file system.
  [[nodiscard]] std::filesystem::path full(std::string_view path) const { return root_ / path; }

 private:
  std::filesystem::path root_;
};

/// The decimal number that `text` consists of; empty when it is anything else.
[[nodiscard]] std::optional<std::int64_t> whole_number(std::string_view text) noexcept;
/// A number that is there and not negative.
[[nodiscard]] std::optional<std::uint64_t> natural(std::optional<std::int64_t> number) noexcept;
/// `text` without blanks at its ends.
[[nodiscard]] std::string_view without_blanks(std::string_view text) noexcept;
/// The words of `text` between blanks.
[[nodiscard]] std::vector<std::string_view> words_of(std::string_view text);
/// `text` cut at 160 bytes, with '?' for what is not printable ASCII: safe on a terminal.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace verbena::programs
