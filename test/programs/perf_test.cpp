// verbena-perf: the real program between two processes, what ends a run, and clients that are none. On the soft NIC,
// and where VERBENA_NIC names an RDMA device the runs are on that.
#include "programs/perf.hpp"
#include "../host/child.hpp"
#include "base/error.hpp"
#include "capability.hpp"
#include "device.hpp"
#include "kv_process.hpp"
#include "programs/line.hpp"
#include "programs/perf_end.hpp"
#include "result.hpp"
#include "shell.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

using perf_wire::ChannelHello;
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
/// Where it is set, this program is a server that does not end: the descriptor of which it writes when it does.
constexpr const char* kStaysEnv = "VERBENA_TEST_STAYS";

int stay(int report) {
  const std::string lines = "verbena-perf: serving on here:1234\n" + std::string(1000, '\n');
  if (::write(STDOUT_FILENO, lines.data(), lines.size()) < 0) return 1;
  ::poll(nullptr, 0, 60'000);
  return ::write(report, "e", 1) == 1 ? 0 : 1;
}

bool is_soft() { return device() == "soft"; }

/// On the soft NIC so long that nothing but the peer's death can end a wait; a device has no other way for a side that
/// has nothing in flight.
std::string death_timeout() { return is_soft() ? "3600000" : "3000"; }

/// Those with a server.
const std::vector<PerfTestFacts>& peer_tests() {
  static const std::vector<PerfTestFacts> tests = [] {
    std::vector<PerfTestFacts> found;
    std::ranges::copy_if(perf_tests(), std::back_inserter(found),
                         [](const PerfTestFacts& facts) { return facts.by != PerfBy::kNothing; });
    return found;
  }();
  return tests;
}

/// Of these, what this process may run.
const std::vector<PerfTestFacts>& tests_to_run() {
  static const std::vector<PerfTestFacts> tests = [] {
    std::vector<PerfTestFacts> found;
    std::ranges::copy_if(peer_tests(), std::back_inserter(found), [](const PerfTestFacts& facts) {
      return facts.by != PerfBy::kPhysical || test::may_see_frames();
    });
    return found;
  }();
  return tests;
}

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
  [[nodiscard]] Ran run(const std::string& test, const Arguments& more = {}, const std::string& count = "50") const {
    return test::run_kv(
        with({test, "-p", port_, "-d", device(), "-n", count, "--warm-up", "5", "--timeout-ms", "30000"}, more));
  }

 private:
  KvProcess process_;
  std::string port_;
};

// --- the command line

struct Wrong {
  Arguments arguments;
  const char* says;
};

