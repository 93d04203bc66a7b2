// verbena-perf: the real program between two processes, what ends a run, and clients that are none. On the soft NIC,
// and where VERBENA_NIC names an RDMA device the runs are on that.
#include "base/error.hpp"
#include "kv_process.hpp"
#include "programs/perf_end.hpp"
#include "programs/perf_wire.hpp"
#include "result.hpp"
#include "shell.hpp"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace verbena::programs {
namespace {

using perf_wire::LinkHello;
using perf_wire::RunHello;
using test::Arguments;
using test::KvProcess;
using test::Ran;

const std::string& device() {
  static const std::string name = [] {
    const char* text = std::getenv("VERBENA_NIC");
    return std::string(text == nullptr || *text == '\0' ? "soft" : text);
  }();
  return name;
}
bool is_soft() { return device() == "soft"; }

/// On the soft NIC so long that nothing but the peer's death can end a wait; a device has no other way for a side that
/// has nothing in flight.
std::string death_timeout() { return is_soft() ? "3600000" : "3000"; }
const std::vector<std::string> kTests{"read", "write", "pingpong", "message", "write-bw"};

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

testing::AssertionResult ended(const Ran& ran, int exit) {
  if (ran.exit == exit && (exit == 0 ? ran.err.empty() : ran.err.starts_with("verbena-perf: ")))
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "exit " << ran.exit << " (expected " << exit << "), signal " << ran.signal
                                     << (ran.late ? ", late" : "") << "\nstdout: " << ran.out
                                     << "\nstderr: " << ran.err;
}

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// A server on a free port; `port` is empty when it did not get ready, which the tests assert.
class Server {
 public:
  explicit Server(const Arguments& more = {}) : process_(with({"server", "-p", "0", "-d", device()}, more)) {
    const std::string line = process_.first_line();
    const std::size_t at = line.find("serving on ");
    if (at != std::string::npos) port_ = line.substr(line.rfind(':') + 1);
  }
  [[nodiscard]] const std::string& port() const noexcept { return port_; }
  [[nodiscard]] std::uint16_t port_number() const {
    return static_cast<std::uint16_t>(std::strtoul(port_.c_str(), nullptr, 10));
  }
  [[nodiscard]] KvProcess& process() noexcept { return process_; }
  /// A client that does not come to an end by itself.
  [[nodiscard]] Arguments endless(const std::string& test, const std::string& timeout_ms) const {
    return {test, "-p", port_, "-d", device(), "-n", "100000000000", "--timeout-ms", timeout_ms};
  }
  [[nodiscard]] Ran run(const std::string& test, const Arguments& more = {}) const {
    return test::run_kv(
        with({test, "-p", port_, "-d", device(), "-n", "50", "--warm-up", "5", "--timeout-ms", "30000"}, more));
  }

