// Bandwidth of WRITEs over an unreliable connection, with queue pairs of the program's own.
//   server: uchan -p PORT [-d DEVICE]                     prints its port, and what has arrived
//   client: uchan -c ADDRESS -p PORT [-d DEVICE] [-t UNDER_WAY] [-n WRITES] [-w WARM_UP_WRITES] [-s BYTES]
#include <verbena/queue_pair.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace rdma = verbena::rdma;
namespace typed = verbena::typed;
using namespace std::chrono_literals;
using verbena::Deadline;
using verbena::Status;

namespace {

using Batch = typed::Batch<typed::Uc, std::uint8_t>;
constexpr std::uint8_t kWritten = 0x5a;

struct Options {
  std::string server;              ///< -c: the server's IPv4 address; without it this is the server.
  std::string device;              ///< -d: "soft", "mlx5_0"; empty: the best.
  std::uint32_t port = 0;          ///< -p
  std::uint32_t depth = 128;       ///< -t: writes under way.
  std::uint32_t writes = 100'000;  ///< -n: writes that are measured, rounded up to half of the depth.
  std::uint32_t warm_up = 1000;    ///< -w: writes before those.
  std::uint32_t size = 4096;       ///< -s: bytes of each.
};

/// What each side tells the other over TCP, in the byte order of the hosts.
struct Hello {
  std::uint32_t depth = 0;
  std::uint32_t size = 0;
  typed::QueuePairEndpoint endpoint{};
  rdma::Window window{};
};

[[noreturn]] void die(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);
}
template <class Value>
Value must(const char* what, verbena::Result<Value>&& result) {
  if (!result) die(what, result.error().text());
  return std::move(*result);
}
template <class Value>
Value must(const char* what, std::expected<Value, Status>&& result) {
  if (!result) die(what, verbena::error_detail());
  return std::move(*result);
}
void must(const char* what, Status status) {
  if (status != Status::kOk) die(what, verbena::error_detail());
}
int must(const char* what, int result) {
  if (result < 0) {
    std::perror(what);
    std::exit(1);
  }
  return result;
}

std::uint32_t number(std::string_view text, std::uint32_t least, std::uint32_t most) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    die("uchan", "a number is not one, or out of its range");
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int option = 0; (option = getopt(argc, argv, "c:p:d:t:n:w:s:")) != -1;) {
    switch (option) {
      case 'c': options.server = optarg; break;
      case 'd': options.device = optarg; break;
      case 'p': options.port = number(optarg, 0, 65535); break;
      case 't': options.depth = number(optarg, 2, 4096); break;
      case 'n': options.writes = number(optarg, 1, 1'000'000'000); break;
      case 'w': options.warm_up = number(optarg, 0, 1'000'000'000); break;
      case 's': options.size = number(optarg, 1, 1 << 20); break;
      default: die("uchan", "options are -c -p -d -t -n -w -s, each with a value");
    }
  }
  if (const char* device = std::getenv("VERBENA_NIC"); device != nullptr && options.device.empty())
    options.device = device;
  options.depth -= options.depth % 2;
  return options;
}

// --- TCP, by which the two sides find each other

void limit(int socket) {
  const timeval patience{.tv_sec = 60, .tv_usec = 0};
  must("setsockopt", setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
}

int accept_one(std::uint32_t port) {
  const int listener = must("socket", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  must("setsockopt", setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes));
  limit(listener);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t length = sizeof address;
  must("bind", bind(listener, reinterpret_cast<sockaddr*>(&address), length));
  must("listen", listen(listener, 1));
  must("getsockname", getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length));
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  const int client = must("accept", accept(listener, nullptr, nullptr));
  close(listener);
  return client;
}

int connect_to(const Options& options) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(options.port));
  if (inet_pton(AF_INET, options.server.c_str(), &address.sin_addr) != 1) die("-c", "no IPv4 address");
  const int server = must("socket", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  must("connect", connect(server, reinterpret_cast<sockaddr*>(&address), sizeof address));
  return server;
}

template <class Value>
void tell(int socket, const Value& value) {
  if (send(socket, &value, sizeof value, MSG_NOSIGNAL) != ssize_t{sizeof value}) die("send", "the other side has gone");
}
template <class Value>
Value hear(int socket) {
  Value value{};
  if (recv(socket, &value, sizeof value, MSG_WAITALL) != ssize_t{sizeof value}) die("recv", "the other side has gone");
  return value;
}
/// Both sides are here.
void meet(int socket) {
  tell(socket, char{1});
  (void)hear<char>(socket);
}