TEST(PerfUsage, WrongCommandLinesEndWithTwoAndSayWhatIsWrong) {
  const std::vector<Wrong> wrong{
      {{}, "subcommand"},
      {{"frobnicate"}, "subcommand"},
      {{"read", "-s", "0"}, "--size 0: takes 1 to 67108864"},
      {{"read", "-s", "1G"}, "--size 1073741824: takes 1 to 67108864"},
      {{"read", "-s", "8Q"}, "--size 8Q: takes bytes"},
      {{"read", "-s", "K"}, "--size K: takes bytes"},
      {{"read", "-s", "99999999999999999999"}, "--size 99999999999999999999: takes bytes"},
      {{"read", "-s", "-1"}, "--size -1: takes bytes"},
      {{"message", "-s", "16385"}, "--size 16385: takes 1 to 16384"},
      {{"large-bw", "-s", "1048577"}, "--size 1048577: takes 1 to 1048576"},
      {{"fetch-add", "-s", "8"}, "-s"},
      {{"line", "-s", "8"}, "-s"},
      {{"read", "--sweep", "8"}, "--sweep 8: takes FIRST..LAST"},
      {{"read", "--sweep", "0..8"}, "--sweep 0..8: takes FIRST..LAST"},
      {{"read", "--sweep", "16..8"}, "--sweep 16..8: takes FIRST..LAST"},
      {{"read", "--sweep", "1..x"}, "--sweep 1..x: takes FIRST..LAST"},
      {{"read", "--sweep", "1..128M"}, "--size 134217728: takes 1 to 67108864"},
      {{"read", "--sweep", "1..8", "-s", "8"}, "excludes"},
      {{"write-bw", "--in-flight", "0"}, "--depth 0: takes 1 to 1024"},
      {{"write-bw", "--depth", "1025"}, "--depth 1025: takes 1 to 1024"},
      {{"write-bw", "--depth", "some"}, "some"},
      {{"write-bw", "--depth", "1024", "--connections", "17"}, "--depth 1024 on 17 connections: 16384 in flight"},
      {{"write-bw", "--connections", "0"}, "--connections 0: takes 1 to 256"},
      {{"write-bw", "--connections", "257"}, "--connections 257: takes 1 to 256"},
      {{"write-bw", "--batch", "0"}, "--batch 0: takes 1 to 32"},
      {{"write-bw", "--batch", "33"}, "--batch 33: takes 1 to 32"},
      {{"write-bw", "--clock-every", "2"}, "--clock-every"},
      {{"large-bw", "-s", "1M", "--depth", "1024"}, "B of memory at each end; 1073741824 at most"},
      {{"write", "-s", "64M", "--threads", "9"}, "B of memory at each end; 1073741824 at most"},
      {{"read", "--in-flight", "1"}, "--in-flight"},
      {{"read", "--connections", "2"}, "--connections"},
      {{"read", "--threads", "0"}, "--threads 0: takes 1 to 64"},
      {{"read", "--threads", "65"}, "--threads 65: takes 1 to 64"},
      {{"read", "--clock-every", "0"}, "--clock-every 0: takes 1 to 1000"},
      {{"read", "--clock-every", "1001"}, "--clock-every 1001: takes 1 to 1000"},
      {{"read", "--wait", "2"}, "--wait 2: takes spin, adaptive or event"},
      {{"read", "--wait", "hard"}, "--wait hard: takes spin"},
      {{"pingpong", "--wait", "event"}, "--wait event: pingpong polls memory"},
      {{"read", "--idle-us", "1"}, "--idle-us"},
      {{"message", "--idle-us", "1000001"}, "--idle-us 1000001: takes 0 to 1000000"},
      {{"message", "--idle-us", "1000000", "--timeout-ms", "2000"}, "raise --timeout-ms above 2000"},
      {{"message", "--idle-us", "10", "--timeout-ms", "1000"}, "raise --timeout-ms above 1000"},
      {{"message", "--idle-us", "10", "--threads", "2"}, "--idle-us: takes one thread"},
      {{"message", "--idle-us", "10", "--clock-every", "2"}, "--clock-every"},
      {{"read", "-n", "0"}, "--iterations 0: takes 1 to 1099511627776"},
      {{"read", "-n", "many"}, "many"},
      {{"read", "-n", "1099511627777"}, "--iterations 1099511627777: takes 1 to"},
      {{"read", "--warm-up", "-1"}, "--warm-up"},
      {{"read", "--warm-up", "1099511627777"}, "--warm-up 1099511627777: takes 0 to"},
      {{"read", "--json", "--csv"}, "excludes"},
      {{"read", "-p", "0"}, "--port"},
      {{"read", "-p", "65536"}, "--port"},
      {{"read", "--timeout-ms", "0"}, "--timeout-ms"},
      {{"read", "--once"}, "--once"},
      {{"line", "--local"}, "--local"},
      {{"line", "--threads", "2"}, "--threads"},
      {{"wake", "--local"}, "--local"},
      {{"wake", "--idle-us", "0"}, "--idle-us 0: takes 1 to 1000000"},
      {{"memcpy", "-s", "0"}, "--size 0: takes 1 to 67108864"},
      {{"memcpy", "-d", "soft"}, "-d"},
      {{"server", "--local"}, "--local"},
      {{"server", "--clients", "0"}, "--clients"},
      {{"server", "--clients", "2", "--once"}, "excludes"},
  };
  for (const Wrong& one : wrong) {
    const Ran ran = test::run_kv(one.arguments);
    EXPECT_TRUE(ended(ran, 2)) << testing::PrintToString(one.arguments);
    EXPECT_TRUE(has(ran.err, one.says)) << testing::PrintToString(one.arguments) << ": " << ran.err;
    EXPECT_TRUE(has(ran.err, "--help")) << testing::PrintToString(one.arguments);
  }
}

TEST(PerfUsage, SizesAndSweeps) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("8"), 8u);
  EXPECT_EQ(parse_bytes("64K"), 65536u);
  EXPECT_EQ(parse_bytes("3M"), 3u << 20);
  EXPECT_EQ(parse_bytes("18446744073709551615"), ~std::uint64_t{0});
  EXPECT_EQ(parse_bytes("17179869183G"), std::uint64_t{17179869183} << 30);
  for (const char* text :
       {"", "K", "k", "1k", "1 K", " 1", "+1", "-1", "1KK", "0x8", "18446744073709551616", "17179869184G"})
    EXPECT_FALSE(parse_bytes(text)) << text;
  using Sizes = std::vector<std::uint64_t>;
  EXPECT_EQ(parse_sweep("1..8"), (Sizes{1, 2, 4, 8}));
  EXPECT_EQ(parse_sweep("3..9"), (Sizes{3, 4, 8, 9}));
  EXPECT_EQ(parse_sweep("5..5"), (Sizes{5}));
  EXPECT_EQ(parse_sweep("1K..4K"), (Sizes{1024, 2048, 4096}));
  EXPECT_EQ(parse_sweep("9223372036854775808..18446744073709551615"),
            (Sizes{std::uint64_t{1} << 63, ~std::uint64_t{0}}));
  for (const char* text : {"", "1", "..", "1..", "..1", "0..1", "2..1", "1..2..3", "1.2"})
    EXPECT_TRUE(parse_sweep(text).empty()) << text;
}

TEST(PerfUsage, HelpAndVersionGoToStdout) {
  const Ran help = test::run_kv({"--help"});
  EXPECT_TRUE(ended(help, 0));
  for (const PerfTestFacts& facts : perf_tests()) EXPECT_TRUE(has(help.out, facts.what)) << facts.name;
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
  for (const PerfTestFacts& facts : tests_to_run()) {
    // Longer than a page may not lie in one piece of physical memory.
    const char* const large = facts.by == PerfBy::kPhysical ? "4K" : "16K";
    const std::vector<Arguments> sizes = facts.has_size()
                                             ? std::vector<Arguments>{{"-s", "1"}, {"-s", "65"}, {"-s", large}}
                                             : std::vector<Arguments>{{}};
    for (const Arguments& size : sizes) {
      const Ran ran = server.run(facts.name, size);
      ASSERT_TRUE(ended(ran, 0)) << facts.name << ' ' << testing::PrintToString(size);
      EXPECT_EQ(has(ran.out, "median"), facts.test != PerfTest::kMessageBw) << ran.out;
      EXPECT_EQ(has(ran.out, "one way"), facts.ping_pong()) << ran.out;
      EXPECT_EQ(has(ran.out, "bandwidth"), !facts.ping_pong()) << ran.out;
    }
  }
}