 private:
  KvProcess process_;
  std::string port_;
};

// --- the command line

TEST(PerfUsage, WrongCommandLinesEndWithTwo) {
  const std::vector<Arguments> wrong{
      {},
      {"frobnicate"},
      {"read", "-s", "0"},
      {"read", "-s", "1073741824"},
      {"message", "-s", "16385"},
      {"write-bw", "-s", "1048577"},
      {"write-bw", "--in-flight", "0"},
      {"write-bw", "--in-flight", "65"},
      {"read", "--in-flight", "1"},
      {"read", "-n", "0"},
      {"read", "-n", "many"},
      {"read", "--warm-up", "-1"},
      {"read", "-p", "0"},
      {"read", "-p", "65536"},
      {"read", "--timeout-ms", "0"},
      {"read", "--once"},
      {"server", "--local"},
  };
  for (const Arguments& arguments : wrong) {
    const Ran ran = test::run_kv(arguments);
    EXPECT_TRUE(ended(ran, 2)) << testing::PrintToString(arguments);
    EXPECT_TRUE(has(ran.err, "--help")) << testing::PrintToString(arguments);
  }
}

TEST(PerfUsage, HelpAndVersionGoToStdout) {
  const Ran help = test::run_kv({"--help"});
  EXPECT_TRUE(ended(help, 0));
  for (const std::string& name : kTests) EXPECT_TRUE(has(help.out, name)) << name;
  EXPECT_TRUE(test::run_kv({"--version"}).out.starts_with("verbena-perf "));
}

TEST(PerfUsage, NobodyThereAndNoSuchDeviceHaveTheirReasons) {
  const Ran nobody = test::run_kv({"read", "-p", "1"});
  EXPECT_TRUE(ended(nobody, 3));
  EXPECT_TRUE(has(nobody.err, "connection refused")) << nobody.err;
  const Ran device = test::run_kv({"read", "-d", "no_such0"});
  EXPECT_TRUE(ended(device, 3));
  EXPECT_TRUE(ended(test::run_kv({"server", "-p", "0", "-d", "no_such0"}), 3));
}

// --- runs

TEST(PerfRun, EveryTestAndSize) {
  Server server;
  ASSERT_FALSE(server.port().empty());
  for (const std::string& test : kTests) {
    for (const char* bytes : {"1", "8", "65", "4096", "16384"}) {
      const Ran ran = server.run(test, {"-s", bytes});
      ASSERT_TRUE(ended(ran, 0)) << test << ' ' << bytes;
      EXPECT_TRUE(has(ran.out, "median")) << ran.out;
      EXPECT_EQ(has(ran.out, "one way"), test == "pingpong" || test == "message") << ran.out;
      EXPECT_EQ(has(ran.out, "bandwidth"), test == "write-bw") << ran.out;
    }
  }
}

TEST(PerfRun, RoundsPassTheMarkOfOneByte) {
  Server server;
  ASSERT_FALSE(server.port().empty());
  EXPECT_TRUE(ended(
      test::run_kv({"pingpong", "-p", server.port(), "-d", device(), "-s", "1", "-n", "1000", "--warm-up", "0"}), 0));
}

TEST(PerfRun, JsonHasWhatWasMeasuredAndOn) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  for (const std::string& test : kTests) {
    const Ran ran = test::run_kv({test, "--local", "-d", device(), "-n", "40", "--warm-up", "3", "--json"});
    ASSERT_TRUE(ended(ran, 0)) << test;
    EXPECT_EQ(test::from_json(ran.out,
                              "data[\"test\"], data[\"iterations\"], data[\"warm_up\"], data[\"nic\"],"
                              "0 < data[\"latency\"][\"median_ns\"] <= data[\"latency\"][\"max_ns\"],"
                              "0 < data[\"latency\"][\"mean_ns\"] <= data[\"latency\"][\"max_ns\"],"
                              "data[\"bytes_per_s\"] > 0, data[\"work\"][\"requests\"] >= 40,"
                              "data[\"environment\"][\"cores\"] > 0"),
              test + " 40 3 " + device() + " True True True True True");
  }
}

TEST(PerfRun, ABlockingCallIsOneRequestAndOneCompletion) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  for (const char* test : {"read", "write", "pingpong"}) {
    const Ran ran = test::run_kv({test, "--local", "-d", device(), "-n", "100", "--warm-up", "10", "--json"});
    ASSERT_TRUE(ended(ran, 0)) << test;
    EXPECT_EQ(test::from_json(ran.out, "[data[\"work\"][k] for k in (\"requests\", \"doorbells\", \"completions\")]"),
              "[100, 100, 100]")
        << test;
  }
}

TEST(PerfRun, ServerOfOneClientEndsWithIt) {
  Server server({"--once"});
  ASSERT_FALSE(server.port().empty());
  EXPECT_TRUE(ended(server.run("read"), 0));
  EXPECT_TRUE(ended(server.process().finish(), 0));
}

// --- ends

TEST(PerfEnds, ServersDeathEndsEveryTest) {
  for (const std::string& test : kTests) {
    Server server;
    ASSERT_FALSE(server.port().empty());
    KvProcess client(server.endless(test, death_timeout()));
    ASSERT_FALSE(client.first_line().empty()) << test;
    server.process().send(SIGKILL);
    const Ran ran = client.finish();
    EXPECT_TRUE(ended(ran, 3)) << test;
    // On a device it depends on what went first: nobody answers, or the memory is not registered any more.
    EXPECT_TRUE(has(ran.err, is_soft() ? "peer lost: the run broke after " : ": the run broke after "))
        << test << ": " << ran.err;
  }
}

TEST(PerfEnds, ClientsDeathLeavesTheServerToTheNext) {
  Server server({"--timeout-ms", death_timeout()});
  ASSERT_FALSE(server.port().empty());
  for (const std::string& test : kTests) {
    {
      KvProcess client(server.endless(test, "5000"));
      ASSERT_FALSE(client.first_line().empty()) << test;
    }
    EXPECT_TRUE(ended(server.run("read"), 0)) << "after " << test;
  }
}

