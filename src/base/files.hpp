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

/// An error for a system call on a file that has just failed: names the file, the call, the errno and the usual fix.
/// kNotFound (no such file or directory), kPermission (also: a read-only file system), kBusy (a file that must be new
/// is there), kLimit (no space, too many open files, a file too large), else kSystem. \thread any  \alloc none
[[nodiscard]] Error file_error(const char* call, int system_errno, std::string_view name) noexcept;

/// The path of a file, for its errors. Keeps the end of a long one, which tells more.
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
    kRead,    ///< Read-only. The file must exist. Opening a pipe does not wait for its other end.
    kWrite,   ///< Read and write. Created if it is missing.
    kNew,     ///< Read and write. The file must not exist, else kBusy.
    kAppend,  ///< Read and write; each write goes to the end, whatever its offset. Created if it is missing.
  };
  struct Facts {
    std::uint64_t bytes = 0;
    std::uint32_t mode = 0;  ///< Permission bits, 07777 of them.
    std::uint32_t owner = 0;
    bool is_regular = false;
  };

  /// Only its user can use a new file (mode 0600). A new file is durable once its directory has been synced, and its
  /// contents once the file has been synced. Errors: those of file_error, as for all calls below.
  [[nodiscard]] static Result<File> open(const char* path, How how) noexcept;

  [[nodiscard]] const FileName& name() const noexcept { return name_; }
  [[nodiscard]] Result<Facts> facts() const noexcept;
  /// Reads from `offset` on until `to` is full. Returns fewer bytes only at the end of the file.
  [[nodiscard]] Result<std::size_t> read(std::uint64_t offset, std::span<std::byte> to) const noexcept;
  /// Returns how many of `bytes` were written: perhaps fewer than all, but 0 only if `bytes` is empty.
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
  /// Makes durable what was written before the call, and the size. After an error it is unknown what is durable, and a
  /// second call may succeed without making it so: write everything again, to another file.
  [[nodiscard]] Result<void> sync() noexcept;
  /// Cuts the file, or extends it with zeros.
  [[nodiscard]] Result<void> truncate(std::uint64_t bytes) noexcept;

 private:
  friend class Directory;
  File(Fd fd, const FileName& name) noexcept : fd_(std::move(fd)), name_(name) {}
  [[nodiscard]] static Result<File> open_at(int directory, const char* path, How how, const FileName& name) noexcept;

  Fd fd_;
  FileName name_;
};

/// An open directory. Names of its files have no '/'. \thread any  \alloc none, but for `names`
class Directory {
 public:
  /// The directory must exist. Errors: those of file_error, as for all calls below.
  [[nodiscard]] static Result<Directory> open(const char* path) noexcept;

  [[nodiscard]] Result<File> open_file(const char* name, File::How how) const noexcept;
  /// Replaces `to` if it exists; a reader that opens it gets one file or the other. Durable once the directory has been
  /// synced. Sync `from` first, or `to` may be empty after a crash.
  [[nodiscard]] Result<void> rename(const char* from, const char* to) noexcept;
  [[nodiscard]] Result<void> remove(const char* name) noexcept;
  /// Names of files and directories except "." and "..", at most `most`, in no order. \alloc
  [[nodiscard]] Result<std::vector<std::string>> names(std::size_t most) const;
  /// Makes durable what was created, renamed and removed in the directory before the call.
  [[nodiscard]] Result<void> sync() noexcept;

 private:
  Directory(Fd fd, const FileName& name) noexcept : fd_(std::move(fd)), name_(name) {}

  Fd fd_;
  FileName name_;
};

}  // namespace verbena