TEST(PerfRun, WithoutThePrivilegeOnlyPhysicalAddressesAreRefused) {
  EXPECT_TRUE(test::in_child([]() -> std::string {
    // What a program of root's would get back when it is started.
    if (prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN) != 0 && test::may_see_frames()) return "CAP_SYS_ADMIN stays";
    const auto run = [](const char* test) {
      return test::run_kv({test, "--local", "-d", device(), "-n", "10", "--warm-up", "0", "--timeout-ms", "20000"});
    };
    const Ran refused = run("pa-read");
    if (refused.exit != 3 || !has(refused.err, "CAP_SYS_ADMIN"))
      return fmt::format("exit {}: {}{}", refused.exit, refused.out, refused.err);
    const Ran read = run("read");
    return read.exit == 0 ? "" : "a plain read: " + read.err;
  }));
}

TEST(PerfRun, OtherToolsNamesOfATestAreTaken) {
  Server server;
  ASSERT_FALSE(server.port().empty());
  for (const auto& [name, own] : {std::pair("send", "message"), std::pair("send-bw", "message-bw")}) {
    const Ran ran = server.run(name, {"--csv"});
    EXPECT_TRUE(ended(ran, 0)) << name;
    EXPECT_TRUE(has(ran.out, fmt::format("\n{},", own))) << ran.out;
  }
}

TEST(PerfRun, RoundsPassTheMarkOfOneByte) {
  Server server;
  ASSERT_FALSE(server.port().empty());
  EXPECT_TRUE(ended(
      test::run_kv({"pingpong", "-p", server.port(), "-d", device(), "-s", "1", "-n", "1000", "--warm-up", "0"}), 0));
}

/// Several threads, connections and batches at once, the last of which are not whole.
TEST(PerfRun, ThreadsConnectionsAndBatches) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  Server server;
  ASSERT_FALSE(server.port().empty());
  for (const PerfTestFacts& facts : peer_tests()) {
    Arguments more{"--threads", "2", "--json"};
    if (facts.pipelined()) more = with(more, {"--connections", "3", "--depth", "6", "--batch", "4"});
    // More threads than most machines here have cpus for; but pingpong has no other way of waiting.
    if (facts.test != PerfTest::kPingPong) more = with(more, {"--wait", "adaptive"});
    const Ran ran = server.run(facts.name, more, "61");
    ASSERT_TRUE(ended(ran, 0)) << facts.name;
    EXPECT_EQ(test::from_json(ran.out,
                              "data[\"threads\"], data[\"operations\"], data[\"connections\"], data[\"batch\"],"
                              "data[\"work\"][\"requests\"] >= 122"),
              facts.pipelined() ? "2 122 3 4 True" : "2 122 1 1 True")
        << facts.name << ran.out;
  }
}

TEST(PerfRun, ABatchIsOneDoorbell) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  for (const char* test : {"write-bw", "read-bw", "fetch-add-bw", "write-imm-bw", "message-bw"}) {
    const Ran ran = test::run_kv(
        {test, "--local", "-d", device(), "-n", "800", "--warm-up", "80", "--depth", "16", "--batch", "4", "--json"});
    ASSERT_TRUE(ended(ran, 0)) << test;
    // A stream also has messages that are not there in a multiple of four: credits.
    EXPECT_EQ(test::from_json(ran.out,
                              "800 <= data[\"work\"][\"requests\"] <= 900,"
                              "data[\"work\"][\"doorbells\"] <= data[\"work\"][\"requests\"] / 2"),
              "True True")
        << test << ran.out;
  }
}

/// Everything that is promised of a row, of each test.
constexpr const char* kSchema =
    "sorted(data) == [\"batch\", \"bytes\", \"bytes_per_s\", \"clock_every\", \"clock_ns\", \"connections\","
    " \"cpu\", \"cpus\", \"endpoint\", \"environment\", \"idle\", \"in_flight\", \"iterations\", \"latency\","
    " \"memory_bytes_per_s\", \"nic\", \"operations\", \"operations_per_s\", \"path\", \"seconds\", \"test\","
    " \"threads\", \"wait\", \"warm_up\", \"work\"],"
    "sorted(data[\"work\"]) == [\"completions\", \"direct\", \"doorbells\", \"empty_polls\", \"inline\", \"requests\","
    " \"sleeps\"],"
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
  for (const PerfTestFacts& facts : peer_tests()) {
    const Ran ran = test::run_kv({facts.name, "--local", "-d", device(), "-n", "40", "--warm-up", "3", "--json"});
    ASSERT_TRUE(ended(ran, 0)) << facts.name;
    EXPECT_EQ(test::from_json(ran.out,
                              "data[\"test\"], data[\"iterations\"], data[\"warm_up\"], data[\"nic\"],"
                              "data[\"bytes\"], data[\"in_flight\"], data[\"work\"][\"requests\"] >= 40"),
              fmt::format("{} 40 3 {} {} {} True", facts.name, device(), facts.bytes, facts.depth));
    // Nothing tells a sender of messages when each has arrived.
    const bool has_latency = facts.test != PerfTest::kMessageBw;
    EXPECT_EQ(test::from_json(ran.out, fmt::format("{}, {}", kSchema, has_latency ? kLatencySchema : kNoLatency)),
              has_latency ? "True True True True True True True True" : "True True True True None")
        << facts.name << ran.out;
  }
}