TEST(PerfEnds, SilentServerIsTimedOut) {
  for (const char* test : {"pingpong", "message"}) {
    Server server;
    ASSERT_FALSE(server.port().empty());
    KvProcess client(server.endless(test, "300"));
    ASSERT_FALSE(client.first_line().empty()) << test;
    server.process().send(SIGSTOP);
    const Ran ran = client.finish();
    EXPECT_TRUE(ended(ran, 3)) << test;
    EXPECT_TRUE(has(ran.err, "timed out: the run broke after ")) << test << ": " << ran.err;
  }
}

// --- clients that are none

template <class Hello>
std::span<const std::byte> bytes_of(const Hello& hello) {
  return std::as_bytes(std::span(&hello, 1));
}

/// A client's control connection, with whatever hello.
struct Stranger final : message::Handler {
  Stranger() {
    auto opened = PerfDevice::open({.transport = {.device = "soft", .gid_index = {}}}, patience());
    EXPECT_OK(opened);
    device = std::move(*opened);
    auto made_loop = engine::CompletionLoop::create(device.nic(), {});
    EXPECT_OK(made_loop);
    loop = std::move(*made_loop);
    auto made = message::Channel::create(*loop, device.pd.get(), {}, *this);
    EXPECT_OK(made);
    channel = std::move(*made);
  }
  Result<link::Dialed> dial(std::uint16_t port, std::span<const std::byte> hello) {
    VERBENA_ASSIGN(local, channel->local_endpoint(hello));
    return link::dial("127.0.0.1", port, local, patience());
  }
  static Deadline patience() { return Deadline::after(std::chrono::seconds{20}); }
  void on_message(message::Channel&, std::span<const std::byte>) noexcept override {}
  void on_fragment(message::Channel&, const message::Fragment&) noexcept override {}
  void on_complete(message::Channel&, std::uint64_t, Status) noexcept override {}
  void on_failure(message::Channel&, Status) noexcept override {}
  /// A control connection of a run with this hello, ready for use.
  void enter(std::uint16_t port, const RunHello& hello) {
    auto dialed = dial(port, bytes_of(hello));
    ASSERT_OK(dialed);
    ASSERT_OK(channel->connect(local, dialed->remote(), patience()));
    ASSERT_OK(dialed->finish(patience()));
    ASSERT_OK(channel->open_lease(patience()));
  }

  PerfDevice device;
  std::unique_ptr<engine::CompletionLoop> loop;
  std::unique_ptr<message::Channel> channel;
  link::Endpoint local;
};

constexpr RunHello kRun{.test = PerfTest::kRead, .in_flight = 1, .session = 7, .bytes = 64, .rounds = 10};
constexpr LinkHello kLink{.session = 7, .address = 4096, .length = 64, .rkey = 1};

TEST(PerfHostile, GarbageIsSentAwayAndTheNextClientServed) {
  Server server;
  ASSERT_FALSE(server.port().empty());
  {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server.port_number());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const std::string garbage(700, '\xA5');
    EXPECT_GT(::send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
    char byte = 0;
    EXPECT_LE(::recv(fd, &byte, 1, 0), 512) << "closed, with or without a word";
    ::close(fd);
  }
  RunHello too_long = kRun;
  too_long.bytes = perf_wire::kMaxBytes + 1;
  EXPECT_STATUS(Stranger().dial(server.port_number(), bytes_of(too_long)), Status::kProtocol);
  EXPECT_STATUS(Stranger().dial(server.port_number(), {}), Status::kProtocol);
  EXPECT_STATUS(Stranger().dial(server.port_number(), bytes_of(kLink).first(sizeof kRun)), Status::kProtocol);
  EXPECT_TRUE(ended(server.run("read"), 0));
}

/// The link of a run that another stranger asks for; and one whose window does not fit.
TEST(PerfHostile, OnlyTheRunsOwnLinkIsLetIn) {
  Server server;
  ASSERT_FALSE(server.port().empty());
  Stranger stranger;
  ASSERT_NO_FATAL_FAILURE(stranger.enter(server.port_number(), kRun));
  const auto try_link = [&](const LinkHello& hello) {
    auto link = remote::Link::create(*stranger.loop, stranger.device.pd.get(), {});
    EXPECT_OK(link);
    auto local = (*link)->local_endpoint(bytes_of(hello));
    EXPECT_OK(local);
    return link::dial("127.0.0.1", server.port_number(), *local, Stranger::patience());
  };
  LinkHello other = kLink;
  other.session = 8;
  EXPECT_STATUS(try_link(other), Status::kBusy);
  other = kLink;
  other.length = 65;
  EXPECT_STATUS(try_link(other), Status::kBusy);
  EXPECT_STATUS(Stranger().dial(server.port_number(), bytes_of(kRun)), Status::kBusy);
  EXPECT_OK(try_link(kLink));
}

