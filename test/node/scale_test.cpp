// What connections between two processes leave and take: descriptors, threads and memory, with 4,096 descriptors in
// each process. Counts only; the times are printed, and measured by bench/connections.
//
// Memory is Rss: what a process has mapped and is there. A page that both ends map, of a ring or of a window, counts at
// both, which is more than it costs. A process's own part, its NIC and threads, is there with the first connection,
// which is open all the time, and is in no figure.
#include <verbena/rdma.hpp>

#include <device.hpp>
#include <peer.hpp>
#include <peer_end.hpp>
#include <process.hpp>
#include <result.hpp>
#include <sanitized.hpp>
#include <transport.hpp>

#include <gtest/gtest.h>

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace verbena::rdma {
namespace {

using namespace std::chrono_literals;
using test::Peer;

constexpr rlim_t kFiles = 4096;
constexpr std::size_t kMostDescriptors = 3;                 ///< Of a connection, at each end.
constexpr std::size_t kMostBytes = std::size_t{128} << 10;  ///< The same.
/// What may stay of memory: tables that have grown for the most connections there were, and what the allocator keeps in
/// pieces. Less than 2 KiB for each of the connections.
constexpr std::size_t kSlackBytes = std::size_t{2} << 20;

/// What a key of the software NIC takes in its tables, this process's and the peer's. Each connection has one, for its
/// window, and the tables' 65,536 entries are used in turn, so that a key that was taken back is not soon another's.
constexpr std::size_t kKeyBytes = 256;

[[nodiscard]] std::size_t connections() { return test::kIsSanitized ? 200 : 1000; }

/// VERBENA_CYCLES, or as many as the build is good for.
[[nodiscard]] unsigned cycles() {
  const char* const wanted = std::getenv("VERBENA_CYCLES");
  if (wanted != nullptr) return static_cast<unsigned>(std::strtoul(wanted, nullptr, 10));
  return test::kIsSanitized ? 500 : 10'000;
}

struct Held {
  std::uint64_t descriptors = 0;
  std::uint64_t threads = 0;
  std::uint64_t bytes = 0;
  std::uint64_t connections = 0;  ///< At the listener, not yet disconnected.
};

[[nodiscard]] std::size_t threads() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("Threads:")) return std::stoul(line.substr(8));
  return 0;
}

[[nodiscard]] Held held_here() {
  malloc_trim(0);
  return {.descriptors = test::open_descriptors(), .threads = threads(), .bytes = test::resident_bytes()};
}

[[nodiscard]] bool limit_descriptors() {
  const rlimit files{kFiles, kFiles};
  return setrlimit(RLIMIT_NOFILE, &files) == 0;
}

[[nodiscard]] Options options_of(std::uint16_t port) {
  return {.transport = test::transport_under_test(),
          .address = "127.0.0.1",
          .port = port,
          .connect_timeout = 30s,
          .timeout = 30s};
}

// --- the listener's process ---------------------------------------------------------------------------------------

/// Sends back what arrives; a message of one byte asks for what the process holds.
class Echo final : public Handler {
 public:
  void on_accept(Connection&) noexcept override { ++connections_; }
  void on_disconnect(Connection&, Status) noexcept override { --connections_; }
  void on_message(Connection& connection, const Message& message) noexcept override {
    if (message.data.size() != 1) return (void)connection.send(message.data);
    Held held = held_here();
    held.connections = connections_;
    (void)connection.send(std::as_bytes(std::span(&held, 1)));
  }

 private:
  std::uint64_t connections_ = 0;
};

int listen() {
  if (!limit_descriptors()) return 1;
  Echo echo;
  Options options = options_of(0);
  options.handler = &echo;
  options.receive = Receive::kHandler;
  options.max_connections = static_cast<unsigned>(connections()) + 64;  // Some that have ended may be on their way out.
  const auto listener = Listener::start(options);
  if (!listener) return 2;
  std::printf("%d\n", (*listener)->port());
  std::fflush(stdout);
  for (;;) pause();
}

// --- the clients' process -----------------------------------------------------------------------------------------

using test::Driver;
class Quiet final : public Handler {};
using Client = std::unique_ptr<Connection>;

class Scale : public testing::TestWithParam<Driver> {
 protected:
  void SetUp() override {
    if (!test::is_soft_under_test()) GTEST_SKIP() << "these are figures of the software NIC";
    if (!limit_descriptors()) GTEST_SKIP() << "this process may not have " << kFiles << " descriptors";
    std::thread([] {}).join();  // A sanitizer's own thread comes with the first.
    at_first_ = held_here();
    listener_ = std::make_unique<Peer>(std::vector<std::string>{"listen"});
    const int port = listener_->read_number();
    ASSERT_GT(port, 0);
    options_ = options_of(static_cast<std::uint16_t>(port));
    if (GetParam() == Driver::kThread) options_.handler = &quiet_;
    first_ = connect();
    ASSERT_NE(first_, nullptr);
    use(*first_);
  }

  [[nodiscard]] Client connect() {
    auto made = Connection::connect(options_);
    EXPECT_OK(made);
    return made ? std::move(*made) : nullptr;
  }

