// verbena-perf: the real program between two processes, what ends a run, and clients that are none. On the soft NIC,
// and where VERBENA_NIC names an RDMA device the runs are on that.
#include "programs/perf.hpp"
#include "../host/child.hpp"
#include "capability.hpp"
#include "device.hpp"
#include "key_file.hpp"
#include "kv_process.hpp"
#include "programs/line.hpp"
#include "programs/perf_mark.hpp"
#include "result.hpp"
#include "shell.hpp"

#include <verbena/rdma.hpp>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <expected>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

using perf_wire::Ask;
using perf_wire::bytes_of;
using perf_wire::Reply;
using perf_wire::Request;
using perf_wire::Serving;
using rdma::Connection;
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

/// Those with a server that this process may run.
const std::vector<PerfTestFacts>& tests_to_run() {
  static const std::vector<PerfTestFacts> tests = [] {
    std::vector<PerfTestFacts> found;
    std::ranges::copy_if(perf_tests(), std::back_inserter(found), [](const PerfTestFacts& facts) {
      return facts.has_peer() && (facts.by != PerfBy::kPhysical || test::may_see_frames());
    });
    return found;
  }();
  return tests;
}

bool has_text(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

testing::AssertionResult perf_ended(const Ran& ran, int exit) {
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
    if (at == std::string::npos) return;
    const std::string where = line.substr(0, line.find(';', at));
    port_ = where.substr(where.rfind(':') + 1);
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
  [[nodiscard]] Ran run(const std::string& test, const Arguments& more = {}, const std::string& count = "50") const {
    return test::run_kv(
        with({test, "-p", port_, "-d", device(), "-n", count, "--warm-up", "5", "--timeout-ms", "30000"}, more));
  }

 private:
  KvProcess process_;
  std::string port_;
};

// --- the command line

TEST(PerfUsage, NumbersThatAreNoneOrOutOfRangeAreTold) {
  constexpr std::uint64_t kMostIterations = std::uint64_t{1} << 40;
  test::expect_refused(test::wrong_numbers({
      {{"read"}, "-n", "--iterations", 1, kMostIterations},
      {{"read"}, "--warm-up", "--warm-up", 0, kMostIterations},
      {{"read"}, "--cpu", "--cpu", 0, 65535},
      {{"read"}, "-s", "--size", 1, 67108864},
      {{"message"}, "-s", "--size", 1, 4194304},
      {{"pa-read"}, "-s", "--size", 1, 4194304},
      {{"memcpy"}, "-s", "--size", 1, 67108864},
      {{"read"}, "-p", "--port", 1, 65535},
      {{"read"}, "--gid-index", "--gid-index", 0, 255},
      {{"read"}, "--allow-uid", "--allow-uid", 0, 4294967294},
      {{"read"}, "--timeout-ms", "--timeout-ms", 1, 86400000},
      {{"read"}, "--threads", "--threads", 1, 128},
      {{"read"}, "--clock-every", "--clock-every", 1, 1000},
      {{"write-bw"}, "--depth", "--depth", 1, 64},
      {{"compare-swap-bw"}, "--in-flight", "--depth", 1, 64},
      {{"write-bw"}, "--connections", "--connections", 1, 128},
      {{"message"}, "--idle-us", "--idle-us", 0, 1000000},
      {{"wake"}, "--idle-us", "--idle-us", 1, 1000000},
      {{"server"}, "-p", "--port", 0, 65535},
      {{"server"}, "--window", "--window", 1, 67108864},
      {{"server"}, "--clients", "--clients", 1, 1000000},
  }));
}

TEST(PerfUsage, WrongCommandLinesSayWhatIsWrong) {
  const std::string range = "FIRST..LAST of 1 to 67108864 bytes, such as 1..1M";
  test::expect_refused({
      {{}, {"takes a command, one of server, read, "}},
      {{"frobnicate"}, {"takes a command, one of server, read, ", "mesh, not \"frobnicate\""}},
      {{"raed"}, {"unknown command \"raed\"; did you mean \"read\"? See verbena-perf --help"}},
      {{"--local"}, {"takes a command, one of server, read, ", "not \"--local\""}},
      {{"read", "more"}, {"unknown argument \"more\"", "verbena-perf read --help"}},
      {{"read", "--no-such", "5"}, {"unknown argument \"--no-such\""}},
      // Options of other tests.
      {{"fetch-add", "-s", "8"}, {"unknown argument \"-s\""}},
      {{"fetch-add-bw", "-s", "8"}, {"unknown argument \"-s\""}},
      {{"line", "-s", "8"}, {"unknown argument \"-s\""}},
      {{"write-bw", "--clock-every", "2"}, {"unknown argument \"--clock-every\""}},
      {{"message-bw", "--depth", "1"}, {"unknown argument \"--depth\""}},
      {{"read", "--in-flight", "1"}, {"unknown argument \"--in-flight\""}},
      {{"read", "--connections", "2"}, {"unknown argument \"--connections\""}},
      {{"read", "--idle-us", "1"}, {"unknown argument \"--idle-us\""}},
      {{"read", "--local", "--serve", "thread"}, {"unknown argument \"--serve\""}},
      {{"read", "--once"}, {"unknown argument \"--once\""}},
      {{"line", "--local"}, {"unknown argument \"--local\""}},
      {{"line", "--threads", "2"}, {"unknown argument \"--threads\""}},
      {{"memcpy", "-d", "soft"}, {"unknown argument \"-d\""}},
      {{"server", "--local"}, {"unknown argument \"--local\""}},
      // Words.
      {{"read", "-a"}, {"--address", "takes NAME or ADDRESS", "its value is missing"}},
      {{"read", "-d"}, {"--device", "takes soft or DEVICE", "its value is missing"}},
      {{"read", "-d", "soft:2"}, {"device \"soft:2\"", "soft, a device such as mlx5_0"}, 3},
      {{"read", "-d", "mlx5_0:x"}, {"device \"mlx5_0:x\"", "soft, a device such as mlx5_0"}, 3},
      {{"read", "-a", "no-such-host.invalid"}, {"\"no-such-host.invalid\" does not resolve"}, 3},
      {{"server", "--serve", "nobody"}, {"--serve", "takes handler or thread, not \"nobody\""}},
      {{"message", "--local", "--serve", ""}, {"--serve", "takes handler or thread, not \"\""}},
      {{"message", "--local", "--serve"}, {"--serve", "takes handler or thread", "its value is missing"}},
      // Flags with a value.
      {{"read", "--local=5"}, {"--local", "takes no value"}},
      {{"read", "--json=x"}, {"--json", "takes no value"}},
      {{"server", "--once=3"}, {"--once", "takes no value"}},
      {{"server", "--socket=no"}, {"--socket", "takes no value"}},
      // Sweeps.
      {{"read", "--sweep"}, {"--sweep", "takes FIRST..LAST", "its value is missing"}},
      {{"read", "--sweep", ""}, {"--sweep", range, "not \"\""}},
      {{"read", "--sweep", "8"}, {"--sweep", range, "not \"8\""}},
      {{"read", "--sweep", "0..8"}, {"--sweep", range, "not \"0..8\""}},
      {{"read", "--sweep", "-1..8"}, {"--sweep", range, "not \"-1..8\""}},
      {{"read", "--sweep", "16..8"}, {"--sweep", range, "not \"16..8\""}},
      {{"read", "--sweep", "1..x"}, {"--sweep", range, "not \"1..x\""}},
      {{"read", "--sweep", "1..128M"}, {"--sweep", range, "not \"1..128M\""}},
      // Together.
      {{"read", "-n", "5", "-n", "6"}, {"--iterations", "takes one value, not 5 and 6"}},
      {{"read", "--sweep", "1..8", "-s", "8"}, {"--size excludes --sweep"}},
      {{"server", "--clients", "2", "--once"}, {"--clients excludes --once"}},
      {{"message", "--serve", "thread"}, {"--serve requires --local"}},
      {{"message", "--idle-us", "10", "--clock-every", "2"}, {"--clock-every 2 does not go with --idle-us 10"}},
      {{"write-bw", "--threads", "43", "--connections", "3"},
       {"--threads 43 with --connections 3", "129", "128 are the most"}},
      {{"write", "-s", "64M", "--threads", "17"},
       {"--threads 17", "67108864 bytes of --size or --sweep", "1140850688", "1073741824 are the most"}},
      {{"write", "--sweep", "1..64M", "--threads", "17"},
       {"--threads 17", "67108864 bytes of --size or --sweep", "1140850688", "1073741824 are the most"}},
      // On this machine.
      {{"read", "--cpu", "65535"}, {"--cpu 65535 is none of the ", " cpus that this process may use"}},
      {{"line", "--cpu", "65535"}, {"--cpu 65535 is none of the ", " cpus that this process may use"}},
  });
}

TEST(PerfUsage, Sweeps) {
  using Sizes = std::vector<std::uint64_t>;
  EXPECT_EQ(parse_sweep("1..8"), (Sizes{1, 2, 4, 8}));
  EXPECT_EQ(parse_sweep("3..9"), (Sizes{3, 4, 8, 9}));
  EXPECT_EQ(parse_sweep("5..5"), (Sizes{5}));
  EXPECT_EQ(parse_sweep("1K..4K"), (Sizes{1024, 2048, 4096}));
  EXPECT_EQ(parse_sweep("9223372036854775808..18446744073709551615"),
            (Sizes{std::uint64_t{1} << 63, ~std::uint64_t{0}}));
  for (const char* text : {"", "1", "..", "1..", "..1", "0..1", "2..1", "1..2..3", "1.2", "1..2Q"})
    EXPECT_TRUE(parse_sweep(text).empty()) << text;
}

TEST(PerfUsage, HelpAndVersionGoToStdout) {
  const Ran help = test::run_kv({"--help"});
  EXPECT_TRUE(perf_ended(help, 0));
  for (const PerfTestFacts& facts : perf_tests()) EXPECT_TRUE(has_text(help.out, facts.what)) << facts.name;
  EXPECT_TRUE(test::run_kv({"--version"}).out.starts_with("verbena-perf "));
}

TEST(PerfUsage, NobodyThereAndNoSuchDeviceHaveTheirReasons) {
  const Ran nobody = test::run_kv({"read", "-p", "1"});
  EXPECT_TRUE(perf_ended(nobody, 3));
  EXPECT_TRUE(has_text(nobody.err, "connection refused")) << nobody.err;
  const Ran device = test::run_kv({"read", "-d", "no_such0"});
  EXPECT_TRUE(perf_ended(device, 3));
  EXPECT_TRUE(perf_ended(test::run_kv({"server", "-p", "0", "-d", "no_such0"}), 3));
}

// --- runs

TEST(PerfRun, EveryTestAndSize) {
  Server server;
  ASSERT_FALSE(server.port().empty());
  for (const PerfTestFacts& facts : tests_to_run()) {
    // Longer than a page may not lie in one piece of physical memory.
    const char* const large = facts.by == PerfBy::kPhysical ? "4K" : "100K";
    const std::vector<Arguments> sizes = facts.has_size()
                                             ? std::vector<Arguments>{{"-s", "1"}, {"-s", "65"}, {"-s", large}}
                                             : std::vector<Arguments>{{}};
    for (const Arguments& size : sizes) {
      const Ran ran = server.run(facts.name, size);
      ASSERT_TRUE(perf_ended(ran, 0)) << facts.name << ' ' << testing::PrintToString(size);
      EXPECT_EQ(has_text(ran.out, "median"), facts.pace != PerfPace::kStream) << ran.out;
      EXPECT_EQ(has_text(ran.out, "one way"), facts.ping_pong()) << ran.out;
      EXPECT_EQ(has_text(ran.out, "bandwidth"), !facts.ping_pong()) << ran.out;
      EXPECT_EQ(has_text(ran.out, "a handler answers"), facts.keeps_server_busy()) << ran.out;
      EXPECT_TRUE(has_text(ran.out, "% of a core")) << ran.out;
    }
  }
}

TEST(PerfRun, AWindowIsAsLongAsTheServerMadeIt) {
  Server server({"--window", "8K"});
  ASSERT_FALSE(server.port().empty());
  EXPECT_TRUE(perf_ended(server.run("write", {"-s", "8K"}), 0));
  const Ran refused = server.run("write", {"-s", "9K"});
  EXPECT_TRUE(perf_ended(refused, 3));
  EXPECT_TRUE(has_text(refused.err, "rejected: the server's windows have 8192 B: start it with --window 9216"))
      << refused.err;
  EXPECT_TRUE(perf_ended(server.run("message", {"-s", "9K"}), 0));
  EXPECT_TRUE(
      perf_ended(test::run_kv({"write", "--local", "-d", device(), "-s", "2M", "-n", "5", "--warm-up", "1"}), 0));
}

TEST(PerfRun, WithoutThePrivilegeOnlyPhysicalAddressesAreRefused) {
  EXPECT_TRUE(test::in_child([]() -> std::string {
    // What a program of root's would get back when it is started.
    if (prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN) != 0 && test::may_see_frames()) return "CAP_SYS_ADMIN stays";
    const auto run = [](const char* test) {
      return test::run_kv({test, "--local", "-d", device(), "-n", "10", "--warm-up", "0", "--timeout-ms", "20000"});
    };
    const Ran refused = run("pa-read");
    if (refused.exit != 3 || !has_text(refused.err, "CAP_SYS_ADMIN"))
      return fmt::format("exit {}: {}{}", refused.exit, refused.out, refused.err);
    const Ran read = run("read");
    return read.exit == 0 ? "" : "a plain read: " + read.err;
  }));
}