TEST(PerfHostile, ARunEndsWithWhatDoesNotBelongToIt) {
  Server server({"--timeout-ms", "3600000"});
  ASSERT_FALSE(server.port().empty());
  const std::string bytes(63, 'x');
  for (const PerfTest test : {PerfTest::kMessage, PerfTest::kWriteBw}) {
    Stranger stranger;
    RunHello run = kRun;
    run.test = test;
    ASSERT_NO_FATAL_FAILURE(stranger.enter(server.port_number(), run));
    // A byte less than the hello said.
    const std::span<const std::byte> body = std::as_bytes(std::span(bytes));
    const Status sent =
        test == PerfTest::kMessage ? stranger.channel->send(body) : stranger.channel->start_large(body, {}, 1);
    ASSERT_EQ(sent, Status::kOk);
    // The server is done with it, and has time for the next, while the stranger still lives and has its say repeated.
    std::atomic<bool> done = false;
    Ran ran;
    std::jthread next([&] {
      ran = server.run("read");
      done = true;
      stranger.loop->wake();
    });
    EXPECT_EQ(stranger.loop->wait_until([&] { return done.load(); }, Deadline::after(std::chrono::seconds{90})),
              Status::kOk);
    next.join();
    EXPECT_TRUE(ended(ran, 0)) << to_string(test);
  }
}

TEST(PerfWire, TakesWhatItsOwnClientsSay) {
  EXPECT_EQ(perf_wire::decode_run(bytes_of(kRun)), kRun);
  const auto link = perf_wire::decode_link(bytes_of(kLink), kRun);
  ASSERT_TRUE(link.has_value());
  EXPECT_EQ(link->window().address, 4096u);
}

TEST(PerfWire, RefusesEveryFieldOutOfItsRange) {
  const auto run_with = [](auto&& change) {
    RunHello hello = kRun;
    change(hello);
    return perf_wire::decode_run(bytes_of(hello)).has_value();
  };
  EXPECT_TRUE(run_with([](RunHello&) {}));
  EXPECT_FALSE(run_with([](RunHello& h) { ++h.magic; }));
  EXPECT_FALSE(run_with([](RunHello& h) { ++h.version; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.kind = 2; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.test = PerfTest{0}; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.test = PerfTest{6}; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.session = 0; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.bytes = 0; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.bytes = perf_wire::kMaxBytes + 1; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.rounds = 0; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.rounds = ~std::uint64_t{0}; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.in_flight = 0; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.in_flight = perf_wire::kMaxInFlight + 1; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.reserved = 1; }));
  for (const PerfTest test : {PerfTest::kMessage, PerfTest::kWriteBw}) {
    EXPECT_FALSE(run_with(
        [&](RunHello& h) { h.test = test, h.bytes = static_cast<std::uint32_t>(perf_wire::most_bytes(test) + 1); }));
  }
  const auto link_with = [](auto&& change) {
    LinkHello hello = kLink;
    change(hello);
    return perf_wire::decode_link(bytes_of(hello), kRun).has_value();
  };
  EXPECT_TRUE(link_with([](LinkHello&) {}));
  EXPECT_FALSE(link_with([](LinkHello& h) { ++h.magic; }));
  EXPECT_FALSE(link_with([](LinkHello& h) { ++h.version; }));
  EXPECT_FALSE(link_with([](LinkHello& h) { h.kind = 1; }));
  EXPECT_FALSE(link_with([](LinkHello& h) { ++h.session; }));
  EXPECT_FALSE(link_with([](LinkHello& h) { ++h.length; }));
  EXPECT_FALSE(link_with([](LinkHello& h) { h.address = ~std::uint64_t{0}; }));
  for (std::size_t length = 0; length < sizeof kRun; ++length) {
    EXPECT_FALSE(perf_wire::decode_run(bytes_of(kRun).first(length)).has_value());
    EXPECT_FALSE(perf_wire::decode_link(bytes_of(kLink).first(length), kRun).has_value());
  }
}

}  // namespace
}  // namespace verbena::programs