TEST(PerfRun, LimitsOfTheMachineAreRowsOfTheirOwn) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  const Ran copy = test::run_kv({"memcpy", "-s", "64K", "-n", "50", "--warm-up", "5", "--json"});
  ASSERT_TRUE(ended(copy, 0));
  EXPECT_EQ(test::from_json(copy.out, kSchema), "True True True True") << copy.out;
  EXPECT_EQ(test::from_json(copy.out, kLatencySchema), "True True True True") << copy.out;
  EXPECT_EQ(test::from_json(copy.out,
                            "data[\"test\"], data[\"bytes\"], data[\"operations\"],"
                            "data[\"latency\"][\"one_way\"], data[\"memory_bytes_per_s\"] > 0"),
            "memcpy 65536 50 False True");
  EXPECT_TRUE(ended(test::run_kv({"memcpy", "--sweep", "3..5", "-n", "50"}), 0));

  const Ran line = test::run_kv({"line", "-n", "6400", "--warm-up", "64", "--json"});
  const Ran wake = test::run_kv({"wake", "-n", "20", "--warm-up", "2", "--idle-us", "100", "--json"});
  if (allowed_cpus().size() < 2) {
    for (const Ran& ran : {line, wake}) {
      EXPECT_TRUE(ended(ran, 3));
      EXPECT_TRUE(has(ran.err, "needs two cpus")) << ran.err;
    }
    return;
  }
  ASSERT_TRUE(ended(line, 0));
  EXPECT_EQ(test::from_json(line.out, kSchema), "True True True True") << line.out;
  EXPECT_EQ(test::from_json(line.out, kLatencySchema), "True True True True") << line.out;
  EXPECT_EQ(test::from_json(line.out,
                            "data[\"test\"], len(set(data[\"cpus\"])), data[\"latency\"][\"one_way\"],"
                            "0 < data[\"operations\"] <= 6400"),
            "line 2 True True");
  ASSERT_TRUE(ended(wake, 0));
  EXPECT_EQ(test::from_json(wake.out, kSchema), "True True True True") << wake.out;
  EXPECT_EQ(test::from_json(wake.out, kLatencySchema), "True True True True") << wake.out;
  EXPECT_EQ(test::from_json(wake.out,
                            "data[\"test\"], len(set(data[\"cpus\"])), data[\"latency\"][\"samples\"],"
                            "data[\"operations\"]"),
            "wake 2 20 20");
}

TEST(PerfRun, ASweepIsARowASize) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON and CSV";
  const Arguments sweep{"write", "--local", "-d", device(), "--sweep", "3..9", "-n", "20", "--warm-up", "2"};
  const Ran table = test::run_kv(sweep);
  ASSERT_TRUE(ended(table, 0));
  EXPECT_TRUE(has(table.out, "99.9 %")) << table.out;
  const Ran json = test::run_kv(with(sweep, {"--json"}));
  ASSERT_TRUE(ended(json, 0));
  EXPECT_EQ(test::from_json_lines(json.out, "[row[\"bytes\"] for row in data]"), "[3, 4, 8, 9]");
  const Ran csv = test::run_kv(with(sweep, {"--csv"}));
  ASSERT_TRUE(ended(csv, 0));
  EXPECT_EQ(
      test::from_csv(csv.out,
                     "[int(row[\"bytes\"]) for row in data],"
                     "{len(row) for row in data}, all(None not in row and None not in row.values() for row in data),"
                     "all(float(row[\"median_ns\"]) <= float(row[\"p99_9_ns\"]) <= float(row[\"max_ns\"])"
                     " for row in data),"
                     "{(row[\"test\"], row[\"iterations\"], row[\"nic\"], row[\"wait\"]) for row in data}"),
      fmt::format("[3, 4, 8, 9] {{27}} True True {{('write', '20', '{}', 'spin')}}", device()));
}

TEST(PerfRun, CsvOfARateHasNoLatency) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse CSV";
  const Ran csv = test::run_kv({"message-bw", "--local", "-d", device(), "-n", "100", "--csv"});
  ASSERT_TRUE(ended(csv, 0));
  EXPECT_EQ(test::from_csv(csv.out,
                           "[(row[\"samples\"], row[\"median_ns\"], row[\"max_ns\"],"
                           " float(row[\"operations_per_s\"]) > 0) for row in data]"),
            "[('0', '', '', True)]");
}