TEST(PerfRun, OtherToolsNamesOfATestAreTaken) {
  Server server;
  ASSERT_FALSE(server.port().empty());
  for (const auto& [name, own] : {std::pair("send", "message"), std::pair("send-bw", "message-bw")}) {
    const Ran ran = server.run(name, {"--json"});
    EXPECT_TRUE(perf_ended(ran, 0)) << name;
    EXPECT_TRUE(has_text(ran.out, fmt::format("\"test\":\"{}\",", own))) << ran.out;
  }
}

TEST(PerfRun, RoundsPassTheMarkOfOneByte) {
  Server server;
  ASSERT_FALSE(server.port().empty());
  EXPECT_TRUE(perf_ended(
      test::run_kv({"pingpong", "-p", server.port(), "-d", device(), "-s", "1", "-n", "1000", "--warm-up", "0"}), 0));
}

/// The other side is of another user, on the software NIC.
TEST(PerfRun, OptionsSayWhichOtherUsersMayConnect) {
  if (!is_soft()) GTEST_SKIP() << "only the software NIC asks who the peer is";
  if (const char* why = test::why_not_as_another_user(); why != nullptr) GTEST_SKIP() << why;
  constexpr uid_t kStranger = 65534;
  const auto run = [&](const Server& server) {
    return test::run_kv_as(kStranger, {"read", "-p", server.port(), "-d", "soft", "-n", "20", "--warm-up", "2"});
  };
  {
    const Server closed;
    ASSERT_FALSE(closed.port().empty());
    const Ran refused = run(closed);
    EXPECT_TRUE(perf_ended(refused, 3));
    EXPECT_TRUE(has_text(refused.err, "not allowed")) << refused.err;
  }
  const Server open({"--allow-uid", "1234", "--allow-uid", std::to_string(kStranger)});
  ASSERT_FALSE(open.port().empty());
  EXPECT_TRUE(perf_ended(run(open), 0));
}