  static void use(Connection& client) {
    std::array<char, 32> sent{"to be sent back"};
    std::array<char, 32> got{};
    ASSERT_EQ(client.send(std::as_bytes(std::span(sent))), Status::kOk);
    const auto message = client.receive(std::as_writable_bytes(std::span(got)));
    ASSERT_TRUE(message.has_value()) << to_string(message.error());
    ASSERT_EQ(sent, got);
    ASSERT_EQ(client.read(std::as_writable_bytes(std::span(got))), Status::kOk);
    ASSERT_EQ(got[0], '\0');  // The peer's window, which nobody has written.
  }

  [[nodiscard]] Held held_there() {
    const std::byte question{};
    Held held;
    EXPECT_EQ(first_->send(std::span(&question, 1)), Status::kOk);
    EXPECT_TRUE(first_->receive(std::as_writable_bytes(std::span(&held, 1))).has_value());
    return held;
  }

  /// The listener's figures once it has let go of all connections but the first; its part of the end takes a while.
  [[nodiscard]] Held settled_there(const Held& before) {
    const Deadline limit = Deadline::after(30s);
    Held now = held_there();
    while ((now.connections > 1 || now.descriptors > before.descriptors) && !limit.passed()) now = held_there();
    return now;
  }

  static void expect_cost(const char* when, const char* where, const Held& before, const Held& now, std::size_t count) {
    SCOPED_TRACE(std::string(when) + ", " + where);
    const std::size_t bytes = (now.bytes - std::min(now.bytes, before.bytes)) / count;
    std::printf("%s, %s: %.3f descriptors and %.1f KiB each, %ld threads more\n", when, where,
                static_cast<double>(now.descriptors - before.descriptors) / static_cast<double>(count),
                static_cast<double>(bytes) / 1024, static_cast<long>(now.threads - before.threads));
    EXPECT_LE(now.descriptors - before.descriptors, kMostDescriptors * count);
    EXPECT_EQ(now.threads, before.threads);
    if (!test::kIsSanitized) {
      EXPECT_LE(bytes, kMostBytes);
    }
  }

  static void expect_no_trace(const char* where, const Held& before, const Held& now, std::size_t slack = kSlackBytes) {
    SCOPED_TRACE(where);
    std::printf("closed, %s: %+ld KiB\n", where,
                (static_cast<long>(now.bytes) - static_cast<long>(before.bytes)) / 1024);
    EXPECT_EQ(now.descriptors, before.descriptors);
    EXPECT_EQ(now.threads, before.threads);
    if (!test::kIsSanitized) {
      EXPECT_LE(now.bytes, before.bytes + slack);
    }
  }

  static void record(const char* name, std::chrono::steady_clock::duration time) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
    RecordProperty(name, static_cast<int>(ms));
    std::printf("%s: %d\n", name, static_cast<int>(ms));
  }

  /// The NIC and its threads are gone with the last connection.
  void expect_nothing_left() {
    first_.reset();
    listener_.reset();
    const Held now = held_here();
    EXPECT_EQ(now.descriptors, at_first_.descriptors);
    EXPECT_EQ(now.threads, at_first_.threads);
  }

  Quiet quiet_;
  Held at_first_;
  std::unique_ptr<Peer> listener_;
  Options options_;
  Client first_;
};

TEST_P(Scale, ConnectionsTakeLittleAndLeaveNothing) {
  const std::size_t count = connections() - 1;
  const Held here = held_here(), there = held_there();
  std::vector<Client> clients;
  clients.reserve(count);
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    clients.push_back(connect());
    ASSERT_NE(clients.back(), nullptr) << i;
  }
  record("ms_to_connect", std::chrono::steady_clock::now() - start);
  expect_cost("connected", "client", here, held_here(), count);
  expect_cost("connected", "listener", there, held_there(), count);
  // Once, and until each receive of both ends has had a message.
  for (const unsigned uses : {1U, 100U}) {
    for (const Client& client : clients)
      for (unsigned i = 0; i < uses; ++i) ASSERT_NO_FATAL_FAILURE(use(*client));
    expect_cost("used", "client", here, held_here(), count);
    const Held used = held_there();
    EXPECT_EQ(used.connections, count + 1);
    expect_cost("used", "listener", there, used, count);
  }
  const auto end = std::chrono::steady_clock::now();
  clients.clear();
  record("ms_to_close", std::chrono::steady_clock::now() - end);
  expect_no_trace("listener", there, settled_there(there));
  expect_no_trace("client", here, held_here());
  expect_nothing_left();
}

TEST_P(Scale, CyclesLeaveNothing) {
  const Held fresh = held_there();
  // Tables have their size after some.
  for (int i = 0; i < 100; ++i) ASSERT_NE(connect(), nullptr);
  const Held here = held_here(), there = settled_there(fresh);
  const unsigned count = cycles();
  const auto start = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < count; ++i) ASSERT_NE(connect(), nullptr) << i;
  record("ms_for_cycles", std::chrono::steady_clock::now() - start);
  const std::size_t slack = kSlackBytes + std::size_t{count} * kKeyBytes;
  expect_no_trace("listener", there, settled_there(there), slack);
  expect_no_trace("client", here, held_here(), slack);
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(, Scale, testing::Values(Driver::kCaller, Driver::kThread),
                         [](const auto& of) { return of.param == Driver::kCaller ? "caller" : "thread"; });

}  // namespace
}  // namespace verbena::rdma

int main(int argc, char** argv) {
  if (argc > 2 && std::string_view(argv[1]) == "peer") {
    verbena::test::die_with_the_test();
    return verbena::rdma::listen();
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