TEST(PerfRun, ABlockingCallIsOneRequestAndOneCompletion) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  std::vector<const char*> tests{"read", "write", "pingpong", "fetch-add", "compare-swap"};
  if (test::may_see_frames()) tests.insert(tests.end(), {"pa-read", "pa-write"});
  for (const char* const test : tests) {
    const Ran ran = test::run_kv({test, "--local", "-d", device(), "-n", "100", "--warm-up", "10", "--json"});
    ASSERT_TRUE(ended(ran, 0)) << test;
    EXPECT_EQ(test::from_json(ran.out,
                              "[data[\"work\"][\"requests\"]] + [data[\"work\"][k] + data[\"work\"][\"direct\"]"
                              " for k in (\"doorbells\", \"completions\")]"),
              "[100, 100, 100]")
        << test;
  }
}

TEST(PerfRun, OneReadingOfTheClockForSeveralOperations) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  const Ran ran = test::run_kv(
      {"read", "--local", "-d", device(), "-n", "100", "--warm-up", "10", "--clock-every", "32", "--json"});
  ASSERT_TRUE(ended(ran, 0));
  EXPECT_EQ(test::from_json(ran.out, "data[\"operations\"], data[\"latency\"][\"samples\"], data[\"clock_every\"]"),
            "100 4 32");
}

TEST(PerfRun, WaitPolicies) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  Server server;
  ASSERT_FALSE(server.port().empty());
  for (const char* test : {"message", "write-imm", "write-bw", "message-bw"}) {
    for (const char* wait : {"spin", "adaptive", "event"}) {
      const Ran ran = server.run(test, {"--wait", wait, "--json"}, "200");
      ASSERT_TRUE(ended(ran, 0)) << test << ' ' << wait;
      EXPECT_EQ(test::from_json(ran.out, "data[\"wait\"]"), wait);
      if (std::string_view(wait) == "spin") {
        EXPECT_EQ(test::from_json(ran.out, "data[\"work\"][\"sleeps\"]"), "0") << test;
      }
    }
  }
}

TEST(PerfRun, AReceiverThatWaitsForEventsSleeps) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  // What it waits for comes a long time apart: without that, an answer may be there whenever the client looks, because
  // the server ran in between.
  const Ran slept = test::run_kv({"message", "--local", "-d", device(), "--wait", "event", "--idle-us", "300", "-n",
                                  "20", "--warm-up", "2", "--json"});
  ASSERT_TRUE(ended(slept, 0));
  EXPECT_EQ(test::from_json(slept.out, "data[\"idle\"][\"sleeps\"] > 0"), "True") << slept.out;
}