TEST(PerfRun, WithAKeyOnBothSides) {
  if (!test::has_keys()) GTEST_SKIP() << "this build has no keys";
  const test::KeyFile keys;
  const Server server({"--key-file", keys.path()});
  ASSERT_FALSE(server.port().empty());
  EXPECT_TRUE(perf_ended(server.run("read", {"--key-file", keys.path(), "--key-name", "old"}), 0));
  const Ran refused = server.run("read");
  EXPECT_TRUE(perf_ended(refused, 3));
  EXPECT_TRUE(has_text(refused.err, "the server asks for a key")) << refused.err;
}

/// Counts that neither connections nor depth divide.
TEST(PerfRun, ThreadsAndConnections) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  Server server;
  ASSERT_FALSE(server.port().empty());
  for (const PerfTestFacts& facts : tests_to_run()) {
    // The listener's thread polls for one.
    if (facts.name == std::string_view("pingpong")) continue;
    Arguments more{"--threads", "2", "--json"};
    if (facts.overlaps()) more = with(more, {"--connections", "3"});
    if (facts.pipelined()) more = with(more, {"--depth", "6"});
    const Ran ran = server.run(facts.name, more, "61");
    ASSERT_TRUE(perf_ended(ran, 0)) << facts.name;
    EXPECT_EQ(test::from_json(ran.out, "data[\"threads\"], data[\"operations\"], data[\"connections\"]"),
              facts.overlaps() ? "2 122 3" : "2 122 1")
        << facts.name << ran.out;
  }
  const Ran refused = server.run("pingpong", {"--threads", "2"});
  EXPECT_TRUE(perf_ended(refused, 3));
  EXPECT_TRUE(has_text(refused.err, "rejected: the listener's thread polls for one ping-pong")) << refused.err;
}

