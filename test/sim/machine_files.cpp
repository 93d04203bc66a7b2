// Files of simulated processes, by the names of src/base/files.hpp: below sim::kDiskRoot those of the process's disk.
// The map of pages says that each two pages are exchanged in physical memory, so that no two follow one another there
// as they do here. All others are real ones, which can be read alone: key files, and the kernel's own.
#include "simulated_files.hpp"
#include "tasks.hpp"

#include "base/check.hpp"
#include "base/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace verbena {

namespace {

using sim::Contents;
using sim::Disk;
using sim::Folder;
using sim::Tasks;

/// What a descriptor of a simulated file or directory stands for. The descriptor itself is one of /dev/null, so that
/// its number is nobody else's until it is closed; then the entry is of no use, until the number is given out again.
struct Opened {
  Disk* disk = nullptr;
  std::uint64_t start = 0;
  const sim::Process* process = nullptr;
  std::uint32_t incarnation = 0;
  std::shared_ptr<Contents> file;
  std::shared_ptr<Folder> folder;
  File::How how = File::How::kRead;
  bool is_page_map = false;
};
constexpr std::string_view kPageMap = "/proc/self/pagemap";

[[nodiscard]] std::map<int, Opened>& opened() noexcept {
  static std::map<int, Opened> all;
  return all;
}

/// Null: it is a real one's.
[[nodiscard]] Opened* find(const Fd& fd) noexcept {
  const auto found = opened().find(fd.get());
  return found != opened().end() ? &found->second : nullptr;
}

[[nodiscard]] Fd keep(Opened what) {
  Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  VERBENA_CHECK(fd);
  opened()[fd.get()] = std::move(what);
  return fd;
}

[[nodiscard]] bool is_simulated(std::string_view path) noexcept {
  return Tasks::is_inside() && path.starts_with(sim::kDiskRoot) && path.substr(sim::kDiskRoot.size()).starts_with('/');
}

/// Whether its process lives, and its host has not lost power since it was opened.
[[nodiscard]] bool is_alive(const Opened& what) noexcept {
  return what.process->state() != sim::Process::State::kDead && what.process->incarnation() == what.incarnation &&
         what.disk->starts() == what.start;
}

/// A call takes time, in which others go on. False: there is nobody any more whom it could tell its outcome.
[[nodiscard]] bool pass_time(const Opened& what, sim::Nanoseconds most) {
  if (!is_alive(what)) return false;
  Tasks& tasks = *Tasks::current();
  const char place = 0;
  (void)tasks.sleep(&place, tasks.now() + what.disk->world().random().between(most / 2, most));
  return is_alive(what);
}

[[nodiscard]] bool comes_up(const Opened& what, std::uint64_t one_in) noexcept {
  return one_in != 0 && what.disk->world().random().one_in(one_in);
}

[[nodiscard]] Opened open_on(Disk& disk) noexcept {
  const sim::Process& process = Tasks::current()->process();
  Opened what;
  what.disk = &disk;
  what.start = disk.starts();
  what.process = &process;
  what.incarnation = process.incarnation();
  return what;
}

/// Entries of 8 bytes, the first one of page number `page`, as the kernel has them for pages that are there.
void read_page_map(std::uint64_t page, std::span<std::byte> to) noexcept {
  constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
  for (; to.size() >= sizeof page; to = to.subspan(sizeof page)) {
    const std::uint64_t entry = kPresent | (page++ ^ 1);
    std::memcpy(to.data(), &entry, sizeof entry);
  }
}

/// Opens a simulated file: its errno, or 0.
[[nodiscard]] int open_simulated(Opened& what, const std::string& name, File::How how) {
  if (!pass_time(what, what.disk->times().call)) return EIO;
  what.how = how;
  what.file = what.folder->find(name);
  if (what.file != nullptr && how == File::How::kNew) return EEXIST;
  if (what.file == nullptr) {
    if (how == File::How::kRead) return ENOENT;
    what.file = std::make_shared<Contents>();
    what.folder->add(name, what.file, what.disk->next_stamp());
  }
  what.folder.reset();
  return 0;
}

}  // namespace

// --- files --------------------------------------------------------------------------------------------------------

Result<File> File::open(const char* path, How how) noexcept {
  const FileName name(path);
  if (is_simulated(path)) {
    const std::filesystem::path whole(path);
    auto directory = Directory::open(whole.parent_path().c_str());
    if (!directory) return name.fail("open", ENOENT);
    return directory->open_file(whole.filename().c_str(), how);
  }
  if (Tasks::is_inside() && path == kPageMap) {
    Opened what;
    what.is_page_map = true;
    return File(keep(std::move(what)), name);
  }
  return open_at(AT_FDCWD, path, how, name);
}

