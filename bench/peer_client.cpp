// A client of memcached and of Redis as plain as can be: their text protocols over a Unix socket, one call at a time.
// usage: peer_client PROTOCOL SOCKET CALL SECONDS VALUE_BYTES KEYS BATCH [filled]       prints one JSON object
//        peer_client memcached SOCKET held VALUE_BYTES MIB
//        peer_client verbena PORT held VALUE_BYTES MIB
//   PROTOCOL CALL: memcached get | set; redis get | set | mget | mset
// A call is of BATCH keys out of KEYS, chosen uniformly, all of which are stored first, unless they are there
// (`filled`). With more than one, memcached's get is its multi-get and its set is quiet but for the last one; Redis's
// get and set are pipelined, and mget and mset are one command. Each answer is known beforehand, so that nothing is
// parsed and nothing is allocated: there is no faster such client, which makes the comparison fair. All of an answer's
// bytes are compared. `held` fills an empty server of MIB until it is full, and prints how much of that are keys and
// values.
#include "programs/bench_keys.hpp"
#include "programs/exit_code.hpp"
#include "programs/files.hpp"
#include "programs/histogram.hpp"

#include "base/error.hpp"

#include <verbena/deadline.hpp>
#include <verbena/kv.hpp>

#include <fmt/core.h>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
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
using verbena::programs::BenchKeys;
using verbena::programs::Histogram;
using verbena::programs::quoted_bytes;
using verbena::programs::Random;

constexpr std::size_t kKeyBytes = 16;

/// A call as its protocol has it: what is sent, and what the answer is if all is well.
struct Call {
  std::string request, answer;
};
using Keys = std::span<const std::string_view>;
using Build = void (*)(Call& call, Keys keys, std::string_view value);

void memcached_get(Call& call, Keys keys, std::string_view value) {
  call.request = "get";
  for (const std::string_view key : keys) {
    call.request.append(" ").append(key);
    call.answer.append("VALUE ").append(key).append(" 0 ");
    fmt::format_to(std::back_inserter(call.answer), "{}\r\n", value.size());
    call.answer.append(value).append("\r\n");
  }
  call.request += "\r\n";
  call.answer += "END\r\n";
}

void memcached_set(Call& call, Keys keys, std::string_view value) {
  for (const std::string_view key : keys) {
    const bool is_last = key.data() == keys.back().data();
    call.request.append("set ").append(key).append(" 0 0 ");
    fmt::format_to(std::back_inserter(call.request), "{}{}\r\n", value.size(), is_last ? "" : " noreply");
    call.request.append(value).append("\r\n");
  }
  call.answer = "STORED\r\n";
}

/// A string of Redis: its length, then its bytes.
void append_bulk(std::string& to, std::string_view bytes) {
  fmt::format_to(std::back_inserter(to), "${}\r\n", bytes.size());
  to.append(bytes).append("\r\n");
}

void redis_get(Call& call, Keys keys, std::string_view value) {
  for (const std::string_view key : keys) {
    call.request += "*2\r\n$3\r\nGET\r\n";
    append_bulk(call.request, key);
    append_bulk(call.answer, value);
  }
}

void redis_set(Call& call, Keys keys, std::string_view value) {
  for (const std::string_view key : keys) {
    call.request += "*3\r\n$3\r\nSET\r\n";
    append_bulk(call.request, key);
    append_bulk(call.request, value);
    call.answer += "+OK\r\n";
  }
}

void redis_mget(Call& call, Keys keys, std::string_view value) {
  call.request = fmt::format("*{}\r\n$4\r\nMGET\r\n", keys.size() + 1);
  call.answer = fmt::format("*{}\r\n", keys.size());
  for (const std::string_view key : keys) {
    append_bulk(call.request, key);
    append_bulk(call.answer, value);
  }
}

void redis_mset(Call& call, Keys keys, std::string_view value) {
  call.request = fmt::format("*{}\r\n$4\r\nMSET\r\n", 2 * keys.size() + 1);
  for (const std::string_view key : keys) {
    append_bulk(call.request, key);
    append_bulk(call.request, value);
  }
  call.answer = "+OK\r\n";
}

struct Known {
  std::string_view protocol, name;
  Build build;
  Build fill;  ///< How keys are stored beforehand.
};
constexpr Known kKnown[] = {
    {"memcached", "get", memcached_get, memcached_set},
    {"memcached", "set", memcached_set, memcached_set},
    {"redis", "get", redis_get, redis_mset},
    {"redis", "set", redis_set, redis_mset},
    {"redis", "mget", redis_mget, redis_mset},
    {"redis", "mset", redis_mset, redis_mset},
};

class Connection {
 public:
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
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