TEST(PerfRun, AThreadForEachConnectionMayAnswer) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  Server server({"--serve", "thread", "--clients", "5"});
  ASSERT_FALSE(server.port().empty());
  for (const char* test : {"message", "write-imm", "pingpong"}) {
    const Ran ran = server.run(test, {"--threads", "2", "--json"}, "20");
    ASSERT_TRUE(perf_ended(ran, 0)) << test;
    EXPECT_EQ(test::from_json(ran.out, "data[\"served_by\"], data[\"operations\"]"), "thread 40") << test;
  }
  EXPECT_TRUE(perf_ended(server.run("message-bw", {"--connections", "3", "-s", "20K"}), 0));
  const Ran text = server.run("message");
  ASSERT_TRUE(perf_ended(text, 0));
  EXPECT_TRUE(has_text(text.out, "a thread for each connection receives and answers")) << text.out;
  EXPECT_TRUE(perf_ended(server.process().finish(), 0)) << "its threads end with it";
  const Ran local =
      test::run_kv({"message", "--local", "--serve", "thread", "-d", device(), "-n", "20", "--warm-up", "2"});
  EXPECT_TRUE(perf_ended(local, 0));
}

/// Everything that is promised of a row, of each test.
constexpr const char* kSchema =
    "sorted(data) == [\"bytes\", \"bytes_per_s\", \"clock_every\", \"clock_ns\", \"connections\","
    " \"cpu\", \"cpus\", \"endpoint\", \"environment\", \"idle_us\", \"in_flight\", \"iterations\", \"latency\","
    " \"memory_bytes_per_s\", \"nic\", \"operations\", \"operations_per_s\", \"other_runs\", \"path\", \"seconds\","
    " \"served_by\", \"server_percent\", \"test\", \"threads\", \"warm_up\"],"
    "data[\"other_runs\"] == 0 and data[\"server_percent\"] >= 0,"
    "data[\"bytes_per_s\"] > 0 and data[\"operations_per_s\"] > 0 and data[\"seconds\"] > 0,"
    "data[\"environment\"][\"cores\"] > 0";
constexpr const char* kLatencySchema =
    "sorted(data[\"latency\"]) == [\"histogram\", \"max_ns\", \"mean_ns\", \"median_ns\", \"min_ns\", \"one_way\","
    " \"p90_ns\", \"p99_9_ns\", \"p99_ns\", \"samples\"],"
    "0 < data[\"latency\"][\"min_ns\"] <= data[\"latency\"][\"median_ns\"] <= data[\"latency\"][\"p90_ns\"]"
    " <= data[\"latency\"][\"p99_ns\"] <= data[\"latency\"][\"p99_9_ns\"] <= data[\"latency\"][\"max_ns\"],"
    "data[\"latency\"][\"min_ns\"] <= data[\"latency\"][\"mean_ns\"] <= data[\"latency\"][\"max_ns\"],"
    "sum(count for _, count in data[\"latency\"][\"histogram\"]) == data[\"latency\"][\"samples\"]";