// Of real ones.
Result<File> File::open_at(int directory, const char* path, How how, const FileName& name) noexcept {
  VERBENA_CHECK(how == How::kRead);  // Nothing but what the simulation holds is changed by it.
  Fd fd(::openat(directory, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) return name.fail("open", errno);
  opened().erase(fd.get());
  return File(std::move(fd), name);
}

Result<File::Facts> File::facts() const noexcept {
  if (const Opened* const what = find(fd_)) {
    if (!is_alive(*what)) return name_.fail("fstat", EIO);
    return Facts{.bytes = what->file->bytes(), .mode = 0600, .owner = ::geteuid(), .is_regular = true};
  }
  struct stat facts{};
  if (::fstat(fd_.get(), &facts) != 0) return name_.fail("fstat", errno);
  return Facts{.bytes = static_cast<std::uint64_t>(facts.st_size),
               .mode = facts.st_mode & 07777U,
               .owner = facts.st_uid,
               .is_regular = S_ISREG(facts.st_mode)};
}

Result<std::size_t> File::read(std::uint64_t offset, std::span<std::byte> to) const noexcept {
  if (const Opened* const what = find(fd_)) {
    if (what->is_page_map) {
      read_page_map(offset / sizeof(std::uint64_t), to);
      return to.size();
    }
    if (!pass_time(*what, what->disk->times().call)) return name_.fail("read", EIO);
    return what->file->read(offset, to);
  }
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t count = ::pread(fd_.get(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (count < 0) return name_.fail("read", errno);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

Result<std::size_t> File::write_some(std::uint64_t offset, std::span<const std::byte> bytes) noexcept {
  Opened* const what = find(fd_);
  if (what == nullptr || what->how == How::kRead) return name_.fail("write", EBADF);
  if (!is_alive(*what)) return name_.fail("write", EIO);
  if (bytes.empty()) return std::size_t{0};
  sim::Random& random = what->disk->world().random();
  const Disk::Faults& faults = what->disk->faults();
  if (comes_up(*what, faults.no_space)) return name_.fail("write", ENOSPC);
  if (what->how == How::kAppend) offset = what->file->bytes();
  if (comes_up(*what, faults.short_write)) bytes = bytes.first(random.between(1, bytes.size()));
  // Some of it is there before the rest: for other processes, and for good where this one is killed.
  const std::size_t first = random.below(bytes.size() + 1);
  what->file->write(offset, bytes.first(first), what->disk->next_stamp());
  if (!pass_time(*what, what->disk->times().call)) return name_.fail("write", EIO);
  if (comes_up(*what, faults.failed_write)) return name_.fail("write", EIO);
  what->file->write(offset + first, bytes.subspan(first), what->disk->next_stamp());
  return bytes.size();
}

Result<void> File::sync() noexcept {
  Opened* const what = find(fd_);
  if (what == nullptr) return {};
  const std::uint64_t stamp = what->disk->last_stamp();
  if (!pass_time(*what, what->disk->times().sync)) return name_.fail("fdatasync", EIO);
  if (comes_up(*what, what->disk->faults().failed_sync)) {
    what->file->fail_sync(stamp, what->disk->world().random());
    return name_.fail("fdatasync", EIO);
  }
  what->file->sync(stamp);
  return {};
}

Result<void> File::truncate(std::uint64_t bytes) noexcept {
  Opened* const what = find(fd_);
  if (what == nullptr || what->how == How::kRead) return name_.fail("ftruncate", EINVAL);
  if (!pass_time(*what, what->disk->times().call)) return name_.fail("ftruncate", EIO);
  what->file->resize(bytes, what->disk->next_stamp());
  return {};
}

// --- directories: simulated ones alone ------------------------------------------------------------------------------

Result<Directory> Directory::open(const char* path) noexcept {
  const FileName name(path);
  Disk* const disk = is_simulated(path) ? Disk::of(Tasks::current()->process()) : nullptr;
  if (disk == nullptr) return name.fail("open", ENOENT);
  Opened what = open_on(*disk);
  if (!pass_time(what, disk->times().call)) return name.fail("open", EIO);
  what.folder = disk->find_directory(path);
  if (what.folder == nullptr) return name.fail("open", ENOENT);
  return Directory(keep(std::move(what)), name);
}

Result<File> Directory::open_file(const char* name, File::How how) const noexcept {
  const FileName whole(name_.text(), name);
  Opened what = *find(fd_);
  if (const int error = open_simulated(what, name, how); error != 0) return whole.fail("open", error);
  return File(keep(std::move(what)), whole);
}

Result<void> Directory::rename(const char* from, const char* to) noexcept {
  const Opened& what = *find(fd_);
  const FileName whole(name_.text(), from);
  if (!pass_time(what, what.disk->times().call)) return whole.fail("rename", EIO);
  if (what.folder->find(from) == nullptr) return whole.fail("rename", ENOENT);
  what.folder->rename(from, to, what.disk->next_stamp());
  return {};
}

Result<void> Directory::remove(const char* name) noexcept {
  const Opened& what = *find(fd_);
  const FileName whole(name_.text(), name);
  if (!pass_time(what, what.disk->times().call)) return whole.fail("unlink", EIO);
  if (what.folder->find(name) == nullptr) return whole.fail("unlink", ENOENT);
  what.folder->remove(name, what.disk->next_stamp());
  return {};
}

Result<std::vector<std::string>> Directory::names(std::size_t most) const {
  const Opened& what = *find(fd_);
  if (!pass_time(what, what.disk->times().call)) return name_.fail("readdir", EIO);
  std::vector<std::string> names;
  for (const auto& [name, file] : what.folder->entries())
    if (names.size() < most) names.push_back(name);
  return names;
}

Result<void> Directory::sync() noexcept {
  const Opened& what = *find(fd_);
  const std::uint64_t stamp = what.disk->last_stamp();
  if (!pass_time(what, what.disk->times().sync)) return name_.fail("fsync", EIO);
  if (comes_up(what, what.disk->faults().failed_sync)) {
    what.folder->fail_sync(stamp, what.disk->world().random());
    return name_.fail("fsync", EIO);
  }
  what.folder->sync(stamp);
  return {};
}

}  // namespace verbena
