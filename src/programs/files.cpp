#include "programs/files.hpp"

#include "base/error.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

namespace verbena::programs {

Result<std::size_t> read_up_to(int fd, std::string_view name, std::span<std::byte> out) {
  std::size_t length = 0;
  while (length < out.size()) {
    const ssize_t got = ::read(fd, out.data() + length, out.size() - length);
    if (got == 0) break;
    if (got < 0) {
      if (errno == EINTR) continue;
      return fail_system("read", errno, fmt::format("cannot read {}", name));
    }
    length += static_cast<std::size_t>(got);
  }
  return length;
}

Result<void> read_all(int fd, std::string_view name, std::size_t most, std::vector<std::byte>& out) {
  constexpr std::size_t kFirst = std::size_t{64} << 10;
  // One byte more than allowed is asked for: that is how a longer file shows.
  out.resize(std::min(std::max(kFirst, out.capacity()), most + 1));
  std::size_t length = 0;
  for (;;) {
    VERBENA_ASSIGN(const std::size_t got, read_up_to(fd, name, std::span(out).subspan(length)));
    length += got;
    if (length > most) {
      return fail(Status::kTooLong, "read", 0,
                  "{} has more than {} bytes, the server's limit of a value; raise it with serve --max-value-mib", name,
                  most);
    }
    if (length < out.size()) break;
    out.resize(std::min(out.size() * 2, most + 1));
  }
  out.resize(length);
  return {};
}

Result<void> write_all(int fd, std::string_view name, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0) {
      if (errno == EINTR) continue;
      return fail_system("write", errno, fmt::format("cannot write {}", name));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

Result<void> replace_file(const std::filesystem::path& path, std::string_view text) {
  std::string temporary = path.string() + ".XXXXXX";
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return fail_system("mkostemp", errno, fmt::format("cannot create {}", temporary));
  auto written = write_all(fd, temporary, std::as_bytes(std::span(text)));
  ::fchmod(fd, 0644);
  ::close(fd);
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0) {
    written = fail_system("rename", errno, fmt::format("cannot replace {}", path.string()));
  }
  if (!written) ::unlink(temporary.c_str());
  return written;
}

Result<OpenFile> OpenFile::open(const std::filesystem::path& path, Follow follow) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | (follow == Follow::kNo ? O_NOFOLLOW : 0);
  const int fd = ::open(path.c_str(), flags);
  if (fd < 0) return fail_system("open", errno, fmt::format("cannot open {}", path.string()));
  return OpenFile(fd);
}

OpenFile::OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

OpenFile::~OpenFile() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace verbena::programs