constexpr const char* kNoLatency = "data[\"latency\"]";

TEST(PerfRun, JsonHasWhatWasMeasuredAndOn) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  for (const PerfTestFacts& facts : tests_to_run()) {
    const Ran ran = test::run_kv({facts.name, "--local", "-d", device(), "-n", "40", "--warm-up", "3", "--json"});
    ASSERT_TRUE(perf_ended(ran, 0)) << facts.name;
    EXPECT_EQ(test::from_json(ran.out,
                              "data[\"test\"], data[\"iterations\"], data[\"warm_up\"], data[\"nic\"],"
                              "data[\"bytes\"], data[\"in_flight\"], data[\"served_by\"]"),
              fmt::format("{} 40 3 {} {} {} handler", facts.name, device(), facts.bytes, facts.depth));
    // Nothing tells a sender of messages when each has arrived.
    const bool has_latency = facts.pace != PerfPace::kStream;
    EXPECT_EQ(test::from_json(ran.out, fmt::format("{}, {}", kSchema, has_latency ? kLatencySchema : kNoLatency)),
              has_latency ? "True True True True True True True True" : "True True True True None")
        << facts.name << ran.out;
  }
}

TEST(PerfRun, LimitsOfTheMachineAreRowsOfTheirOwn) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  const Ran copy = test::run_kv({"memcpy", "-s", "64K", "-n", "50", "--warm-up", "5", "--json"});
  ASSERT_TRUE(perf_ended(copy, 0));
  EXPECT_EQ(test::from_json(copy.out, kSchema), "True True True True") << copy.out;
  EXPECT_EQ(test::from_json(copy.out, kLatencySchema), "True True True True") << copy.out;
  EXPECT_EQ(test::from_json(copy.out,
                            "data[\"test\"], data[\"bytes\"], data[\"operations\"],"
                            "data[\"latency\"][\"one_way\"], data[\"memory_bytes_per_s\"] > 0"),
            "memcpy 65536 50 False True");
  EXPECT_TRUE(perf_ended(test::run_kv({"memcpy", "--sweep", "3..5", "-n", "50"}), 0));

  const Ran line = test::run_kv({"line", "-n", "6400", "--warm-up", "64", "--json"});
  const Ran wake = test::run_kv({"wake", "-n", "20", "--warm-up", "2", "--idle-us", "100", "--json"});
  if (allowed_cpus().size() < 2) {
    for (const Ran& ran : {line, wake}) {
      EXPECT_TRUE(perf_ended(ran, 3));
      EXPECT_TRUE(has_text(ran.err, "needs two cpus")) << ran.err;
    }
    return;
  }
  ASSERT_TRUE(perf_ended(line, 0));
  EXPECT_EQ(test::from_json(line.out, kSchema), "True True True True") << line.out;
  EXPECT_EQ(test::from_json(line.out, kLatencySchema), "True True True True") << line.out;
  EXPECT_EQ(test::from_json(line.out,
                            "data[\"test\"], len(set(data[\"cpus\"])), data[\"latency\"][\"one_way\"],"
                            "0 < data[\"operations\"] <= 6400"),
            "line 2 True True");
  ASSERT_TRUE(perf_ended(wake, 0));
  EXPECT_EQ(test::from_json(wake.out, kSchema), "True True True True") << wake.out;
  EXPECT_EQ(test::from_json(wake.out, kLatencySchema), "True True True True") << wake.out;
  EXPECT_EQ(test::from_json(wake.out,
                            "data[\"test\"], len(set(data[\"cpus\"])), data[\"latency\"][\"samples\"],"
                            "data[\"operations\"]"),
            "wake 2 20 20");
}

TEST(PerfRun, ASweepIsARowASize) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  const Arguments sweep{"write", "--local", "-d", device(), "--sweep", "3..9", "-n", "20", "--warm-up", "2"};
  const Ran table = test::run_kv(sweep);
  ASSERT_TRUE(perf_ended(table, 0));
  EXPECT_TRUE(has_text(table.out, "99.9 %")) << table.out;
  for (const char* row : {"\n           3 ", "\n           4 ", "\n           8 ", "\n           9 "})
    EXPECT_TRUE(has_text(table.out, row)) << table.out;
  const Ran json = test::run_kv(with(sweep, {"--json"}));
  ASSERT_TRUE(perf_ended(json, 0));
  EXPECT_EQ(test::from_json_lines(json.out, "[row[\"bytes\"] for row in data]"), "[3, 4, 8, 9]");
}