TEST(PerfRun, AReceiverThatFellAsleepIsComparedWithOneThatSpins) {
  if (!test::have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  const Arguments idle{"message",   "--local", "-d", device(), "--wait",    "adaptive",
                       "--idle-us", "300",     "-n", "20",     "--warm-up", "2"};
  const Ran text = test::run_kv(idle);
  ASSERT_TRUE(ended(text, 0));
  EXPECT_TRUE(has(text.out, "waking the receiver: ")) << text.out;
  const Ran json = test::run_kv(with(idle, {"--json"}));
  ASSERT_TRUE(ended(json, 0));
  EXPECT_EQ(
      test::from_json(json.out, "sorted(data[\"idle\"])"),
      "['added_ns', 'added_p99_ns', 'idle_us', 'interval_ms', 'process_percent', 'reference_ns', 'round_trip_ns', "
      "'sleeps', 'thread_percent']");
  EXPECT_EQ(test::from_json(json.out,
                            "data[\"idle\"][\"idle_us\"], data[\"idle\"][\"reference_ns\"] > 0,"
                            "data[\"idle\"][\"interval_ms\"], data[\"idle\"][\"sleeps\"] > 0,"
                            "data[\"latency\"][\"samples\"]"),
            "300 True 500 True 20");
}

TEST(PerfRun, ServerEndsWithItsLastClient) {
  Server once({"--once"});
  ASSERT_FALSE(once.port().empty());
  EXPECT_TRUE(ended(once.run("read"), 0));
  EXPECT_TRUE(ended(once.process().finish(), 0));
  Server server({"--clients", "2"});
  ASSERT_FALSE(server.port().empty());
  EXPECT_TRUE(ended(server.run("read"), 0));
  EXPECT_TRUE(ended(server.run("message"), 0));
  EXPECT_TRUE(ended(server.process().finish(), 0));
}

/// `main` below is the program that is started: it says a port and more than one read takes, and stays.
TEST(PerfRun, ALocalServerThatStaysIsForced) {
  std::array<int, 2> fds{};
  ASSERT_EQ(::pipe(fds.data()), 0);
  ::setenv(kStaysEnv, std::to_string(fds[1]).c_str(), 1);
  {
    const auto server = PerfLocalServer::start({});
    ASSERT_OK(server);
    EXPECT_EQ(server->port(), 1234);
  }
  ::unsetenv(kStaysEnv);
  ::close(fds[1]);
  char byte = 0;
  EXPECT_EQ(::read(fds[0], &byte, 1), 0) << "its own end was awaited";
  ::close(fds[0]);
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
    EXPECT_TRUE(ended(ran, 3)) << test;
    // On a device it depends on what went first: nobody answers, or the memory is not registered any more.
    EXPECT_TRUE(has(ran.err, is_soft() ? "peer lost: the run broke after " : ": the run broke after "))
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

  /// A channel of the run, as its hello says.
  Result<void> join(std::uint16_t port, const ChannelHello& hello) {
    VERBENA_ASSIGN(measured, message::Channel::create(*loop, device.pd.get(), {.depth = 4}, *this));
    VERBENA_ASSIGN(const link::Endpoint mine, measured->local_endpoint(bytes_of(hello)));
    VERBENA_ASSIGN(auto dialed, link::dial("127.0.0.1", port, mine, patience()));
    VERBENA_TRY(measured->connect(mine, dialed.remote(), patience()));
    VERBENA_TRY(dialed.finish(patience()));
    return measured->open_lease(patience());
  }
  /// A link of the run, whose memory the server may use, and the server's window.
  Result<void> join(std::uint16_t port, const RunHello& run, LinkHello hello) {
    VERBENA_TRY(memory.open(device.nic(), device.pd.get(),
                            {.size_bytes = 4096, .share = host::Share::kReadWrite, .name = "stranger"}, {},
                            IBV_ACCESS_LOCAL_WRITE | perf_wire::window_access(run)));
    const nic::Window window = memory.window();
    hello.address = window.address;
    hello.memory = window.memory_id;
    hello.rkey = window.rkey;
    VERBENA_ASSIGN(link, remote::Link::create(*loop, device.pd.get(), {.receives = 4, .handler = &nobody}));
    VERBENA_ASSIGN(const link::Endpoint mine, link->local_endpoint(bytes_of(hello)));
    VERBENA_ASSIGN(auto dialed, link::dial("127.0.0.1", port, mine, patience()));
    VERBENA_TRY(device.nic().grant(memory.memory_id(), {.to = nic::Grant::To::kOneGid, .gid = dialed.remote().qp.gid}));
    VERBENA_TRY(link->connect(mine, dialed.remote(), patience()));
    VERBENA_TRY(dialed.finish(patience()));
    const auto theirs = perf_wire::decode_link(dialed.remote().user_data(), run);
    if (!theirs) return fail(Status::kProtocol, "join", 0, "the server's hello is none");
    servers = perf_wire::window_of(*theirs, run);
    return link->import_window(servers, patience());
  }
  [[nodiscard]] Status write_imm(std::uint32_t bytes, std::uint32_t immediate) const {
    return link->start_write_imm({memory.data(), bytes, memory.lkey()},
                                 {.address = servers.address, .length = bytes, .rkey = servers.rkey}, immediate, 0);
  }

  struct Nobody final : remote::Handler {};

  PerfDevice device;
  Nobody nobody;
  nic::RegisteredArena memory;
  nic::Window servers;
  std::unique_ptr<engine::CompletionLoop> loop;
  std::unique_ptr<message::Channel> channel;  ///< The control connection.
  std::unique_ptr<message::Channel> measured;
  std::unique_ptr<remote::Link> link;
  link::Endpoint local;
};

constexpr RunHello kRun{.test = PerfTest::kRead, .session = 7, .bytes = 64, .connections = 2};
constexpr RunHello kOneChannel{.test = PerfTest::kMessage, .session = 7, .bytes = 64};
constexpr LinkHello kLink{.session = 7, .address = 4096, .rkey = 1, .index = 1};
constexpr ChannelHello kChannel{.session = 7, .index = 1};

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
  too_long.bytes = facts_of(too_long.test).most_bytes + 1;
  EXPECT_STATUS(Stranger().dial(server.port_number(), bytes_of(too_long)), Status::kProtocol);
  EXPECT_STATUS(Stranger().dial(server.port_number(), {}), Status::kProtocol);
  EXPECT_STATUS(Stranger().dial(server.port_number(), bytes_of(kLink).first(sizeof kRun)), Status::kProtocol);
  EXPECT_TRUE(ended(server.run("read"), 0));
}

/// The link of a run that another stranger asks for; one that is none of the run's, and one whose window wraps.
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
  other.index = 2;
  EXPECT_STATUS(try_link(other), Status::kBusy);
  other = kLink;
  other.address = ~std::uint64_t{62};
  EXPECT_STATUS(try_link(other), Status::kBusy);
  EXPECT_STATUS(Stranger().dial(server.port_number(), bytes_of(kRun)), Status::kBusy);
  EXPECT_OK(try_link(kLink));
}

/// Who breaks a run does not end a server that is to serve one whole.
TEST(PerfHostile, ABrokenRunDoesNotCount) {
  Server server({"--once"});
  ASSERT_FALSE(server.port().empty());
  {
    Stranger stranger;
    ASSERT_NO_FATAL_FAILURE(stranger.enter(server.port_number(), kOneChannel));
    ASSERT_OK(stranger.join(server.port_number(), ChannelHello{.session = kOneChannel.session}));
  }
  EXPECT_TRUE(ended(server.run("read"), 0));
  const Ran ran = server.process().finish();
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_TRUE(ran.err.starts_with("verbena-perf: ")) << ran.err;
}

