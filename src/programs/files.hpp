// Whole files in and out, for values.
#pragma once

#include <verbena/error.hpp>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// Reads `fd` to its end into `out`, whose memory is kept. kTooLong when there are more than `most` bytes; `name`
/// is for the message. \thread owner of `out`
[[nodiscard]] Result<void> read_all(int fd, std::string_view name, std::size_t most, std::vector<std::byte>& out);

/// Reads up to out.size() bytes of `fd`; less only at its end.
[[nodiscard]] Result<std::size_t> read_up_to(int fd, std::string_view name, std::span<std::byte> out);

/// Writes everything to `fd`.
[[nodiscard]] Result<void> write_all(int fd, std::string_view name, std::span<const std::byte> bytes);

/// Replaces `path` by `text` at once: a reader sees the whole text or none of it.
[[nodiscard]] Result<void> replace_file(const std::filesystem::path& path, std::string_view text);

/// An open file. Move-only.
class OpenFile {
 public:
  /// Reads only; a symbolic link as the last component is refused when `follow` is kNo.
  enum class Follow { kNo, kYes };
  [[nodiscard]] static Result<OpenFile> open(const std::filesystem::path& path, Follow follow);
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;
  ~OpenFile();
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  explicit OpenFile(int fd) noexcept : fd_(fd) {}
  int fd_;
};

}  // namespace verbena::programs
