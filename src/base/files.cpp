#include "base/files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

namespace verbena {

namespace {

[[nodiscard]] int flags_of(File::How how) noexcept {
  switch (how) {
    case File::How::kRead: return O_RDONLY;
    case File::How::kWrite: return O_RDWR | O_CREAT;
    case File::How::kNew: return O_RDWR | O_CREAT | O_EXCL;
    case File::How::kAppend: return O_RDWR | O_CREAT | O_APPEND;
  }
  return O_RDONLY;
}

/// Repeats `call` until no signal interrupts it.
template <class Call>
[[nodiscard]] auto uninterrupted(const Call& call) noexcept {
  for (;;)
    if (const auto result = call(); result >= 0 || errno != EINTR) return result;
}

}  // namespace

Result<File> File::open_at(int directory, const char* path, How how, const FileName& name) noexcept {
  constexpr int kAlways = O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  Fd fd(uninterrupted([&] { return ::openat(directory, path, flags_of(how) | kAlways, 0600); }));
  if (!fd) return name.fail("open", errno);
  return File(std::move(fd), name);
}

Result<File> File::open(const char* path, How how) noexcept { return open_at(AT_FDCWD, path, how, FileName(path)); }

Result<File::Facts> File::facts() const noexcept {
  struct stat facts{};
  if (::fstat(fd_.get(), &facts) != 0) return name_.fail("fstat", errno);
  return Facts{.bytes = static_cast<std::uint64_t>(facts.st_size),
               .mode = facts.st_mode & 07777U,
               .owner = facts.st_uid,
               .is_regular = S_ISREG(facts.st_mode)};
}

Result<std::size_t> File::read(std::uint64_t offset, std::span<std::byte> to) const noexcept {
  std::size_t done = 0;
  while (done < to.size()) {
    const auto at = static_cast<off_t>(offset + done);
    const ssize_t count = uninterrupted([&] { return ::pread(fd_.get(), to.data() + done, to.size() - done, at); });
    if (count < 0) return name_.fail("read", errno);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

Result<std::size_t> File::write_some(std::uint64_t offset, std::span<const std::byte> bytes) noexcept {
  const ssize_t count =
      uninterrupted([&] { return ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
  if (count < 0) return name_.fail("write", errno);
  // A caller that tried again would never come to an end.
  if (count == 0 && !bytes.empty()) return name_.fail("write", EIO);
  return static_cast<std::size_t>(count);
}

Result<void> File::sync() noexcept {
  // Not repeated after a signal: a second call might not report the failure again.
  if (::fdatasync(fd_.get()) != 0) return name_.fail("fdatasync", errno);
  return {};
}

Result<void> File::truncate(std::uint64_t bytes) noexcept {
  if (uninterrupted([&] { return ::ftruncate(fd_.get(), static_cast<off_t>(bytes)); }) != 0)
    return name_.fail("ftruncate", errno);
  return {};
}

Result<Directory> Directory::open(const char* path) noexcept {
  const FileName name(path);
  Fd fd(uninterrupted([&] { return ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd) return name.fail("open", errno);
  return Directory(std::move(fd), name);
}

Result<File> Directory::open_file(const char* name, File::How how) const noexcept {
  return File::open_at(fd_.get(), name, how, FileName(name_.text(), name));
}

Result<void> Directory::rename(const char* from, const char* to) noexcept {
  if (::renameat(fd_.get(), from, fd_.get(), to) != 0) return FileName(name_.text(), from).fail("rename", errno);
  return {};
}

Result<void> Directory::remove(const char* name) noexcept {
  if (::unlinkat(fd_.get(), name, 0) != 0) return FileName(name_.text(), name).fail("unlink", errno);
  return {};
}

Result<std::vector<std::string>> Directory::names(std::size_t most) const {
  struct Close {
    void operator()(DIR* stream) const noexcept { ::closedir(stream); }
  };
  // A new descriptor, which begins at the first name.
  Fd again(uninterrupted([&] { return ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!again) return name_.fail("open", errno);
  const std::unique_ptr<DIR, Close> stream(::fdopendir(again.get()));
  if (stream == nullptr) return name_.fail("fdopendir", errno);
  (void)again.release();
  std::vector<std::string> names;
  while (names.size() < most) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (entry == nullptr && errno != 0) return name_.fail("readdir", errno);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

Result<void> Directory::sync() noexcept {
  if (::fsync(fd_.get()) != 0) return name_.fail("fsync", errno);
  return {};
}

}  // namespace verbena
