// A memcached client as plain as can be: blocking text protocol over a Unix socket, one request at a time.
// usage: memcached_client SOCKET SECONDS VALUE_BYTES        prints one JSON object
// It has no library between it and the socket, so it is the fastest such client, and the comparison is fair.
#include "programs/exit_code.hpp"
#include "programs/files.hpp"
#include "programs/histogram.hpp"

#include "base/error.hpp"

#include <verbena/deadline.hpp>

#include <fmt/format.h>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using verbena::fail;
using verbena::fail_system;
using verbena::Result;
using verbena::Status;
using verbena::ticks_now;
using verbena::ticks_per_us;
using verbena::programs::Histogram;
using verbena::programs::quoted_bytes;

constexpr std::size_t kKeys = 10'000;

class Memcached {
 public:
  Memcached() = default;
  Memcached(const Memcached&) = delete;
  Memcached& operator=(const Memcached&) = delete;
  ~Memcached() {
    if (fd_ >= 0) ::close(fd_);
  }

  Result<void> connect(const char* path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (std::strlen(path) >= sizeof address.sun_path) {
      return fail(Status::kBadArgument, "connect", 0, "{}: the path is too long for a Unix socket", path);
    }
    std::strcpy(address.sun_path, path);
    fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd_ < 0) return fail_system("socket", errno, "cannot make a socket");
    // No answer within this time ends the program instead of blocking it.
    const timeval patience{.tv_sec = 5, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return fail_system("connect", errno, fmt::format("cannot connect to {}", path));
    }
    return {};
  }

  Result<void> set(std::string_view key, std::string_view value) {
    request_.clear();
    fmt::format_to(std::back_inserter(request_), "set {} 0 0 {}\r\n", key, value.size());
    request_.append(value).append("\r\n");
    return exchange("STORED\r\n", std::string_view("STORED\r\n").size());
  }

  Result<void> get(std::string_view key, std::size_t value_bytes) {
    request_.clear();
    fmt::format_to(std::back_inserter(request_), "get {}\r\n", key);
    const std::string head = fmt::format("VALUE {} 0 {}\r\n", key, value_bytes);
    return exchange(head, head.size() + value_bytes + std::string_view("\r\nEND\r\n").size());
  }

 private:
  /// Sends request_ and reads an answer of `length` bytes that begins with `head`.
  Result<void> exchange(std::string_view head, std::size_t length) {
    VERBENA_TRY(verbena::programs::write_all(fd_, "the socket", std::as_bytes(std::span(request_))));
    if (answer_.size() < length) answer_.resize(length);
    std::size_t have = 0;
    while (have < length) {
      const ssize_t got = ::read(fd_, answer_.data() + have, length - have);
      if (got <= 0) return fail_system("read", got == 0 ? ECONNRESET : errno, "memcached did not answer");
      have += static_cast<std::size_t>(got);
      const std::size_t seen = std::min(have, head.size());
      if (std::string_view(answer_.data(), seen) != head.substr(0, seen)) {
        return fail(Status::kProtocol, "read", 0, "memcached said {} where {} was expected",
                    quoted_bytes({answer_.data(), have}), quoted_bytes(head));
      }
    }
    return {};
  }

  int fd_ = -1;
  std::string request_;
  std::vector<char> answer_;
};

std::string key_of(std::size_t index) { return fmt::format("{:016x}", index); }

struct Figures {
  Histogram latency;
  double seconds = 0;
};

template <class Operation>
Result<void> measure(double seconds, Figures& figures, Operation&& operation) {
  const std::uint64_t start = ticks_now();
  const std::uint64_t end = start + static_cast<std::uint64_t>(seconds * 1e6 * ticks_per_us());
  std::uint64_t index = 0;
  for (std::uint64_t begin = start; begin < end; begin = ticks_now()) {
    index = (index * 6364136223846793005U + 1442695040888963407U);
    VERBENA_TRY(operation(key_of((index >> 33) % kKeys)));
    figures.latency.record(ticks_now() - begin);
  }
  figures.seconds = static_cast<double>(ticks_now() - start) / ticks_per_us() / 1e6;
  return {};
}

std::string json(const Figures& figures) {
  const auto ns = [](std::uint64_t ticks) { return static_cast<double>(ticks) / ticks_per_us() * 1e3; };
  const Histogram& l = figures.latency;
  return fmt::format(R"({{"count":{},"ops_per_s":{:.1f},"p50_ns":{:.1f},"p99_ns":{:.1f},"max_ns":{:.1f}}})", l.count(),
                     static_cast<double>(l.count()) / figures.seconds, ns(l.percentile(50)), ns(l.percentile(99)),
                     ns(l.max()));
}

Result<void> run(const char* path, double seconds, std::size_t value_bytes) {
  Memcached server;
  VERBENA_TRY(server.connect(path));
  const std::string value(value_bytes, 'v');
  for (std::size_t i = 0; i < kKeys; ++i) VERBENA_TRY(server.set(key_of(i), value));
  auto gets = std::make_unique<Figures>(), sets = std::make_unique<Figures>();
  VERBENA_TRY(measure(seconds / 2, *gets, [&](const std::string& key) { return server.get(key, value_bytes); }));
  VERBENA_TRY(measure(seconds / 2, *sets, [&](const std::string& key) { return server.set(key, value); }));
  fmt::print("{{\"get\":{},\"set\":{}}}\n", json(*gets), json(*sets));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: memcached_client SOCKET SECONDS VALUE_BYTES\n");
    return 2;
  }
  const auto done = run(argv[1], std::strtod(argv[2], nullptr), std::strtoul(argv[3], nullptr, 10));
  if (done) return 0;
  fmt::print(stderr, "memcached_client: {}\n", done.error().text());
  return 3;
}