  /// Sends the request and reads the answer, which must be the call's.
  Result<void> exchange(const Call& call) {
    VERBENA_TRY(verbena::programs::write_all(fd_, "the socket", std::as_bytes(std::span(call.request))));
    const std::size_t length = call.answer.size();
    if (answer_.size() < length) answer_.resize(length);
    for (std::size_t have = 0; have < length;) {
      const ssize_t got = ::read(fd_, answer_.data() + have, length - have);
      if (got <= 0) return fail_system("read", got == 0 ? ECONNRESET : errno, "the server did not answer");
      const std::string_view piece(answer_.data() + have, static_cast<std::size_t>(got));
      if (call.answer.compare(have, piece.size(), piece) != 0) {
        return fail(Status::kProtocol, "read", 0, "the server said {} where {} was expected",
                    quoted_bytes(piece.substr(0, 80)), quoted_bytes(std::string_view(call.answer).substr(have, 80)));
      }
      have += piece.size();
    }
    return {};
  }

  /// Sends a request whose answer is not known, but its last line, and returns the answer.
  Result<std::string> ask(std::string_view request, std::string_view last_line) {
    VERBENA_TRY(verbena::programs::write_all(fd_, "the socket", std::as_bytes(std::span(request))));
    std::string answer;
    while (!answer.ends_with(last_line)) {
      char piece[4096];
      const ssize_t got = ::read(fd_, piece, sizeof piece);
      if (got <= 0) return fail_system("read", got == 0 ? ECONNRESET : errno, "the server did not answer");
      answer.append(piece, static_cast<std::size_t>(got));
    }
    return answer;
  }

 private:
  int fd_ = -1;
  std::vector<char> answer_;
};

class Bench {
 public:
  Bench(Connection& server, std::size_t value_bytes, std::size_t keys, std::size_t batch)
      : server_(server), keys_(kKeyBytes), count_(keys), value_(value_bytes, 'v'), names_(batch) {
    for (std::size_t i = 0; i < batch; ++i) text_.append(keys_.blank());
    for (std::size_t i = 0; i < batch; ++i) names_[i] = std::string_view(text_).substr(i * kKeyBytes, kKeyBytes);
  }

  Result<void> fill(Build build) {
    for (std::size_t next = 0; next < count_;) {
      const std::size_t some = std::min(names_.size(), count_ - next);
      for (std::size_t i = 0; i < some; ++i) name(i, next++);
      VERBENA_TRY(call(build, some));
    }
    return {};
  }

  Result<void> measure(Build build, double seconds) {
    const std::uint64_t start = ticks_now();
    const std::uint64_t end = start + static_cast<std::uint64_t>(seconds * 1e6 * ticks_per_us());
    for (std::uint64_t begin = start; begin < end; begin = ticks_now()) {
      for (std::size_t i = 0; i < names_.size(); ++i) name(i, random_.below(count_));
      VERBENA_TRY(call(build, names_.size()));
      latency_.record(ticks_now() - begin);
    }
    seconds_ = static_cast<double>(ticks_now() - start) / ticks_per_us() / 1e6;
    return {};
  }

  [[nodiscard]] std::string json() const {
    const auto batch = static_cast<double>(names_.size());
    const auto ns = [&](std::uint64_t ticks) { return static_cast<double>(ticks) / ticks_per_us() * 1e3 / batch; };
    const double operations = static_cast<double>(latency_.count()) * batch;
    return fmt::format(R"({{"operations":{:.0f},"batch":{:.0f},"ops_per_s":{:.1f},"p50_ns":{:.1f},"p99_ns":{:.1f}}})",
                       operations, batch, operations / seconds_, ns(latency_.percentile(50)),
                       ns(latency_.percentile(99)));
  }

 private:
  void name(std::size_t slot, std::size_t key) noexcept { keys_.write(key, text_.data() + slot * kKeyBytes); }

  Result<void> call(Build build, std::size_t some) {
    call_.request.clear();
    call_.answer.clear();
    build(call_, Keys(names_).first(some), value_);
    return server_.exchange(call_);
  }

  Connection& server_;
  BenchKeys keys_;
  std::size_t count_;
  std::string value_, text_;
  std::vector<std::string_view> names_;
  Call call_;
  Random random_;
  Histogram latency_;
  double seconds_ = 0;
};

