// Files that outlive a process: read and written at an offset, and made durable. In a simulation, files below its root
// are those of simulated disks, behind the same names.
#pragma once

#include "base/fd.hpp"

#include <verbena/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena {

/// An error for a system call on a file that failed just now: names the file, the call and the errno, and the usual
/// fix. kNotFound (no such file or directory), kPermission (also: a read-only file system), kBusy (a file that must be
/// new is there), kLimit (no space, too many open files, a file too large), else kSystem. \thread any  \alloc none
[[nodiscard]] Error file_error(const char* call, int system_errno, std::string_view name) noexcept;

/// The path of a file, for its errors. Of a long one its end, which tells more.
class FileName {
 public:
  explicit FileName(std::string_view path, std::string_view name = {}) noexcept;
  [[nodiscard]] std::string_view text() const noexcept { return {text_.data(), size_}; }
  /// Makes the error of a failed call. \alloc none
  [[nodiscard]] std::unexpected<Error> fail(const char* call, int system_errno) const noexcept {
    return std::unexpected(file_error(call, system_errno, text()));
  }

 private:
  std::array<char, 152> text_{};
  std::size_t size_ = 0;
};

/// An open file, closed with this object. Every call but `open` is a system call or several; none buffers.
/// \thread any; calls of several threads that touch the same bytes are in no order  \alloc none
class File {
 public:
  enum class How : std::uint8_t {
    kRead,    ///< To read alone. It is there. The end of a pipe is not waited for.
    kWrite,   ///< To read and write. Made where it is missing.
    kNew,     ///< To read and write. It must not be there: kBusy.
    kAppend,  ///< To read and write, each write at the end, wherever its offset says. Made where it is missing.
  };
  struct Facts {
    std::uint64_t bytes = 0;
    std::uint32_t mode = 0;  ///< Permission bits, 07777 of them.
    std::uint32_t owner = 0;
    bool is_regular = false;
  };

  /// A new file is for its user alone (mode 0600). It is durable once its directory was synced, and what it holds once
  /// it was synced itself. Errors: those of file_error, as for all calls below.
  [[nodiscard]] static Result<File> open(const char* path, How how) noexcept;

  [[nodiscard]] const FileName& name() const noexcept { return name_; }
  [[nodiscard]] Result<Facts> facts() const noexcept;
  /// The bytes from `offset` on, as many as `to` takes; fewer at the end of the file alone.
  [[nodiscard]] Result<std::size_t> read(std::uint64_t offset, std::span<std::byte> to) const noexcept;
  /// How many of `bytes` were written, which may be fewer than all, and none only where there are none.
  [[nodiscard]] Result<std::size_t> write_some(std::uint64_t offset, std::span<const std::byte> bytes) noexcept;
  /// Writes all of `bytes`. After an error some of them may be written.
  [[nodiscard]] Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes) noexcept {
    while (!bytes.empty()) {
      const Result<std::size_t> written = write_some(offset, bytes);
      if (!written) return std::unexpected(written.error());
      offset += *written;
      bytes = bytes.subspan(*written);
    }
    return {};
  }
  /// Makes durable what was written before the call, and the size. After an error nobody knows what is durable, and a
  /// second call may succeed without making it so: write it anew, to another file.
  [[nodiscard]] Result<void> sync() noexcept;
  /// Cuts the file, or prolongs it with zeroes.
  [[nodiscard]] Result<void> truncate(std::uint64_t bytes) noexcept;

 private:
  friend class Directory;
  File(Fd fd, const FileName& name) noexcept : fd_(std::move(fd)), name_(name) {}
  [[nodiscard]] static Result<File> open_at(int directory, const char* path, How how, const FileName& name) noexcept;

  Fd fd_;
  FileName name_;
};

/// An open directory, whose files are called by names without a '/'. \thread any  \alloc none, but for `names`
class Directory {
 public:
  /// It is there. Errors: those of file_error, as for all calls below.
  [[nodiscard]] static Result<Directory> open(const char* path) noexcept;

  [[nodiscard]] Result<File> open_file(const char* name, File::How how) const noexcept;
  /// Replaces `to` if it is there: whoever opens it gets either file. Durable once the directory was synced; `from` is
  /// to be synced before, or `to` may be empty after a crash.
  [[nodiscard]] Result<void> rename(const char* from, const char* to) noexcept;
  [[nodiscard]] Result<void> remove(const char* name) noexcept;
  /// All but "." and "..", of directories too, in no order; `most` of them at most. \alloc
  [[nodiscard]] Result<std::vector<std::string>> names(std::size_t most) const;
  /// Makes durable which files are there by which names: what was made, renamed and removed before the call.
  [[nodiscard]] Result<void> sync() noexcept;

 private:
  Directory(Fd fd, const FileName& name) noexcept : fd_(std::move(fd)), name_(name) {}

  Fd fd_;
  FileName name_;
};

}  // namespace verbena