TEST(PerfRun, OneReadingOfTheClockForSeveralOperations) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  const Ran ran = test::run_kv(
      {"read", "--local", "-d", device(), "-n", "100", "--warm-up", "10", "--clock-every", "32", "--json"});
  ASSERT_TRUE(perf_ended(ran, 0));
  EXPECT_EQ(test::from_json(ran.out, "data[\"operations\"], data[\"latency\"][\"samples\"], data[\"clock_every\"]"),
            "100 4 32");
}

TEST(PerfRun, MessagesAfterSilence) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  const Arguments idle{"message", "--local", "-d", device(), "--idle-us", "2000", "-n", "20", "--warm-up", "2"};
  const Ran text = test::run_kv(idle);
  ASSERT_TRUE(perf_ended(text, 0));
  EXPECT_TRUE(has_text(text.out, "after 2000 us of silence each")) << text.out;
  const Ran json = test::run_kv(with(idle, {"--json"}));
  ASSERT_TRUE(perf_ended(json, 0));
  EXPECT_EQ(test::from_json(json.out, "data[\"idle_us\"], data[\"latency\"][\"samples\"], data[\"seconds\"] >= 0.04"),
            "2000 20 True")
      << json.out;
}

TEST(PerfRun, ServerEndsWithItsLastClient) {
  Server once({"--once"});
  ASSERT_FALSE(once.port().empty());
  EXPECT_TRUE(perf_ended(once.run("read"), 0));
  EXPECT_TRUE(perf_ended(once.process().finish(), 0));
  Server server({"--clients", "2"});
  ASSERT_FALSE(server.port().empty());
  EXPECT_TRUE(perf_ended(server.run("read"), 0));
  EXPECT_TRUE(perf_ended(server.run("message"), 0));
  EXPECT_TRUE(perf_ended(server.process().finish(), 0));
}

TEST(PerfRun, ALocalServerThatStaysIsForced) {
  const auto server =
      PerfLocalServer::start({.where = {.transport = {.device = device(), .gid_index = {}}}, .clients = 1});
  ASSERT_OK(server);
  EXPECT_NE(server->port(), 0);
  // No client comes, so that it does not end by itself: the destructor returns nevertheless.
}

TEST(PerfRun, ALocalServerThatDoesNotStartIsTold) {
  EXPECT_STATUS(PerfLocalServer::start({.where = {.transport = {.device = "no_such0", .gid_index = {}}}}),
                Status::kPeerLost);
}

// --- ends

TEST(PerfEnds, ServersDeathEndsEveryTest) {
  for (const PerfTestFacts& facts : tests_to_run()) {
    const std::string test = facts.name;
    Server server;
    ASSERT_FALSE(server.port().empty());
    KvProcess client(server.endless(test, death_timeout()));
    ASSERT_FALSE(client.first_line().empty()) << test;
    server.process().send(SIGKILL);
    const Ran ran = client.finish();
    EXPECT_TRUE(perf_ended(ran, 3)) << test;
    // On a device it depends on what went first: nobody answers, or the memory is not registered any more.
    EXPECT_TRUE(has_text(ran.err, is_soft() ? "peer lost: the run broke after " : ": the run broke after "))
        << test << ": " << ran.err;
  }
}

TEST(PerfEnds, ClientsDeathLeavesTheServerToTheNext) {
  Server server({"--timeout-ms", death_timeout()});
  ASSERT_FALSE(server.port().empty());
  for (const PerfTestFacts& facts : tests_to_run()) {
    const std::string test = facts.name;
    {
      KvProcess client(server.endless(test, "5000"));
      ASSERT_FALSE(client.first_line().empty()) << test;
    }
    EXPECT_TRUE(perf_ended(server.run("read"), 0)) << "after " << test;
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
    EXPECT_TRUE(perf_ended(ran, 3)) << test;
    EXPECT_TRUE(has_text(ran.err, "timed out: the run broke after ")) << test << ": " << ran.err;
  }
}

/// It has the listener's thread, which others wait for.
TEST(PerfEnds, SilentClientOfAPingPongIsTimedOut) {
  Server server({"--timeout-ms", "300"});
  ASSERT_FALSE(server.port().empty());
  KvProcess client(server.endless("pingpong", "3600000"));
  ASSERT_FALSE(client.first_line().empty());
  client.send(SIGSTOP);
  EXPECT_TRUE(perf_ended(server.run("read"), 0));
}

// --- clients that are none

