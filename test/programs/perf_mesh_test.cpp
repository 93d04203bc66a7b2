// verbena-perf mesh: the real program as all processes of a mesh, or as one of them. On the soft NIC, and where
// VERBENA_NIC names an RDMA device on that.
#include "device.hpp"
#include "kv_process.hpp"
#include "shell.hpp"
#include "temporary_directory.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::test {
namespace {

/// For machines that are only slow.
constexpr const char* kPatienceMs = "30000";

/// One command line of the subcommand.
Arguments mesh_words(const Arguments& more) {
  const char* const device = device_under_test();
  Arguments words{"mesh", "-d", device == nullptr ? "soft" : device, "--timeout-ms", kPatienceMs};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

testing::AssertionResult ended_with(const Ran& ran, int exit, std::string_view says = {}) {
  const bool is_told = exit == 0 ? ran.err.empty() : ran.err.starts_with("verbena-perf: ");
  if (ran.exit == exit && is_told && ran.err.contains(says)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "exit " << ran.exit << " (expected " << exit << "), signal " << ran.signal
                                     << (ran.late ? ", late" : "") << "\nstdout: " << ran.out
                                     << "\nstderr: " << ran.err;
}

TEST(PerfMeshUsage, WrongCommandLinesSayWhatIsWrong) {
  constexpr std::uint64_t kMostIterations = std::uint64_t{1} << 40;
  expect_refused(wrong_numbers({
      {{"mesh"}, "-N", "--processes", 2, 1024},
      {{"mesh"}, "--id", "--id", 0, 1023},
      {{"mesh"}, "-s", "--size", 1, 4194304},
      {{"mesh"}, "-n", "--iterations", 1, kMostIterations},
      {{"mesh"}, "--warm-up", "--warm-up", 0, kMostIterations},
      {{"mesh"}, "--clock-every", "--clock-every", 1, 1000},
      {{"mesh"}, "--batch", "--batch", 1, 32},
      {{"mesh"}, "--depth", "--depth", 4, 4096},
      {{"mesh"}, "--operations", "--operations", 1, 2000},
      {{"mesh"}, "--timeout-ms", "--timeout-ms", 1, 86400000},
      {{"mesh"}, "--cpu", "--cpu", 0, 65535},
  }));
  expect_refused({
      {{"mesh", "--pattern", "dance"}, {"--pattern", "takes ping-pong, exchange, stream, poll or join", "\"dance\""}},
      {{"mesh", "--by", "pigeon"}, {"--by", "takes message or write", "\"pigeon\""}},
      {{"mesh", "--wait", "long"}, {"--wait", "takes spin, adaptive or event", "\"long\""}},
      {{"mesh", "--wait", "spin", "--yield"}, {"--yield excludes --wait"}},
      {{"mesh", "--by", "message", "-s", "16321"}, {"--size 16321 is no message", "16320 bytes"}},
      {{"mesh", "-N", "200", "-s", "4M"}, {"--processes 200", "1677721600 bytes in each", "1073741824 are the most"}},
      {{"mesh", "--batch", "9", "--operations", "8"}, {"--batch 9 is more than --operations 8"}},
      {{"mesh", "--directory", "/tmp"}, {"--directory requires --id"}},
      {{"mesh", "--id", "0"}, {"--id needs --directory or --hosts"}},
      {{"mesh", "--id", "2", "--directory", "/tmp"}, {"--id 2 is none of the 2 processes"}},
      {{"mesh", "--id", "0", "--hosts", "127.0.0.1:1"}, {"--hosts has 1 processes", "2 to 1024"}},
      {{"mesh", "--id", "0", "--hosts", "127.0.0.1:1,somewhere"}, {"HOST:PORT", "not \"somewhere\""}},
      {{"mesh", "--cpu", "65535"}, {"--cpu 65535 is none of the "}},
  });
}

/// A line of JSON holds all that is promised, and what was asked for.
TEST(PerfMesh, EveryPatternCountsWhatItMoved) {
  if (!have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  constexpr const char* kAll =
      "sorted(data) == [\"batch\", \"by\", \"bytes\", \"bytes_per_s\", \"clock_every\", \"clock_ns\", \"cpus\","
      " \"depth\", \"description\", \"environment\", \"in_flight\", \"iterations\", \"join_seconds\", \"latency\","
      " \"memory_bytes\", \"messages\", \"messages_per_s\", \"operations\", \"operations_per_s\", \"pattern\","
      " \"processes\", \"seconds\", \"test\", \"wait\", \"warm_up\"] and data[\"test\"] == \"mesh\""
      " and data[\"join_seconds\"] > 0";
  struct Pattern {
    Arguments words;
    const char* expected;  ///< Pattern, by, operations, messages, samples of the latency.
  };
  const Pattern patterns[] = {
      {{"--pattern", "ping-pong"}, "ping-pong message 40 80 40"},
      {{"--pattern", "ping-pong", "--by", "write", "-s", "1"}, "ping-pong write 40 80 40"},
      {{"--pattern", "exchange", "-s", "16320", "--yield"}, "exchange message 40 240 40"},
      {{"--pattern", "exchange", "-s", "64K", "--clock-every", "7"}, "exchange write 40 240 6"},
      {{"--pattern", "stream"}, "stream message 240 240 None"},
      {{"--pattern", "stream", "--batch", "16", "--depth", "64"}, "stream message 240 240 None"},
      {{"--pattern", "stream", "--by", "write", "--batch", "32"}, "stream write 240 240 None"},
      {{"--pattern", "poll", "--wait", "event"}, "poll message 40 0 40"},
      {{"--pattern", "join", "-s", "4096"}, "join message 0 0 None"},
  };
  for (const Pattern& pattern : patterns) {
    Arguments words = mesh_words({"-N", "3", "-n", "40", "--warm-up", "5", "--json"});
    words.insert(words.end(), pattern.words.begin(), pattern.words.end());
    const Ran ran = run_kv(words);
    ASSERT_TRUE(ended_with(ran, 0)) << pattern.expected;
    EXPECT_EQ(from_json(ran.out,
                        "data[\"pattern\"], data[\"by\"], data[\"operations\"], data[\"messages\"],"
                        " data[\"latency\"] and data[\"latency\"][\"samples\"]"),
              pattern.expected);
    EXPECT_EQ(from_json(ran.out, kAll), "True") << ran.out;
  }
}

TEST(PerfMesh, TextSaysWhatWasMeasured) {
  const Ran ran = run_kv(mesh_words({"-n", "20", "--warm-up", "2"}));
  ASSERT_TRUE(ended_with(ran, 0));
  for (const char* part : {"mesh of 2 processes, ping-pong of messages of 64 B, 20 round trips after 2 to warm up",
                           "one way, half of a round trip", "messages/s", "joined within ", "process 0 of 2"})
    EXPECT_TRUE(ran.out.contains(part)) << part << " is not in\n" << ran.out;
}

/// Each process by a command of its own, as on several hosts.
TEST(PerfMesh, ProcessesFindEachOtherByADirectory) {
  const TemporaryDirectory directory;
  const auto words = [&](const char* id) {
    return mesh_words({"--id", id, "-N", "2", "--directory", directory.path(), "-n", "20", "--warm-up", "2"});
  };
  KvProcess other(words("1"));
  const Ran ran = run_kv(words("0"));
  EXPECT_TRUE(ended_with(ran, 0));
  EXPECT_TRUE(ran.out.contains("half of a round trip")) << ran.out;
  const Ran silent = other.finish();
  EXPECT_TRUE(ended_with(silent, 0));
  EXPECT_EQ(silent.out, "") << "process 0 has told";
}

/// A port that is free as long as this lives, and for some time after that.
std::string a_free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(fd);
  return std::to_string(ntohs(address.sin_port));
}

TEST(PerfMesh, ProcessesFindEachOtherByAList) {
  VERBENA_SKIP_ON_A_DEVICE("the list has addresses of loopback");
  const std::string hosts = fmt::format("127.0.0.1:{},127.0.0.1:{}", a_free_port(), a_free_port());
  const auto words = [&](const char* id) {
    return mesh_words({"--id", id, "--hosts", hosts, "--pattern", "exchange", "-n", "20", "--warm-up", "2"});
  };
  KvProcess other(words("1"));
  EXPECT_TRUE(ended_with(run_kv(words("0")), 0));
  EXPECT_TRUE(ended_with(other.finish(), 0));
}

TEST(PerfMesh, WhoIsMissingIsNamed) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(
      ended_with(run_kv(mesh_words({"--id", "0", "-N", "3", "--directory", directory.path(), "--timeout-ms", "300"})),
                 2, "--timeout-ms: takes one value"));
  Arguments words = mesh_words({"--id", "0", "-N", "3", "--directory", directory.path()});
  *(std::ranges::find(words, "--timeout-ms") + 1) = "300";
  EXPECT_TRUE(ended_with(run_kv(words), 3, "timed out: 2 of 2 others are missing: 1, 2"));
}

/// Both sides hear of it at once, and not by their timeouts.
TEST(PerfMesh, DeathOfAProcessEndsTheRun) {
  for (const char* pattern : {"ping-pong", "exchange", "stream"}) {
    const TemporaryDirectory directory;
    const auto words = [&](const char* id) {
      return mesh_words({"--id", id, "-N", "2", "--directory", directory.path(), "--pattern", pattern, "-n",
                         "100000000000", "--warm-up", "0"});
    };
    KvProcess other(words("1"));
    KvProcess first(words("0"));
    ASSERT_FALSE(first.first_line().empty()) << pattern;
    other.send(SIGKILL);
    const Ran ran = first.finish();
    EXPECT_EQ(ran.exit, 3) << pattern;
    EXPECT_TRUE(ran.err.contains("process 1")) << pattern << ": " << ran.err;
  }
}

/// Those that this program has started.
TEST(PerfMesh, ItsOwnProcessesEndWithTheFirstThatFails) {
  const Ran ran = run_kv({"mesh", "-N", "4", "-d", "no_such0", "--timeout-ms", kPatienceMs});
  EXPECT_TRUE(ended_with(ran, 3, "no_such0"));
}

}  // namespace
}  // namespace verbena::test