/// A client's thread that is done, or waits for the others, says nothing meanwhile; when none says anything, the run
/// is over.
TEST(PerfEnds, OnlyTheSilenceOfAllThreadsEndsARun) {
  VERBENA_SKIP_ON_A_DEVICE("the stranger speaks to the software NIC");
  constexpr std::chrono::milliseconds kTimeout{1000};
  Server server({"--timeout-ms", std::to_string(kTimeout.count())});
  ASSERT_FALSE(server.port().empty());
  Stranger stranger;
  RunHello run = kOneChannel;
  run.threads = 2;
  ASSERT_NO_FATAL_FAILURE(stranger.enter(server.port_number(), run));
  ASSERT_OK(stranger.join(server.port_number(), ChannelHello{.session = run.session}));
  const auto silent = std::move(stranger.measured);
  ASSERT_OK(stranger.join(server.port_number(), ChannelHello{.session = run.session, .index = 1}));
  const std::array<std::byte, 64> wants_nothing{};
  const auto send = [&] {
    const Status status = stranger.measured->send(wants_nothing);
    stranger.loop->poll();
    return status;
  };
  Status status = Status::kOk;
  for (const Deadline end = Deadline::after(3 * kTimeout); !end.passed();) {
    status = send();
    ASSERT_TRUE(status == Status::kOk || status == Status::kAgain) << to_string(status);
  }
  const Deadline patience = Stranger::patience();
  while ((status = send()) == Status::kAgain && !patience.passed()) {}
  EXPECT_EQ(status, Status::kOk);
  // The stranger lives, and says nothing any more.
  EXPECT_TRUE(ended(server.run("read"), 0));
}

/// A stranger in a run of one connection, that says something which no client of ours says.
class PerfHostileRun : public testing::Test {
 protected:
  PerfHostileRun() : server_({"--timeout-ms", "3600000"}) {}
  void SetUp() override { ASSERT_FALSE(server_.port().empty()); }
  [[nodiscard]] std::uint16_t port() const { return server_.port_number(); }
  [[nodiscard]] static RunHello run_of_one(PerfTest test) {
    RunHello run = kRun;
    run.test = test;
    run.depth = 64;
    run.connections = 1;
    return run;
  }
  void enter(PerfTest test) {
    ASSERT_NO_FATAL_FAILURE(stranger_.enter(port(), run_of_one(test)));
    if (facts_of(test).by == PerfBy::kChannel) {
      ASSERT_OK(stranger_.join(port(), ChannelHello{.session = kRun.session}));
    } else {
      ASSERT_OK(stranger_.join(port(), run_of_one(test), LinkHello{.session = kRun.session}));
    }
  }
  /// The server is done with it, and has time for the next, while the stranger still lives and has its say repeated.
  void expect_the_next_served() {
    std::atomic<bool> done = false;
    Ran ran;
    std::jthread next([&] {
      ran = server_.run("read");
      done = true;
      stranger_.loop->wake();
    });
    EXPECT_EQ(stranger_.loop->wait_until([&] { return done.load(); }, Deadline::after(std::chrono::seconds{90})),
              Status::kOk);
    next.join();
    EXPECT_TRUE(ended(ran, 0));
  }

  Server server_;
  Stranger stranger_;
  const std::string text_ = std::string(64, '\1');  ///< Each byte asks for an answer.
  const std::span<const std::byte> body_ = std::as_bytes(std::span(text_));
};

TEST_F(PerfHostileRun, EndsWithAMessageOfAnotherLength) {
  ASSERT_NO_FATAL_FAILURE(enter(PerfTest::kMessage));
  ASSERT_EQ(stranger_.measured->send(body_.first(63)), Status::kOk);
  expect_the_next_served();
}

TEST_F(PerfHostileRun, EndsWithALargeMessageOfAnotherLength) {
  ASSERT_NO_FATAL_FAILURE(enter(PerfTest::kLargeBw));
  ASSERT_EQ(stranger_.measured->start_large(body_.first(63), {}, 1), Status::kOk);
  expect_the_next_served();
}

TEST_F(PerfHostileRun, EndsWithAnImmediateOfAnotherLength) {
  ASSERT_NO_FATAL_FAILURE(enter(PerfTest::kWriteImm));
  ASSERT_EQ(stranger_.write_imm(63, 0), Status::kOk);
  expect_the_next_served();
}

/// Who wants a second answer before it took the first would have the server keep count for it.
TEST_F(PerfHostileRun, EndsWithAnAnswerTooManyAskedFor) {
  ASSERT_NO_FATAL_FAILURE(enter(PerfTest::kMessageBw));
  Status status = Status::kOk;
  // It takes no answers meanwhile: the server can send four, and then it owes one.
  for (int i = 0; i < 1000 && status == Status::kOk; ++i) status = stranger_.measured->send(body_);
  EXPECT_EQ(status, Status::kAgain);
  expect_the_next_served();
}

TEST_F(PerfHostileRun, EndsWithAByeOfAnyBytes) {
  ASSERT_NO_FATAL_FAILURE(enter(PerfTest::kRead));
  EXPECT_EQ(stranger_.channel->start_large(body_, {}, 1), Status::kUnsupported) << "it gives no lease";
  ASSERT_EQ(stranger_.channel->send(body_), Status::kOk);
  expect_the_next_served();
}