/// A connection to a server of verbena-perf, which says whatever it likes.
class PerfHostile : public testing::Test {
 protected:
  void SetUp() override {
    VERBENA_SKIP_ON_A_DEVICE("the stranger speaks to the software NIC");
    ASSERT_FALSE(server_.port().empty());
    connect();
  }
  void connect(std::size_t window_bytes = 4096) {
    stranger_.reset();
    auto connected = Connection::connect({.transport = {.device = "soft", .gid_index = {}},
                                          .port = server_.port_number(),
                                          .timeout = std::chrono::seconds{20},
                                          .window_bytes = window_bytes});
    ASSERT_OK(connected);
    stranger_ = std::move(*connected);
  }
  /// What the server answers to a request; its end where it has none.
  std::expected<Reply, Status> ask(std::span<const std::byte> request) {
    if (const Status sent = stranger_->send(request); sent != Status::kOk) return std::unexpected(sent);
    std::array<std::byte, sizeof(Reply)> buffer{};
    const auto answer = stranger_->receive(buffer);
    if (!answer) return std::unexpected(answer.error());
    return perf_wire::decode_reply(answer->data, 0);
  }
  /// The server closes the connection, and serves the next.
  void expect_sent_away() {
    std::array<std::byte, sizeof(Reply)> buffer{};
    const auto answer = stranger_->receive(buffer);
    ASSERT_FALSE(answer.has_value());
    EXPECT_EQ(answer.error(), Status::kClosed) << to_string(answer.error());
    EXPECT_TRUE(perf_ended(server_.run("read"), 0));
  }

  Server server_{Arguments{"--once"}};
  std::unique_ptr<Connection> stranger_;
};

constexpr Request kRun{.test = PerfTest::kRead, .connections = 1, .bytes = 64};
constexpr Ask kBye = Ask::kBye;

TEST_F(PerfHostile, GarbageBeforeAConnection) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_.port_number());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const std::string garbage(700, '\xA5');
  EXPECT_GT(::send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  char byte = 0;
  EXPECT_LE(::recv(fd, &byte, 1, 0), 512) << "closed, with or without a word";
  ::close(fd);
  EXPECT_TRUE(perf_ended(server_.run("read"), 0));
}

TEST_F(PerfHostile, NoRequest) {
  ASSERT_EQ(stranger_->send(std::as_bytes(std::span("\xA5"))), Status::kOk);
  expect_sent_away();
}

TEST_F(PerfHostile, ARequestCutShort) {
  ASSERT_EQ(stranger_->send(bytes_of(kRun).first(sizeof kRun - 1)), Status::kOk);
  expect_sent_away();
}

TEST_F(PerfHostile, ARequestOfTooMuch) {
  Request request = kRun;
  request.bytes = facts_of(request.test).most_bytes + 1;
  ASSERT_EQ(stranger_->send(bytes_of(request)), Status::kOk);
  expect_sent_away();
}

TEST_F(PerfHostile, ARequestThatTheWindowHolds) {
  constexpr Request kInWindow = kRun;
  ASSERT_EQ(stranger_->write_with_immediate(bytes_of(kInWindow), static_cast<std::uint32_t>(Ask::kRun)), Status::kOk);
  std::array<std::byte, sizeof(Reply)> buffer{};
  const auto answer = stranger_->receive(buffer);
  ASSERT_TRUE(answer.has_value()) << "as good as a message";
  EXPECT_TRUE(perf_wire::decode_reply(answer->data, kInWindow.bytes).has_value());
}

TEST_F(PerfHostile, AByeWithoutARunCountsForNothing) {
  ASSERT_EQ(stranger_->send(bytes_of(kBye)), Status::kOk);
  expect_sent_away();
  EXPECT_TRUE(perf_ended(server_.process().finish(), 0));
}

TEST_F(PerfHostile, OneRunAConnection) {
  const auto first = ask(bytes_of(kRun));
  ASSERT_TRUE(first.has_value());
  EXPECT_STREQ(first->refusal.data(), "");
  const auto second = ask(bytes_of(kRun));
  ASSERT_TRUE(second.has_value());
  EXPECT_STREQ(second->refusal.data(), "a connection is in one run");
  EXPECT_TRUE(ask(bytes_of(kBye)).has_value());
}

/// Who breaks a run does not end a server that is to serve one whole.
TEST_F(PerfHostile, ABrokenRunDoesNotCount) {
  ASSERT_TRUE(ask(bytes_of(kRun)).has_value());
  stranger_.reset();
  EXPECT_TRUE(perf_ended(server_.run("read"), 0));
  const Ran ran = server_.process().finish();
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(ran.err, "verbena-perf: closed: a run of read with 64 B broke\n");
}

TEST_F(PerfHostile, AnAnswerThatHasNoPlace) {
  ASSERT_NO_FATAL_FAILURE(connect(0));
  ASSERT_EQ(stranger_->write_with_immediate(bytes_of(kRun), static_cast<std::uint32_t>(Ask::kAnswer)), Status::kOk);
  expect_sent_away();
}

TEST_F(PerfHostile, APingPongWithoutAWindow) {
  ASSERT_NO_FATAL_FAILURE(connect(0));
  Request request = kRun;
  request.test = PerfTest::kPingPong;
  ASSERT_TRUE(ask(bytes_of(request)).has_value());
  const std::byte mark{kFirstMark};
  ASSERT_EQ(stranger_->write(std::span(&mark, 1), request.bytes - 1), Status::kOk);
  expect_sent_away();
}

/// Its figures are told to be of both.
TEST_F(PerfHostile, TwoRunsAtOnceAreTold) {
  ASSERT_TRUE(ask(bytes_of(kRun)).has_value());
  const Ran ran = server_.run("message");
  ASSERT_TRUE(perf_ended(ran, 0));
  EXPECT_TRUE(has_text(ran.out, "the server served 1 other runs meanwhile")) << ran.out;
}

