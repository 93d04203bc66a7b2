// The kernel's small files below a root directory. Each is read as if it were hostile: a bounded part, without
// blocking.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// Reads sysfs, procfs and /dev below a root directory. Anything missing, unreadable or not a regular file counts as
/// absent. Paths are relative to the root, without a leading slash. \thread any
class SystemFiles {
 public:
  explicit SystemFiles(std::filesystem::path root = "/") : root_(std::move(root)) {}

  /// The first 64 KiB of a file, unchanged.
  [[nodiscard]] std::optional<std::string> text(std::string_view path) const;
  /// Its first line without surrounding blanks, cut at 160 bytes; '?' replaces anything but printable ASCII. Empty if
  /// there is none.
  [[nodiscard]] std::string line(std::string_view path) const;
  /// Its first line as a decimal number.
  [[nodiscard]] std::optional<std::int64_t> number(std::string_view path) const;
  /// Names in a directory in numeric, then alphabetic order, at most 4096; skips names that are not printable.
  [[nodiscard]] std::vector<std::string> names(std::string_view path) const;
  [[nodiscard]] bool exists(std::string_view path) const;
  /// Whether this process may open it for reading and writing.
  [[nodiscard]] bool may_open(std::string_view path) const;
  /// The path in the real file system.
  [[nodiscard]] std::filesystem::path full(std::string_view path) const { return root_ / path; }

 private:
  std::filesystem::path root_;
};

/// `text` as a decimal number; empty if it is anything else.
[[nodiscard]] std::optional<std::int64_t> whole_number(std::string_view text) noexcept;
/// `number` if it is there and not negative.
[[nodiscard]] std::optional<std::uint64_t> natural(std::optional<std::int64_t> number) noexcept;
/// `text` without blanks at its ends.
[[nodiscard]] std::string_view without_blanks(std::string_view text) noexcept;
/// The words of `text` between blanks.
[[nodiscard]] std::vector<std::string_view> words_of(std::string_view text);
/// `text` cut at 160 bytes; '?' replaces anything but printable ASCII, so it is safe on a terminal.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace verbena::programs