TEST_F(PerfHostileRun, TakesEachConnectionOnce) {
  RunHello run = run_of_one(PerfTest::kMessage);
  run.connections = 2;
  ASSERT_NO_FATAL_FAILURE(stranger_.enter(port(), run));
  ASSERT_OK(stranger_.join(port(), ChannelHello{.session = kRun.session, .index = 1}));
  const auto first = std::move(stranger_.measured);
  EXPECT_STATUS(stranger_.join(port(), ChannelHello{.session = kRun.session, .index = 1}), Status::kBusy);
  EXPECT_STATUS(stranger_.join(port(), ChannelHello{.session = kRun.session, .index = 2}), Status::kBusy);
  EXPECT_STATUS(stranger_.join(port(), ChannelHello{.session = kRun.session + 1}), Status::kBusy);
  EXPECT_OK(stranger_.join(port(), ChannelHello{.session = kRun.session}));
}

TEST(PerfWire, TakesWhatItsOwnClientsSay) {
  EXPECT_EQ(perf_wire::decode_run(bytes_of(kRun)), kRun);
  const auto link = perf_wire::decode_link(bytes_of(kLink), kRun);
  ASSERT_TRUE(link.has_value());
  const nic::Window window = perf_wire::window_of(*link, kRun);
  EXPECT_EQ(window.address, 4096u);
  EXPECT_EQ(window.length, kRun.bytes);
  EXPECT_EQ(window.access & IBV_ACCESS_REMOTE_ATOMIC, 0u) << "reads need no atomics";
  EXPECT_TRUE(perf_wire::decode_channel(bytes_of(kChannel), kRun).has_value());
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
  EXPECT_FALSE(run_with([](RunHello& h) { h.test = PerfTest{20}; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.test = PerfTest::kLine; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.test = PerfTest::kWake; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.wait = engine::WaitPolicy{3}; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.session = 0; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.bytes = 0; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.depth = 0; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.depth = perf_wire::kMaxDepth + 1; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.connections = 0; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.connections = perf_wire::kMaxConnections + 1; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.threads = 0; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.threads = perf_wire::kMaxThreads + 1; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.reserved = 1; }));
  for (const PerfTestFacts& facts : peer_tests()) {
    EXPECT_FALSE(run_with([&](RunHello& h) { h.test = facts.test, h.bytes = facts.most_bytes + 1; })) << facts.name;
    EXPECT_EQ(run_with([&](RunHello& h) { h.test = facts.test, h.bytes = 1; }), facts.has_size()) << facts.name;
  }
  // Each in its range, and too much together.
  EXPECT_FALSE(run_with([](RunHello& h) { h.depth = 1024, h.connections = 17; }));
  EXPECT_TRUE(run_with([](RunHello& h) { h.bytes = 64 << 20, h.threads = 7; }));
  EXPECT_FALSE(run_with([](RunHello& h) { h.bytes = 64 << 20, h.threads = 8; }));
  // Little to send, and many queue pairs.
  const auto sends_with = [&](std::uint8_t threads) {
    return run_with([&](RunHello& h) { h.test = PerfTest::kMessageBw, h.connections = 256, h.threads = threads; });
  };
  EXPECT_TRUE(sends_with(4));
  EXPECT_FALSE(sends_with(16));
  EXPECT_FALSE(run_with([](RunHello& h) { h.test = PerfTest::kLargeBw, h.bytes = 1 << 20, h.depth = 1024; }));
  EXPECT_FALSE(run_with([](RunHello& h) {
    h.test = PerfTest::kMessageBw, h.bytes = 16 << 10, h.depth = 64, h.connections = 256, h.threads = 64;
  }));
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
  EXPECT_FALSE(link_with([](LinkHello& h) { h.index = 2; }));
  EXPECT_FALSE(link_with([](LinkHello& h) { h.reserved = 1; }));
  EXPECT_TRUE(link_with([](LinkHello& h) { h.address = ~std::uint64_t{64}; }));
  EXPECT_FALSE(link_with([](LinkHello& h) { h.address = ~std::uint64_t{63}; }));
  const auto channel_with = [](auto&& change) {
    ChannelHello hello = kChannel;
    change(hello);
    return perf_wire::decode_channel(bytes_of(hello), kRun).has_value();
  };
  EXPECT_TRUE(channel_with([](ChannelHello&) {}));
  EXPECT_FALSE(channel_with([](ChannelHello& h) { ++h.magic; }));
  EXPECT_FALSE(channel_with([](ChannelHello& h) { ++h.version; }));
  EXPECT_FALSE(channel_with([](ChannelHello& h) { h.kind = 2; }));
  EXPECT_FALSE(channel_with([](ChannelHello& h) { ++h.session; }));
  EXPECT_FALSE(channel_with([](ChannelHello& h) { h.index = 2; }));
  EXPECT_FALSE(channel_with([](ChannelHello& h) { h.reserved = 1; }));
  for (std::size_t length = 0; length < sizeof kRun; ++length)
    EXPECT_FALSE(perf_wire::decode_run(bytes_of(kRun).first(length)).has_value());
  for (std::size_t length = 0; length < sizeof kLink; ++length)
    EXPECT_FALSE(perf_wire::decode_link(bytes_of(kLink).first(length), kRun).has_value());
  for (std::size_t length = 0; length < sizeof kChannel; ++length)
    EXPECT_FALSE(perf_wire::decode_channel(bytes_of(kChannel).first(length), kRun).has_value());
}

}  // namespace
}  // namespace verbena::programs

int main(int argc, char** argv) {
  using namespace verbena::programs;
  if (const char* report = std::getenv(kStaysEnv); report != nullptr) return stay(std::atoi(report));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