TEST(PerfWire, TakesWhatItsOwnClientsAndServersSay) {
  EXPECT_EQ(perf_wire::decode_request(bytes_of(kRun)), kRun);
  const Reply reply{.serving = Serving::kThread, .refusal = {'n', 'o'}, .physical = 4096};
  const auto decoded = perf_wire::decode_reply(bytes_of(reply), 64);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->serving, Serving::kThread);
  EXPECT_STREQ(decoded->refusal.data(), "no");
  EXPECT_EQ(decoded->physical, 4096u);
}

TEST(PerfWire, RefusesEveryFieldOutOfItsRange) {
  const auto run_with = [](auto&& change) {
    Request request = kRun;
    change(request);
    return perf_wire::decode_request(bytes_of(request)).has_value();
  };
  EXPECT_TRUE(run_with([](Request&) {}));
  EXPECT_FALSE(run_with([](Request& r) { ++r.magic; }));
  EXPECT_FALSE(run_with([](Request& r) { ++r.version; }));
  EXPECT_FALSE(run_with([](Request& r) { r.ask = Ask::kBye; }));
  EXPECT_FALSE(run_with([](Request& r) { r.test = PerfTest::kLine; }));
  EXPECT_FALSE(run_with([](Request& r) { r.test = PerfTest::kWake; }));
  EXPECT_FALSE(run_with([](Request& r) { r.test = PerfTest{16}; }));
  EXPECT_FALSE(run_with([](Request& r) { r.test = PerfTest{255}; }));
  EXPECT_FALSE(run_with([](Request& r) { r.bytes = 0; }));
  EXPECT_TRUE(run_with([](Request& r) { r.connections = 0; }));
  EXPECT_TRUE(run_with([](Request& r) { r.connections = perf_wire::kMaxConnections; }));
  EXPECT_FALSE(run_with([](Request& r) { r.connections = perf_wire::kMaxConnections + 1; }));
  for (std::size_t i = 0; i < Request().reserved.size(); ++i)
    EXPECT_FALSE(run_with([&](Request& r) { r.reserved[i] = 1; }));
  for (std::size_t i = 0; i < perf_tests().size(); ++i) {
    const auto test = static_cast<PerfTest>(i);
    const PerfTestFacts& facts = facts_of(test);
    EXPECT_EQ(run_with([&](Request& r) { r.test = test, r.bytes = facts.most_bytes; }), facts.has_peer()) << facts.name;
    EXPECT_FALSE(run_with([&](Request& r) { r.test = test, r.bytes = facts.most_bytes + 1; })) << facts.name;
    EXPECT_EQ(run_with([&](Request& r) { r.test = test, r.bytes = 1; }), facts.has_peer() && facts.has_size())
        << facts.name;
  }
  for (std::size_t length = 0; length < sizeof kRun; ++length)
    EXPECT_FALSE(perf_wire::decode_request(bytes_of(kRun).first(length)).has_value());

  const auto reply_with = [](auto&& change) {
    Reply reply;
    change(reply);
    return perf_wire::decode_reply(bytes_of(reply), 64).has_value();
  };
  EXPECT_TRUE(reply_with([](Reply&) {}));
  EXPECT_FALSE(reply_with([](Reply& r) { ++r.magic; }));
  EXPECT_FALSE(reply_with([](Reply& r) { ++r.version; }));
  EXPECT_FALSE(reply_with([](Reply& r) { r.ask = Ask::kNothing; }));
  EXPECT_FALSE(reply_with([](Reply& r) { r.serving = Serving{2}; }));
  EXPECT_FALSE(reply_with([](Reply& r) { r.refusal.fill('x'); })) << "without its end";
  EXPECT_TRUE(reply_with([](Reply& r) { r.physical = ~std::uint64_t{64}; }));
  EXPECT_FALSE(reply_with([](Reply& r) { r.physical = ~std::uint64_t{63}; })) << "it wraps";
  const Reply reply;
  for (std::size_t length = 0; length < sizeof reply; ++length)
    EXPECT_FALSE(perf_wire::decode_reply(bytes_of(reply).first(length), 64).has_value());
}

TEST(PerfMark, TwoRoundsThatFollowEachOtherDiffer) {
  std::uint8_t mark = kFirstMark;
  for (int round = 0; round < 600; ++round) {
    const std::uint8_t next = next_mark(mark);
    EXPECT_NE(next, mark);
    EXPECT_NE(next, kStopMark);
    EXPECT_NE(next, kFirstMark) << "nothing but the first round's memory is 0 before";
    std::array<std::byte, 11> bytes{};
    set_mark(std::span(bytes).first(1), next);
    EXPECT_EQ(bytes[0], std::byte{next});
    set_mark(bytes, next);
    EXPECT_EQ(bytes[10], std::byte{next});
    mark = next;
  }
}

}  // namespace
}  // namespace verbena::programs