Result<void> run(const Known& known, bool is_filled, char** argv) {
  const auto number = [&](int i) { return std::strtoul(argv[i], nullptr, 10); };
  const std::size_t keys = number(6), batch = number(7);
  if (keys == 0 || batch == 0 || batch > 1024) {
    return fail(Status::kBadArgument, "peer_client", 0, "takes at least 1 key, and 1 to 1024 of them in a call");
  }
  Connection server;
  VERBENA_TRY(server.connect(argv[2]));
  if (!is_filled) {
    const auto filling = std::make_unique<Bench>(server, number(5), keys, 32);
    VERBENA_TRY(filling->fill(known.fill));
  }
  const auto bench = std::make_unique<Bench>(server, number(5), keys, batch);
  VERBENA_TRY(bench->measure(known.build, std::strtod(argv[4], nullptr)));
  fmt::print("{}\n", bench->json());
  return {};
}

// --- how much of its memory a full server holds

/// More than fit into so many bytes, if there were no overhead.
[[nodiscard]] std::size_t keys_beyond(std::size_t bytes, std::size_t value_bytes) noexcept {
  return bytes / (kKeyBytes + value_bytes) * 5 / 4 + 1000;
}

/// Items in it after more were stored than it can hold: it has dropped others.
Result<std::size_t> items_of_memcached(const char* path, std::size_t bytes, std::size_t value_bytes) {
  Connection server;
  VERBENA_TRY(server.connect(path));
  const auto bench = std::make_unique<Bench>(server, value_bytes, keys_beyond(bytes, value_bytes), 1);
  VERBENA_TRY(bench->fill(memcached_set));
  VERBENA_ASSIGN(const std::string statistics, server.ask("stats\r\n", "END\r\n"));
  constexpr std::string_view kName = "STAT curr_items ";
  std::size_t items = 0;
  const std::size_t at = statistics.find(kName);
  if (at == std::string::npos ||
      std::from_chars(statistics.data() + at + kName.size(), statistics.data() + statistics.size(), items).ec !=
          std::errc{})
    return fail(Status::kProtocol, "stats", 0, "memcached does not say how many items it has");
  return items;
}

/// Items in it when it refuses one more.
Result<std::size_t> items_of_verbena(const char* port, std::size_t bytes, std::size_t value_bytes) {
  VERBENA_ASSIGN(const auto client,
                 verbena::kv::Client::connect({.port = static_cast<std::uint16_t>(std::strtoul(port, nullptr, 10))}));
  const BenchKeys keys(kKeyBytes);
  std::string key = keys.blank();
  const std::string value(value_bytes, 'v');
  const std::size_t most = keys_beyond(bytes, value_bytes);
  for (std::size_t items = 0; items < most; ++items) {
    keys.write(items, key.data());
    const Status status = client->put(std::as_bytes(std::span(key)), std::as_bytes(std::span(value))).status;
    if (status == Status::kStoreFull || status == Status::kIndexFull) return items;
    if (status != Status::kOk) return fail(status, "put", 0, "the server holds {} items, and fails", items);
  }
  return fail(Status::kProtocol, "put", 0, "the server holds {} items, which is more than its memory", most);
}

Result<void> print_held(std::string_view protocol, char** argv) {
  const std::size_t value_bytes = std::strtoul(argv[4], nullptr, 10);
  const std::size_t bytes = std::strtoul(argv[5], nullptr, 10) << 20;
  if (value_bytes == 0 || bytes == 0)
    return fail(Status::kBadArgument, "peer_client", 0, "takes values of at least 1 B, and at least 1 MiB");
  VERBENA_ASSIGN(const std::size_t items, protocol == "verbena" ? items_of_verbena(argv[2], bytes, value_bytes)
                                                                : items_of_memcached(argv[2], bytes, value_bytes));
  fmt::print("{{\"items\":{},\"held_percent\":{:.1f}}}\n", items,
             100.0 * static_cast<double>(items * (kKeyBytes + value_bytes)) / static_cast<double>(bytes));
  return {};
}

int report(const Result<void>& done) {
  if (done) return 0;
  fmt::print(stderr, "peer_client: {}\n", done.error().text());
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 6 && std::string_view(argv[3]) == "held")
    for (const std::string_view protocol : {"verbena", "memcached"})
      if (protocol == argv[1]) return report(print_held(protocol, argv));
  const bool is_filled = argc == 9 && std::string_view(argv[8]) == "filled";
  const auto* const known =
      argc == 8 || is_filled
          ? std::ranges::find_if(kKnown,
                                 [&](const Known& each) { return each.protocol == argv[1] && each.name == argv[3]; })
          : std::end(kKnown);
  if (known == std::end(kKnown)) {
    fmt::print(stderr,
               "usage: peer_client memcached|redis SOCKET get|set|mget|mset SECONDS VALUE_BYTES KEYS BATCH [filled]\n"
               "       peer_client memcached SOCKET held VALUE_BYTES MIB\n"
               "       peer_client verbena PORT held VALUE_BYTES MIB\n");
    return 2;
  }
  return report(run(*known, is_filled, argv));
}