// --- the two sides

std::unique_ptr<rdma::Node> open_node(const Options& options) {
  rdma::NodeOptions nic;
  nic.transport.device = options.device;
  return must("node", rdma::Node::open(nic));
}

void serve(const Options& options) {
  const auto node = open_node(options);
  const int client = accept_one(options.port);
  limit(client);
  const auto theirs = hear<Hello>(client);
  if (theirs.depth > 4096 || theirs.size > 1 << 20) die("client", "asks for too much");
  auto region =
      must("region", typed::MemoryRegion<std::uint8_t>::allocate(*node, std::size_t{theirs.depth} * theirs.size));
  auto prepared = must("prepare", typed::QueuePairBuilder<typed::Uc>().on(*node).prepare());
  tell(client, Hello{.endpoint = prepared.describe(), .window = region.window()});
  const auto pair = must("connect", std::move(prepared).connect(theirs.endpoint, Deadline::after(20s)));
  meet(client);  // Nothing may be written before: it would be lost.
  meet(client);  // All is written.
  const auto all = must("take", region.take());
  const auto arrived = all.use([](std::span<const std::uint8_t> bytes) { return std::ranges::count(bytes, kWritten); });
  std::printf("%td of %zu bytes of the window were written\n", arrived, all.size());
}

/// Writes of the window's slots from `first` on, to be posted again and again.
Batch batch_of(const Options& options, typed::Ready<typed::Uc>& pair, typed::Segment<std::uint8_t>&& from,
               const typed::RemoteSegment<std::uint8_t>& to, std::uint32_t first) {
  Batch batch = must("batch", pair.batch<std::uint8_t>(options.depth / 2));
  auto slots = std::move(from).chunks(options.size);
  for (std::size_t i = 0; i < options.depth / 2; ++i) {
    const auto slot = must("part", to.part((first + i) * options.size, options.size));
    must("write", batch.add_write(must("chunk", slots.next()), slot));
  }
  return batch;
}

/// Two batches in turn: one is under way while the other is posted. Returns how many writes there were.
std::uint64_t write(std::array<Batch, 2>& batches, std::uint64_t writes) {
  std::uint64_t done = 0;
  for (std::size_t turn = 0; done < writes; turn ^= 1) {
    must("write", batches[turn].wait(Deadline::after(20s)));
    must("write", batches[turn].post());
    done += batches[turn].size();
  }
  for (Batch& batch : batches) must("write", batch.wait(Deadline::after(20s)));
  return done;
}

void run(const Options& options) {
  const auto node = open_node(options);
  const int server = connect_to(options);
  limit(server);
  auto prepared = must("prepare", typed::QueuePairBuilder<typed::Uc>().send_depth(options.depth).on(*node).prepare());
  tell(server, Hello{.depth = options.depth, .size = options.size, .endpoint = prepared.describe()});
  const auto theirs = hear<Hello>(server);
  auto pair = must("connect", std::move(prepared).connect(theirs.endpoint, Deadline::after(20s)));
  meet(server);
  const auto there = must("window", pair.open<std::uint8_t>(theirs.window));

  const std::size_t bytes = std::size_t{options.depth} * options.size;
  auto region =
      must("region", typed::MemoryRegion<std::uint8_t>::allocate(*node, bytes, {.max_segments = options.depth + 2}));
  auto front = must("take", region.take());
  front.fill(kWritten);
  auto back = must("split", front.split_at(bytes / 2));
  std::array<Batch, 2> batches{batch_of(options, pair, std::move(front), there, 0),
                               batch_of(options, pair, std::move(back), there, options.depth / 2)};
  write(batches, std::max(options.warm_up, options.depth));
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t writes = write(batches, options.writes);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  meet(server);
  const double per_s = static_cast<double>(writes) / seconds.count();
  std::printf("%u bytes, %llu writes, %.1f MB/s, %.3f million writes/s\n", options.size,
              static_cast<unsigned long long>(writes), per_s * options.size / 1e6, per_s / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.server.empty()) {
    serve(options);
  } else {
    run(options);
  }
}
