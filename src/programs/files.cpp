#include "programs/files.hpp"

#include "base/error.hpp"
#include "base/text.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

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
  // Asks for one byte more than allowed, to detect a longer file.
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

Result<void> check_replaceable(const std::filesystem::path& path) {
  struct stat there{};
  if (::lstat(path.c_str(), &there) != 0) {
    if (errno == ENOENT) return {};
    return fail_system("lstat", errno, fmt::format("cannot look at {}", path.string()));
  }
  if (S_ISREG(there.st_mode)) return {};
  return fail(Status::kBadArgument, "lstat", 0,
              "{} exists and is not a regular file: name a regular file, or a new one", path.string());
}

Result<void> replace_file(const std::filesystem::path& path, std::string_view text) {
  VERBENA_TRY(check_replaceable(path));
  std::string temporary = path.string() + ".XXXXXX";
  const Fd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return fail_system("mkostemp", errno, fmt::format("cannot create {}", temporary));
  auto written = write_all(fd.get(), temporary, bytes_of_text(text));
  ::fchmod(fd.get(), 0644);
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0) {
    written = fail_system("rename", errno, fmt::format("cannot replace {}", path.string()));
  }
  if (!written) ::unlink(temporary.c_str());
  return written;
}

Result<Fd> open_file(const std::filesystem::path& path, Follow follow) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | (follow == Follow::kNo ? O_NOFOLLOW : 0)));
  if (!fd) return fail_system("open", errno, fmt::format("cannot open {}", path.string()));
  return fd;
}

std::string endpoint(std::string_view address, std::uint16_t port) {
  if (address.empty()) return fmt::format("this host, port {}", port);
  const bool is_ipv6 = address.find(':') != std::string_view::npos;
  return is_ipv6 ? fmt::format("[{}]:{}", address, port) : fmt::format("{}:{}", address, port);
}

kv::Outcome get_whole(kv::Client& client, std::string_view key, std::vector<std::byte>& value) {
  constexpr std::size_t kFirst = std::size_t{16} << 10;
  constexpr int kAttempts = 8;  // A longer value may replace it between two attempts, but not for ever.
  if (value.size() < kFirst) value.resize(kFirst);
  kv::Outcome outcome;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    outcome = client.get(bytes_of_text(key), value);
    if (outcome.status != Status::kBufferTooSmall || outcome.length <= value.size()) break;
    if (outcome.length > client.max_value_bytes()) return {.status = Status::kProtocol};
    value.resize(outcome.length);
  }
  return outcome;
}

Result<void> read_file(const std::filesystem::path& path, std::size_t most, std::vector<std::byte>& out) {
  VERBENA_ASSIGN(const Fd file, open_file(path, Follow::kYes));
  return read_all(file.get(), path.string(), most, out);
}

}  // namespace verbena::programs
