// The real verbena-kv as its users run it: every subcommand, exit codes, what goes to stdout and what to stderr.
#include "chaos.hpp"
#include "key_file.hpp"
#include "kv_ended.hpp"
#include "paths.hpp"
#include "scratch.hpp"

#include <verbena/deadline.hpp>

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::test {
namespace {

/// All 256 bytes, again and again.
std::string every_byte(std::size_t length) {
  std::string bytes;
  for (std::size_t i = 0; i < length; ++i) bytes.push_back(static_cast<char>((i * 7 + i / 256) & 0xff));
  return bytes;
}

/// A port of this host on which nothing listens (as far as the next moments go).
std::string free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(fd);
  return std::to_string(ntohs(address.sin_port));
}

// Command lines that make no sense, and ones that need no server.

TEST(KvUsage, WrongCommandLinesEndWithTwo) {
  const std::vector<Arguments> wrong{
      {},
      {"frobnicate"},
      {"put"},
      {"put", "key"},
      {"put", "key", "value", "-f", "file"},
      {"put", "key", "value", "more"},
      {"get"},
      {"cas", "key", "not-a-number", "value"},
      {"cas", "key", "1"},
      {"put", "key", "value", "--ttl", "0s"},
      {"put", "key", "value", "--ttl", "30"},
      {"put", "key", "value", "--ttl", "1.5s"},
      {"put", "key", "value", "--ttl", "36501d"},
      {"put", "key", "value", "--ttl", "99999999999999999999s"},
      {"put", "key", "value", "--ttl=-1s"},
      {"put", "key", "value", "--ttl", "s"},
      {"get", "key", "--ttl", "1s"},
      {"get", "key", "-p", "0"},
      {"get", "key", "-p", "65536"},
      {"get", "key", "-p", "12x"},
      {"get", "key", "--no-such-option"},
      {"serve", "-m", "0"},
      {"serve", "-w", "65"},
      {"serve", "--grace-ms", "-1"},
      {"serve", "--wait", "hard"},
      {"get", "key", "--wait", "2"},
      {"bench", "--depth", "0"},
      {"bench", "--read-percent", "101"},
      {"bench", "--clock-every", "0"},
      {"bench", "--batch", "0"},
      {"bench", "--plot", "file"},
      {"serve", "--require-hugepages=1"},
      {"bench", "--batch", "8", "--depth", "2"},
      {"bench", "--lookup", "none"},
      {"bench", "--clock-every", "10", "--depth", "2"},
      {"bench", "--value-size", "many"},
      {"load"},
  };
  for (const Arguments& arguments : wrong) {
    const Ran ran = run_kv(arguments);
    std::string line;
    for (const std::string& word : arguments) line += ' ' + word;
    EXPECT_TRUE(ended(ran, 2)) << line;
    EXPECT_TRUE(contains(ran.err, "--help")) << line;
  }
}

// The option, its value and its range as the command line has them, and no name of the library's own.
TEST(KvUsage, WrongOptionsAreNamedAsTheyAreWritten) {
  expect_refused({
      {{"serve", "-m", "0"}, {"--memory", "0", "1048576"}},
      {{"serve", "-w", "65"}, {"--workers", "65", "64"}},
      {{"serve", "--max-clients", "1025"}, {"--max-clients", "1025", "1024"}},
      {{"serve", "--lease-kib", "1"}, {"--lease-kib", "1", "64"}},
      {{"serve", "--grace-ms", "0"}, {"--grace-ms", "0", "60000"}},
      {{"serve", "--depth", "1025"}, {"--depth", "1025", "1024"}},
      {{"serve", "--gid-index", "256"}, {"--gid-index", "256", "255"}},
      {{"serve", "--wait", "hard"}, {"--wait", "hard", "spin, adaptive or event"}},
      {{"serve", "-d", "soft", "-m", "1", "--max-value-mib", "4"},
       {"--max-value-mib is 4 (4194304 bytes)", "1 to 516096"},
       3},
      {{"serve", "-d", "soft", "-m", "1", "--max-items", "1000000"}, {"--max-items", "1000000", "--memory"}, 3},
      {{"serve", "-d", "soft", "-m", "1", "--max-cells", "1000000"}, {"--max-cells", "1000000", "--max-items"}, 3},
      {{"serve", "-d", "soft", "--trusted-clients"},
       {"--trusted-clients was removed in 0.1: the server reads large values itself, which is faster; leave it out"}},
      {{"serve", "-d", "mlx5_0:x"}, {"mlx5_0:x", "mlx5_0:2"}, 3},
      {{"serve", "-p", "70000"}, {"--port", "70000", "0 to 65535"}},
      {{"get", "key", "-p", "65536"}, {"--port", "65536", "65535"}},
      {{"get", "key", "-p", "0"}, {"--port", "0", "65535"}},
      {{"get", "key", "--timeout-ms", "0"}, {"--timeout-ms", "0", "86400000"}},
      {{"bench", "-d", "soft", "-p", "1", "--known-locations", "3"}, {"--known-locations", "3", "power of two"}, 3},
  });
}

TEST(KvUsage, MisspelledOptionsAreNamedBeforeWhatIsMissing) {
  expect_refused({
      {{"get", "--hlep"}, {"unknown argument \"--hlep\"; did you mean --help? See verbena-kv get --help"}},
      {{"put", "--prot=7", "key"}, {"unknown argument \"--prot=7\"; did you mean --port?"}},
      {{"--vesrion"}, {"unknown argument \"--vesrion\"; did you mean --version? See verbena-kv --help"}},
      {{"--hlep"}, {"unknown argument \"--hlep\"; did you mean --help?"}},
      {{"hlep"}, {"takes a command, one of serve, put, ", "not \"hlep\""}},
      {{"cas", "key"}, {"VERSION"}},
  });
}

TEST(KvUsage, HelpAndVersionGoToStdout) {
  const Ran help = run_kv({"--help"});
  EXPECT_TRUE(ended(help, 0));
  for (const char* name : {"serve", "put", "get", "cas", "del", "load", "verify", "bench", "shell"}) {
    EXPECT_TRUE(contains(help.out, name));
    EXPECT_TRUE(ended(run_kv({name, "--help"}), 0)) << name;
  }
  const Ran version = run_kv({"--version"});
  EXPECT_TRUE(ended(version, 0));
  EXPECT_TRUE(version.out.starts_with("verbena-kv "));
}

TEST(KvUsage, NothingListensThere) {
  for (const Arguments& command :
       {Arguments{"put", "k", "v"}, Arguments{"get", "k"}, Arguments{"cas", "k", "0", "v"}, Arguments{"del", "k"},
        Arguments{"stats"}, Arguments{"bench"}, Arguments{"shell"}, Arguments{"load", "/proc/self/fdinfo"}}) {
    Arguments with_port = command;
    with_port.insert(with_port.end(), {"-p", free_port()});
    const Ran ran = run_kv(with_port);
    EXPECT_TRUE(ended(ran, 3)) << command.front();
    EXPECT_TRUE(contains(ran.err, "127.0.0.1:")) << command.front();
  }
}

TEST(KvUsage, EnvironmentSaysWhereTheServerIs) {
  const std::string port = free_port();
  const Variable of_port("VERBENA_KV_PORT", port);
  const Ran by_environment = run_kv({"get", "k"});
  EXPECT_TRUE(ended(by_environment, 3));
  EXPECT_TRUE(contains(by_environment.err, "127.0.0.1:" + port));
  const std::string other = free_port();
  EXPECT_TRUE(contains(run_kv({"get", "k", "-p", other}).err, "127.0.0.1:" + other)) << "the command line is stronger";
  const Variable of_address("VERBENA_KV_ADDRESS", "no-such-host.invalid");
  EXPECT_TRUE(contains(run_kv({"get", "k"}).err, "no-such-host.invalid"));
  const Variable wrong("VERBENA_KV_PORT", "70000");
  const Ran refused = run_kv({"get", "k"});
  EXPECT_TRUE(ended(refused, 2));
  EXPECT_TRUE(contains(refused.err, "VERBENA_KV_PORT takes 1 to 65535, not \"70000\""));
}

TEST(KvUsage, EnvironmentSaysWhichDevice) {
  const Variable of_device("VERBENA_KV_DEVICE", "no_such_nic:x");
  const Ran by_environment = run_kv({"get", "k", "-p", free_port()});
  EXPECT_TRUE(ended(by_environment, 3));
  EXPECT_TRUE(contains(by_environment.err, "no_such_nic:x")) << by_environment.err;
  const std::string port = free_port();
  EXPECT_TRUE(contains(run_kv({"get", "k", "-d", "soft", "-p", port}).err, "127.0.0.1:" + port))
      << "the command line is stronger";
}

TEST(KvUsage, HelpNamesWhereDefaultsComeFrom) {
  const Ran program = run_kv({"--help"}), client = run_kv({"get", "--help"}), server = run_kv({"serve", "--help"});
  for (const char* name : {"VERBENA_KV_ADDRESS", "VERBENA_KV_PORT", "VERBENA_KV_DEVICE", "VERBENA_KV_KEY_FILE",
                           "VERBENA_KV_CONFIG", "~/.config/verbena/kv.toml"}) {
    EXPECT_TRUE(contains(program.out, name)) << name;
    EXPECT_TRUE(contains(client.out, name)) << name;
    EXPECT_FALSE(contains(server.out, name)) << name;
  }
}

TEST(KvUsage, AFileSaysWhatClientsNeedNotRepeat) {
  const Scratch scratch;
  const std::string file = scratch.path() / "kv.toml";
  const auto said_of = [&](std::string_view text, const std::vector<std::string>& command, int code) {
    scratch.write("kv.toml", text);
    const Variable named("VERBENA_KV_CONFIG", file);
    const Ran ran = run_kv(command);
    EXPECT_TRUE(ended(ran, code)) << text;
    return ran.err;
  };
  const std::string port = free_port(), other = free_port();
  const std::string text = "# mine\naddress = \"127.0.0.1\"\nport = " + port + "\ntimeout-ms = 300\nwait = event\n";
  EXPECT_TRUE(contains(said_of(text, {"get", "k"}, 3), "127.0.0.1:" + port));
  EXPECT_TRUE(contains(said_of(text, {"get", "k", "-p", other}, 3), "127.0.0.1:" + other));
  {
    const Variable of_port("VERBENA_KV_PORT", other);
    EXPECT_TRUE(contains(said_of(text, {"get", "k"}, 3), "127.0.0.1:" + other)) << "the environment is stronger";
  }
  EXPECT_TRUE(contains(said_of("socket = true\n", {"get", "k", "-p", port}, 3), "socket over TCP"));
  const std::string keyed = "key-file = \"none\"\n";
  EXPECT_TRUE(contains(said_of(keyed, {"get", "k", "--key-name", "mine"}, 3), "--key-file none cannot be opened"));
  EXPECT_TRUE(contains(said_of("port = 70000\n", {"get", "k"}, 2), "kv.toml: port takes 1 to 65535, not \"70000\""));
  EXPECT_TRUE(
      contains(said_of("wait = sleepy\n", {"get", "k"}, 2), "wait takes spin, adaptive or event, not \"sleepy\""));
  EXPECT_TRUE(
      contains(said_of("read-only = maybe\n", {"get", "k"}, 2), "read-only takes true or false, not \"maybe\""));
  EXPECT_TRUE(contains(said_of("prt = 7\n", {"get", "k"}, 2), "prt is no option of all clients; did you mean port?"));
  EXPECT_TRUE(contains(said_of("depth = 7\n", {"load", "."}, 2), "depth is no option of all clients"));
  EXPECT_TRUE(contains(said_of("[get]\nport = 7\n", {"get", "k"}, 2), "port is in a section, and the file has none"));
  EXPECT_TRUE(contains(said_of("port = 7\nport = 8\n", {"get", "k"}, 2), "port takes one value"));
  EXPECT_TRUE(contains(said_of("\xff\x1b[1m = 1\n", {"get", "k"}, 2), R"(\xff\x1b[1m is no option)"));
  const Variable absent("VERBENA_KV_CONFIG", scratch.path() / "none");
  EXPECT_TRUE(contains(run_kv({"get", "k"}).err, "none: cannot read it: No such file or directory"));
}

TEST(KvUsage, TheFileIsAtHomeOrWhereTheDesktopKeepsSuch) {
  const Scratch scratch;
  const std::string at_home = free_port(), elsewhere = free_port();
  scratch.write(".config/verbena/kv.toml", "port = " + at_home);
  scratch.write("other/verbena/kv.toml", "port = " + elsewhere);
  const Variable unset("VERBENA_KV_CONFIG", "");
  const Variable home("HOME", scratch.path());
  EXPECT_TRUE(contains(run_kv({"get", "k"}).err, "127.0.0.1:" + at_home));
  {
    const Variable directory("XDG_CONFIG_HOME", scratch.path() / "other");
    EXPECT_TRUE(contains(run_kv({"get", "k"}).err, "127.0.0.1:" + elsewhere));
  }
  ::setenv("VERBENA_KV_CONFIG", "", 1);
  EXPECT_FALSE(contains(run_kv({"get", "k"}).err, at_home));
}

TEST(KvUsage, NameThatDoesNotResolve) {
  const Ran ran = run_kv({"get", "k", "-a", "no-such-host.invalid"});
  EXPECT_TRUE(ended(ran, 3));
  EXPECT_TRUE(contains(ran.err, "no-such-host.invalid"));
}

// Commands against one server.

class Kv : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new KvServer; }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  void SetUp() override { ASSERT_NE(server_->port(), 0) << server_->process().finish().err; }

  static Ran run(const Arguments& arguments, const std::string& input = {}) { return server_->run(arguments, input); }
  /// Puts, and the version that it printed.
  static std::uint64_t put(const std::string& key, const std::string& value) {
    const Ran ran = run({"put", key, "-f", "-"}, value);
    EXPECT_TRUE(ended(ran, 0));
    return std::strtoull(ran.out.c_str(), nullptr, 10);
  }
  static std::string get(const std::string& key) {
    const Ran ran = run({"get", key});
    EXPECT_TRUE(ended(ran, 0));
    return ran.out;
  }

  static KvServer* server_;
};
KvServer* Kv::server_ = nullptr;

TEST_F(Kv, PutPrintsARisingVersionAndGetTheRawValue) {
  const Ran first = run({"put", "greeting", "hello world"});
  EXPECT_TRUE(ended(first, 0));
  EXPECT_TRUE(!first.out.empty() && first.out.find_first_not_of("0123456789") == first.out.size() - 1 &&
              first.out.back() == '\n')
      << first.out;
  EXPECT_EQ(get("greeting"), "hello world");
  const Ran second = run({"put", "greeting", "hello again"});
  EXPECT_GT(std::stoull(second.out), std::stoull(first.out));
  EXPECT_EQ(get("greeting"), "hello again");
}

TEST_F(Kv, ValuesOfEverySizeAndByte) {
  for (const std::size_t length : {0U, 1U, 4095U, 4096U, 4097U, 65'536U, 3'000'001U}) {
    const std::string value = every_byte(length);
    put("sized", value);
    EXPECT_TRUE(get("sized") == value) << length;
  }
}

TEST_F(Kv, ValueFromAFileAndKeysThatLookLikeCommands) {
  const Scratch scratch;
  scratch.write("value", every_byte(10'000));
  EXPECT_TRUE(ended(run({"put", "get", "-f", (scratch.path() / "value").string()}), 0));
  EXPECT_TRUE(get("get") == every_byte(10'000));
  const Ran missing = run({"put", "get", "-f", (scratch.path() / "none").string()});
  EXPECT_TRUE(ended(missing, 3));
  EXPECT_TRUE(contains(missing.err, "none"));
  EXPECT_TRUE(get("get") == every_byte(10'000));
  EXPECT_TRUE(ended(run({"put", "minus", "--", "-5"}), 0));
  EXPECT_EQ(get("minus"), "-5");
  EXPECT_TRUE(ended(run({"put", "empty", ""}), 0));
  EXPECT_EQ(get("empty"), "");
}

TEST_F(Kv, WhatIsNotThereEndsWithOne) {
  for (const Arguments& command :
       {Arguments{"get", "absent"}, Arguments{"del", "absent"}, Arguments{"cas", "absent", "7", "v"}}) {
    const Ran ran = run(command);
    EXPECT_TRUE(ended(ran, 1)) << command.front();
    EXPECT_TRUE(contains(ran.err, "\"absent\"")) << command.front();
    EXPECT_EQ(ran.out, "");
  }
}

TEST_F(Kv, DelDeletes) {
  put("doomed", "x");
  const Ran ran = run({"del", "doomed"});
  EXPECT_TRUE(ended(ran, 0));
  EXPECT_EQ(ran.out, "");
  EXPECT_TRUE(ended(run({"get", "doomed"}), 1));
}

TEST_F(Kv, CasStoresOnlyOverTheVersionNamed) {
  const Ran created = run({"cas", "counter", "0", "one"});
  ASSERT_TRUE(ended(created, 0));
  const Ran again = run({"cas", "counter", "0", "two"});
  EXPECT_TRUE(ended(again, 1));
  const std::string version = created.out.substr(0, created.out.size() - 1);
  EXPECT_TRUE(contains(again.err, version));
  EXPECT_EQ(get("counter"), "one");
  const Ran replaced = run({"cas", "counter", version, "-f", "-"}, "three");
  ASSERT_TRUE(ended(replaced, 0));
  EXPECT_GT(std::stoull(replaced.out), std::stoull(created.out));
  EXPECT_EQ(get("counter"), "three");
}

TEST_F(Kv, ValuesLiveForTheirTime) {
  ASSERT_TRUE(ended(run({"put", "mayfly", "v", "--ttl", "2h"}), 0));
  const Ran ran = run({"get", "mayfly", "-v"});
  EXPECT_EQ(ran.out, "v");
  EXPECT_TRUE(contains(ran.err, ", 71")) << ran.err;
  EXPECT_TRUE(contains(ran.err, " s to live")) << ran.err;
  const Ran created = run({"cas", "short", "0", "v", "--ttl", "1ms"});
  ASSERT_TRUE(ended(created, 0));
  // Starting a program takes longer.
  EXPECT_TRUE(ended(run({"get", "short"}), 1));
  EXPECT_TRUE(ended(run({"cas", "short", "0", "v"}), 0));
  const Ran stays = run({"get", "short", "-v"});
  EXPECT_TRUE(contains(stays.err, "version ") && !contains(stays.err, "to live")) << stays.err;
  EXPECT_TRUE(contains(run({"stats"}).out, "removed: 1 expired, 0 evicted\n"));
}

TEST_F(Kv, KeysThatCannotBe) {
  EXPECT_TRUE(ended(run({"put", "", "v"}), 3));
  EXPECT_TRUE(ended(run({"put", std::string(1025, 'k'), "v"}), 3));
  EXPECT_TRUE(ended(run({"get", std::string(1025, 'k')}), 3));
  EXPECT_TRUE(ended(run({"put", std::string(1024, 'k'), "v"}), 0));
  EXPECT_EQ(get(std::string(1024, 'k')), "v");
}

TEST_F(Kv, ValuesLongerThanTheLimitAreRefused) {
  // 64 MiB of memory: values up to half of that.
  const Ran ran = run({"put", "long", "-f", "-"}, std::string((std::size_t{32} << 20) + 1, 'x'));
  EXPECT_TRUE(ended(ran, 3));
  EXPECT_TRUE(contains(ran.err, "--max-value-mib"));
  EXPECT_TRUE(ended(run({"get", "long"}), 1));
}

TEST_F(Kv, OutputThatCannotBeWrittenIsAnError) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "needs /dev/full";
  put("full", "x");
  const std::string command =
      tested_program() + " get full -p " + std::to_string(server_->port()) + " >/dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

TEST_F(Kv, StatsCount) {
  put("counted", "x");
  const Ran ran = run({"stats"});
  EXPECT_TRUE(ended(ran, 0));
  EXPECT_TRUE(contains(ran.out, "items "));
  EXPECT_TRUE(contains(ran.out, "clients 1 now"));
}

// Trees.

/// Empty and binary files, deep paths, a megabyte, hidden ones, names with blanks.
void make_tree(const Scratch& scratch) {
  scratch.write("empty", "");
  scratch.write("one", "x");
  scratch.write(".hidden", "secret");
  scratch.write("with blank/and \"quote\"", "q");
  scratch.write("binary", every_byte(5'000));
  scratch.write("eager", every_byte(4'095));
  scratch.write("slot", every_byte(65'536));
  scratch.write("slot-less-one", every_byte(65'535));
  scratch.write("large/megabytes", every_byte(2'500'000));
  std::string deep = "deep";
  for (int i = 0; i < 40; ++i) deep += "/level" + std::to_string(i);
  scratch.write(deep + "/leaf", "deep leaf");
  for (int i = 0; i < 300; ++i)
    scratch.write("many/" + std::to_string(i), every_byte(static_cast<std::size_t>(i) * 50));
}

TEST_F(Kv, LoadAndVerifyATree) {
  const Scratch scratch;
  make_tree(scratch);
  const std::string root = scratch.path().string();
  const Ran load = run({"load", root});
  ASSERT_TRUE(ended(load, 0));
  EXPECT_TRUE(contains(load.out, "loaded 310 files"));
  EXPECT_TRUE(get("large/megabytes") == every_byte(2'500'000));
  EXPECT_EQ(get("with blank/and \"quote\""), "q");
  EXPECT_EQ(get("empty"), "");
  const Ran verify = run({"verify", root});
  EXPECT_TRUE(ended(verify, 0));
  EXPECT_TRUE(contains(verify.out, "verified 310 files"));
}

TEST_F(Kv, VerifyFindsEveryKindOfDifference) {
  const Scratch scratch;
  scratch.write("v/same", "same");
  scratch.write("v/byte", every_byte(9'000));
  scratch.write("v/shorter", "short");
  scratch.write("v/longer", every_byte(100'000));
  scratch.write("v/gone", "gone");
  scratch.write("v/large", every_byte(200'000));
  const std::string root = scratch.path().string();
  ASSERT_TRUE(ended(run({"load", root}), 0));
  std::string changed = every_byte(9'000);
  changed[4'321] ^= 1;
  put("v/byte", changed);
  put("v/shorter", "shorter than that is not");
  put("v/longer", "long");
  changed = every_byte(200'000);
  changed.back() ^= 1;
  put("v/large", changed);
  ASSERT_TRUE(ended(run({"del", "v/gone"}), 0));

  const Ran verify = run({"verify", root});
  EXPECT_EQ(verify.exit, 1);
  EXPECT_TRUE(contains(verify.err, "v/byte: different: byte 4321"));
  EXPECT_TRUE(contains(verify.err, "v/shorter: different"));
  EXPECT_TRUE(contains(verify.err, "v/longer: different"));
  EXPECT_TRUE(contains(verify.err, "v/large: different: byte 199999"));
  EXPECT_TRUE(contains(verify.err, "v/gone: missing"));
  EXPECT_FALSE(contains(verify.err, "v/same"));
  EXPECT_TRUE(contains(verify.out, "verified 1 files"));
  EXPECT_TRUE(contains(verify.out, "5 missing or different"));
}

TEST_F(Kv, LoadLeavesOutLinksAndGoesOnAfterWhatDoesNotFit) {
  const Scratch scratch;
  scratch.write("l/good", "good");
  std::filesystem::create_symlink("good", scratch.path() / "l/link");
  ASSERT_EQ(::mkfifo((scratch.path() / "l/pipe").c_str(), 0600), 0);
  const std::string root = scratch.path().string();
  const Ran links = run({"load", root});
  EXPECT_EQ(links.exit, 0) << links.err;
  EXPECT_TRUE(contains(links.err, "left out 1 symbolic links, which are not followed: l/link"));
  EXPECT_TRUE(contains(links.err, "not regular: l/pipe"));
  EXPECT_TRUE(ended(run({"get", "l/link"}), 1));

  std::string deep = "l";
  for (int i = 0; i < 5; ++i) deep += '/' + std::string(250, 'd');
  scratch.write(deep + "/leaf", "too deep for a key");
  // Sparse: longer than the server's limit without the disk space.
  scratch.write("l/huge", "");
  std::filesystem::resize_file(scratch.path() / "l/huge", std::uintmax_t{33} << 20);
  scratch.write("l/z-last", "last");
  const Ran load = run({"load", root});
  EXPECT_EQ(load.exit, 3);
  EXPECT_TRUE(contains(load.err, "1024 bytes"));
  EXPECT_TRUE(contains(load.err, "l/huge"));
  EXPECT_TRUE(contains(load.out, "2 failed"));
  EXPECT_EQ(get("l/z-last"), "last");
}

TEST_F(Kv, TreeThatIsNotThere) {
  for (const char* command : {"load", "verify"}) {
    const Ran ran = run({command, "/no/such/directory"});
    EXPECT_TRUE(ended(ran, 3)) << command;
    EXPECT_TRUE(contains(ran.err, "/no/such/directory")) << command;
  }
}

// bench.

TEST_F(Kv, BenchPrintsFiguresConfigurationAndEnvironment) {
  for (const char* depth : {"1", "8"}) {
    const Ran ran = run({"bench", "--count", "2000", "--keys", "100", "--rounds", "2", "--depth", depth});
    EXPECT_TRUE(ended(ran, 0));
    for (const char* part : {"ops/s", "get  ", "put  ", "p50 ", "p99 ", "p99.9 ", "max ", "2000 operations", "100 keys",
                             "cores", "Linux "}) {
      EXPECT_TRUE(contains(ran.out, part)) << depth;
    }
  }
}

TEST_F(Kv, BenchOfBatchesCountsKeys) {
  for (const char* lookup : {"message", "one-sided"}) {
    const Ran ran = run({"bench", "--count", "1000", "--keys", "100", "--rounds", "1", "--batch", "32", "--lookup",
                         lookup, "--known-locations", "0", "--json"});
    EXPECT_TRUE(ended(ran, 0));
    EXPECT_TRUE(contains(ran.out, "\"operations\":1000,")) << lookup;
    EXPECT_TRUE(contains(ran.out, std::string("\"batch\":32,\"lookup\":\"") + lookup + "\",")) << ran.out;
  }
}

TEST_F(Kv, BenchOfLargeValuesHasMemcpyBesideIt) {
  const Ran ran = run(
      {"bench", "--count", "40", "--keys", "4", "--rounds", "1", "--value-size", "64K", "--wait", "event", "--json"});
  EXPECT_TRUE(ended(ran, 0));
  EXPECT_EQ(std::ranges::count(ran.out, '\n'), 1);
  EXPECT_TRUE(contains(ran.out, "\"operations\":40,"));
  EXPECT_TRUE(contains(ran.out, "\"wait\":\"event\","));
  EXPECT_TRUE(contains(ran.out, "\"memcpy\":{"));
  EXPECT_TRUE(ran.out.starts_with("{\"endpoint\""));
}

TEST_F(Kv, BenchSweepsOverLengths) {
  const Ran ran = run({"bench", "--sweep", "--seconds", "0.1"});
  EXPECT_TRUE(contains(ran.out, "     bytes      set MiB/s")) << ran.err;
  EXPECT_TRUE(contains(ran.out, "\n         1 "));
  EXPECT_TRUE(contains(ran.out, "\n   1048576 "));
  EXPECT_EQ(ran.exit, 0) << ran.err;
}

TEST_F(Kv, BenchLeavesTheStoreAsItWas) {
  put("stays", "here");
  const auto items = [] {
    const std::string out = run({"stats"}).out;
    return out.substr(0, out.find(','));
  };
  const std::string before = items();
  ASSERT_TRUE(ended(run({"bench", "--count", "100", "--keys", "50", "--rounds", "1"}), 0));
  EXPECT_EQ(items(), before);
}

TEST_F(Kv, BenchCanLeaveItsKeysToTheNextOne) {
  const std::vector<std::string> first{"bench",    "--count", "1",          "--keys", "50",
                                       "--rounds", "1",       "--no-erase", "--json"};
  EXPECT_TRUE(contains(run(first).out, "\"overhead_bytes\":"));
  const std::vector<std::string> next{"bench", "--count",        "105", "--keys",        "50", "--rounds",
                                      "1",     "--read-percent", "100", "--clock-every", "10", "--no-fill",
                                      "--json"};
  const Ran ran = run(next);
  EXPECT_TRUE(ended(ran, 0));
  EXPECT_TRUE(contains(ran.out, "\"operations\":105,"));
  // That one has erased them.
  EXPECT_TRUE(ended(run(next), 3));
}

// shell.

TEST_F(Kv, ShellRunsAScript) {
  const Ran ran = run({"shell"},
                      "# a comment\n"
                      "put s1 \"a value\\x00\\n\"\n"
                      "get s1\n"
                      "\n"
                      "del s1\n"
                      "get s1\n"
                      "cas s1 0 again\n"
                      "get s1\n"
                      "stats\n"
                      "help\n"
                      "bench --count 100 --keys 10 --rounds 1\n"
                      "quit\n"
                      "get not-reached\n");
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_TRUE(contains(ran.out, "a value\\x00\\n\n"));
  EXPECT_TRUE(contains(ran.out, "deleted\n"));
  EXPECT_TRUE(contains(ran.out, "again\n"));
  EXPECT_TRUE(contains(ran.out, "clients 1 now"));
  EXPECT_TRUE(contains(ran.out, "ops/s"));
  EXPECT_TRUE(contains(ran.err, "\"s1\": not found"));
  EXPECT_FALSE(contains(ran.err, "not-reached"));
}

TEST_F(Kv, ErrorsStayInTheShell) {
  const Ran ran = run({"shell"},
                      "frobnicate\n"
                      "gte k\n"
                      "put only-key\n"
                      "put \"open\n"
                      "cas k x v\n"
                      "get\n"
                      "put k -f /no/such/file\n"
                      "bench --depth 0\n"
                      "put survivor alive\n"
                      "get survivor");
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(std::ranges::count(ran.err, '\n'), 8) << ran.err;
  EXPECT_TRUE(contains(ran.err, "unknown command \"frobnicate\"; type help")) << ran.err;
  EXPECT_TRUE(contains(ran.err, "unknown command \"gte\"; did you mean \"get\"?")) << ran.err;
  EXPECT_TRUE(contains(ran.out, "alive\n"));
}

TEST_F(Kv, ShellFilesKeepEveryByte) {
  const Scratch scratch;
  scratch.write("in", every_byte(70'000));
  const std::string in = (scratch.path() / "in").string(), out = (scratch.path() / "out").string();
  const Ran ran = run({"shell"}, "put file -f " + in + "\nget file -f " + out + "\n");
  EXPECT_TRUE(ended(ran, 0));
  EXPECT_TRUE(scratch.read("out") == every_byte(70'000));
}

TEST_F(Kv, ShellOnATerminalEditsAndRemembers) {
  KvTerminal terminal(server_->port());
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  terminal.type("put tty valuX\be\r");  // A backspace: the line is edited.
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  terminal.type("get tty\r");
  ASSERT_TRUE(terminal.await("\nvalue\r")) << terminal.seen();
  terminal.type("\x10\r");  // ^P, and the line before is back.
  ASSERT_TRUE(terminal.await("\nvalue\r")) << terminal.seen();
  terminal.type("get none\r");
  ASSERT_TRUE(terminal.await("not found")) << terminal.seen();
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  terminal.type("half a line\x03");  // ^C gives up the line, not the shell.
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  terminal.type("get tty\r");
  ASSERT_TRUE(terminal.await("\nvalue\r")) << terminal.seen();
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  terminal.type("quit\r");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

TEST_F(Kv, EndOfInputLeavesTheShell) {
  KvTerminal terminal(server_->port());
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  terminal.type("\x04");  // ^D
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

// What servers do as processes.

TEST(KvServe, StopsCleanlyOnSignals) {
  for (const int signal : {SIGTERM, SIGINT}) {
    KvServer server;
    ASSERT_NE(server.port(), 0);
    EXPECT_TRUE(ended(server.run({"put", "key", "value"}), 0));
    server.process().send(signal);
    const Ran ran = server.process().finish();
    EXPECT_TRUE(ended(ran, 0));
    EXPECT_TRUE(contains(ran.out, "1 put"));
    EXPECT_TRUE(ran.out.ends_with("verbena-kv: stopped\n")) << ran.out;
    EXPECT_TRUE(ended(run_kv({"get", "key", "-p", std::to_string(server.port())}), 3));
  }
}

TEST(KvServe, StopsWhileAClientIsThere) {
  KvServer server;
  ASSERT_NE(server.port(), 0);
  KvProcess shell({"shell", "-p", std::to_string(server.port())});
  // The server stops while the shell, the other one of two clients, waits for its next line.
  const Deadline deadline = Deadline::after(std::chrono::seconds{30});
  while (!server.run({"stats"}).out.contains("clients 2 now")) ASSERT_FALSE(deadline.passed());
  server.process().send(SIGTERM);
  EXPECT_TRUE(ended(server.process().finish(), 0));
  const Ran ran = shell.finish("get key\n");
  EXPECT_EQ(ran.exit, 3) << ran.err;
  EXPECT_TRUE(contains(ran.err, "the server has stopped"));
}

TEST(KvServe, AKilledServerIsAnErrorAtOnce) {
  KvServer server;
  ASSERT_NE(server.port(), 0);
  KvProcess bench(
      {"bench", "-p", std::to_string(server.port()), "--seconds", "600", "--rounds", "1", "--json", "--keys", "1000"});
  // Some operations have been done once the statistics say so.
  const Deadline deadline = Deadline::after(std::chrono::seconds{30});
  while (!deadline.passed()) {
    const Ran stats = server.run({"stats"});
    if (stats.exit == 0 && stats.out.find("items 1000,") != std::string::npos) break;
  }
  server.process().send(SIGKILL);
  const Ran ran = bench.finish();
  EXPECT_EQ(ran.exit, 3) << ran.err;
  EXPECT_FALSE(ran.late);
  EXPECT_TRUE(contains(ran.err, "the connection broke"));
}

TEST(KvServe, WritesItsPortFileWhenReadyAndRemovesIt) {
  const Scratch scratch;
  const std::string path = (scratch.path() / "port").string();
  scratch.write("port", "1\n");
  KvServer server({"-m", "16", "--port-file", path});
  ASSERT_NE(server.port(), 0);
  // The line comes first and the file right behind it; a stop follows both.
  server.process().send(SIGTERM);
  EXPECT_TRUE(ended(server.process().finish(), 0));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(KvServe, APortFileThatIsNoFileIsRefusedAndStays) {
  const Scratch scratch;
  const std::string path = (scratch.path() / "pipe").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const Ran ran = run_kv({"serve", "-p", "0", "-m", "16", "--port-file", path});
  EXPECT_TRUE(ended(ran, 3));
  EXPECT_TRUE(contains(ran.err, "--port-file: " + path));
  EXPECT_TRUE(std::filesystem::is_fifo(path));
}

/// Files that a process has open.
std::size_t open_files(pid_t pid) {
  const std::filesystem::directory_iterator at("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<std::size_t>(std::ranges::distance(at));
}

// It served 43 of its 64 clients with a soft limit of 1,024, and said nothing.
TEST(KvServe, RaisesItsSoftLimitOfDescriptors) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 128;
  if (before.rlim_max < 4096) GTEST_SKIP() << "this process may not have " << 4096 << " descriptors";
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  KvServer server({"-m", "64", "--max-clients", "200"});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_NE(server.port(), 0);
  EXPECT_FALSE(contains(server.ready_line(), "RLIMIT_NOFILE")) << server.ready_line();
  rlimit raised{};
  ASSERT_EQ(::prlimit(server.process().pid(), RLIMIT_NOFILE, nullptr, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, before.rlim_max);
}

TEST(KvServe, TakesNoMoreDescriptorsAClientThanItPlans) {
  for (const unsigned workers : {1U, 2U}) {
    KvServer server({"-m", "64", "-d", "soft", "-w", std::to_string(workers)});
    ASSERT_NE(server.port(), 0);
    const std::size_t before = open_files(server.process().pid());
    std::vector<std::unique_ptr<KvProcess>> clients;
    constexpr std::size_t kClients = 4;
    for (std::size_t i = 0; i < kClients; ++i) {
      clients.push_back(std::make_unique<KvProcess>(
          Arguments{"stats", "-d", "soft", "-p", std::to_string(server.port()), "--watch", "1"}));
      ASSERT_NE(clients.back()->first_line(), "");
    }
    EXPECT_GT(open_files(server.process().pid()), before);
    EXPECT_LE(open_files(server.process().pid()), before + kClients * (2 * workers + 4));
  }
}

// Whoever put something in its place keeps it.
TEST(KvServe, RemovesNothingButItsPortFile) {
  const Scratch scratch;
  const std::string path = (scratch.path() / "port").string();
  KvServer server({"-m", "16", "--port-file", path});
  ASSERT_NE(server.port(), 0);
  const Deadline deadline = Deadline::after(std::chrono::seconds{20});
  while (!std::filesystem::exists(path) && !deadline.passed()) std::this_thread::yield();
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  server.process().send(SIGTERM);
  EXPECT_TRUE(ended(server.process().finish(), 0));
  EXPECT_TRUE(std::filesystem::is_directory(path));
}

// A value that was printed went into a memfd of the library, which had taken the closed descriptor's number.
TEST(KvCommands, ClosedStandardDescriptorsAreErrors) {
  const KvServer server({"-m", "16"});
  const std::string port = std::to_string(server.port());
  ASSERT_TRUE(ended(run_kv({"put", "-p", port, "key", "value"}), 0));
  const auto exit_of = [&](const std::string& command, const std::string& closing) {
    const std::string line = tested_program() + " " + command + " -p " + port + " " + closing;
    const int status = std::system(line.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(exit_of("get key", ">/dev/null"), 0);
  EXPECT_EQ(exit_of("get key", ">&-"), 3);
  EXPECT_EQ(exit_of("get key", "<&- >&-"), 3);
  EXPECT_EQ(exit_of("get key", "<&- >&- 2>&-"), 3);
  EXPECT_EQ(exit_of("get key", "<&- >/dev/null 2>&-"), 0);
  EXPECT_EQ(exit_of("put key -f -", "<&- 2>/dev/null"), 3);
  const Ran ran = run_kv({"get", "-p", port, "key"});
  EXPECT_TRUE(ended(ran, 0));
  EXPECT_EQ(ran.out, "value");
}

TEST(KvServe, PortInUse) {
  KvServer server({"-m", "16"});
  ASSERT_NE(server.port(), 0);
  const Ran second = run_kv({"serve", "-m", "16", "-p", std::to_string(server.port())});
  EXPECT_TRUE(ended(second, 3));
  EXPECT_TRUE(contains(second.err, std::to_string(server.port())));
}

TEST(KvServe, LimitsThatDoNotFitAreNamed) {
  const Ran ran = run_kv({"serve", "-p", "0", "-m", "16", "--max-value-mib", "16"});
  EXPECT_TRUE(ended(ran, 3));
}

TEST(KvServe, OptionsSayWhichOtherUsersMayConnectAndAreTrusted) {
  if (const char* why = why_not_as_another_user(); why != nullptr) GTEST_SKIP() << why;
  constexpr uid_t kStranger = 65534;
  const std::string stranger = std::to_string(kStranger);
  const auto put = [](std::uint16_t port) {
    return run_kv_as(kStranger, {"put", "-p", std::to_string(port), "-d", "soft", "key", "value"});
  };
  {
    const KvServer closed({"-m", "64", "-d", "soft"});
    ASSERT_NE(closed.port(), 0);
    const Ran refused = put(closed.port());
    EXPECT_TRUE(ended(refused, 3));
    EXPECT_TRUE(contains(refused.err, "not allowed"));
  }
  const KvServer open({"-m", "64", "-d", "soft", "--allow-uid", "1234", "--allow-uid", stranger});
  ASSERT_NE(open.port(), 0);
  EXPECT_TRUE(ended(put(open.port()), 0));
  EXPECT_EQ(open.run({"get", "-d", "soft", "key"}).out, "value");
  // A server of another user, which has to allow this one and to be trusted by it.
  KvProcess other({"serve", "-p", "0", "-m", "64", "-d", "soft", "--allow-uid", "0"}, kStranger);
  const std::string line = other.first_line();
  const std::size_t colon = line.find("serving on 127.0.0.1:");
  ASSERT_NE(colon, std::string::npos) << line;
  const std::string port = std::to_string(std::strtoul(line.c_str() + colon + 21, nullptr, 10));
  const Ran unknown = run_kv({"put", "-p", port, "-d", "soft", "key", "value"});
  EXPECT_TRUE(ended(unknown, 3));
  EXPECT_TRUE(contains(unknown.err, "not allowed"));
  EXPECT_TRUE(ended(run_kv({"put", "-p", port, "-d", "soft", "--allow-uid", stranger, "key", "value"}), 0));
}

TEST(KvServe, GrantsSayWhoMayWhat) {
  const std::string me = std::to_string(geteuid());
  const KvServer server({"-m", "64", "-d", "soft", "--allow", "read+write:" + me + R"(:a\x3a)", "--allow",
                         "administer:" + me, "--quota", me + ":4K:2"});
  ASSERT_NE(server.port(), 0);
  EXPECT_TRUE(contains(server.ready_line(), "3 grants"));
  const auto run = [&](Arguments arguments) {
    arguments.insert(arguments.end(), {"-d", "soft"});
    return server.run(arguments);
  };
  EXPECT_TRUE(ended(run({"put", "a:1", "value"}), 0));
  EXPECT_EQ(run({"get", "a:1"}).out, "value");
  const Ran denied = run({"get", "b"});
  EXPECT_TRUE(ended(denied, 3));
  EXPECT_TRUE(contains(denied.err, "denied: uid " + me + R"( has the right to read only keys that begin with "a:")"));
  EXPECT_TRUE(ended(run({"put", "a:2", "value"}), 0));
  const Ran full = run({"put", "a:3", "value"});
  EXPECT_TRUE(ended(full, 3));
  EXPECT_TRUE(contains(full.err, "over quota: uid " + me + " has 2 items of its quota of 2"));
  EXPECT_TRUE(ended(run({"put", "a:1", std::string(4000, 'v')}), 3));
  const Ran stats = run({"stats"});
  EXPECT_TRUE(ended(stats, 0));
  EXPECT_TRUE(contains(stats.out, "denied"));
  const Ran promised = run({"put", "a:1", "v", "--read-only"});
  EXPECT_TRUE(ended(promised, 3));
  EXPECT_TRUE(contains(promised.err, "--read-only"));
  EXPECT_EQ(run({"get", "a:1", "--read-only"}).out, "value");
}

TEST(KvServe, GrantsTakeNamesOfUsers) {
  const KvServer server({"-m", "64", "-d", "soft", "--allow", "administer:root", "--quota", "root:-:5"});
  ASSERT_NE(server.port(), 0);
  const Ran put = server.run({"put", "k", "v", "-d", "soft"});
  EXPECT_TRUE(ended(put, geteuid() == 0 ? 3 : 0));
}

TEST(KvServe, WrongGrantsAreRefused) {
  const std::string long_prefix(1025, 'p');
  const auto allow = [](const std::string& text) { return Arguments{"serve", "--allow", text}; };
  const auto quota = [](const std::string& text) { return Arguments{"serve", "--quota", text}; };
  expect_refused({
      {allow("look:0"), {"--allow", "read, write and administer", "\"look\""}},
      {allow("read+:0"), {"--allow", "read, write and administer"}},
      {allow("read"), {"--allow", "RIGHTS:USER:PREFIX", "\"read\""}},
      {allow("read:"), {"--allow", "0 to 4294967294", "\"\""}},
      {allow("read:4294967295"), {"--allow", "0 to 4294967294", "4294967295"}},
      {allow("read:no-such-user"), {"--allow", "a user's name", "no-such-user"}},
      {allow("read:0:\\x4"), {"--allow", "escapes"}},
      {allow("read:0:"), {"--allow", "no colon", "\"read:0:\""}},
      {allow("read:0:" + long_prefix), {"--allow", "0 to 1024 bytes", "1025"}},
      {allow("administer:0:p"), {"--allow", "0 bytes", "got 1"}, 3},
      {quota("0"), {"--quota", "USER:MEMORY:ITEMS", "\"0\""}},
      {quota("0:0:-"), {"--quota", "bytes of 1 and more", "\"0\""}},
      {quota("0:-:0"), {"--quota", "items of 1 and more", "\"0\""}},
      {quota("0:-:-"), {"--quota", "at least one limit"}},
      {quota("0:-:x"), {"--quota", "items", "\"x\""}},
  });
}

TEST(KvServe, AKeyFileSaysWhoMayConnect) {
  if (!test::has_keys()) GTEST_SKIP() << "this build has no keys";
  const test::KeyFile keys, other("new 000102030405060708090a0b0c0d0e0e\n"),
      unknown("newer 000102030405060708090a0b0c0d0e0f");
  KvServer server({"-m", "64", "-d", "soft", "--key-file", keys.path()});
  ASSERT_NE(server.port(), 0);
  EXPECT_TRUE(contains(server.ready_line(), "prove a key of " + keys.path() + " (2 keys)"));
  EXPECT_TRUE(ended(server.run({"put", "-d", "soft", "--key-file", keys.path(), "key", "value"}), 0));
  EXPECT_EQ(server.run({"get", "-d", "soft", "--key-file", keys.path(), "--key-name", "old", "key"}).out, "value");
  const std::pair<std::vector<std::string>, const char*> refused[] = {
      {{}, "the server asks for a key: connect with --key-file"},
      {{"--key-file", other.path()}, "did not prove that it has the key new"},
      {{"--key-file", unknown.path()}, "the server refused the key newer"},
      {{"--key-file", keys.path(), "--key-name", "none"}, "no key with the --key-name none"},
      {{"--key-file", keys.path() + ".none"}, "there is no such file"},
  };
  for (const auto& [options, says] : refused) {
    std::vector<std::string> words{"get", "-d", "soft"};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("key");
    const Ran ran = server.run(words);
    EXPECT_TRUE(ended(ran, 3));
    EXPECT_EQ(ran.out, "");
    EXPECT_TRUE(contains(ran.err, says));
  }
  EXPECT_TRUE(ended(server.run({"get", "-d", "soft", "--key-name", "new", "key"}), 2));
  const KvServer open({"-m", "64", "-d", "soft"});
  ASSERT_NE(open.port(), 0);
  EXPECT_TRUE(contains(open.ready_line(), "open to processes of user"));
  const Ran ran = open.run({"get", "-d", "soft", "--key-file", keys.path(), "key"});
  EXPECT_TRUE(ended(ran, 3));
  EXPECT_TRUE(contains(ran.err, "the server asks for no key"));
  ASSERT_EQ(::chmod(keys.path().c_str(), 0644), 0);
  const Ran shared = run_kv({"serve", "-p", "0", "-m", "64", "-d", "soft", "--key-file", keys.path()});
  EXPECT_TRUE(ended(shared, 3));
  EXPECT_TRUE(contains(shared.err, "--key-file " + keys.path() + " has mode 0644"));
}

TEST(KvServe, WaitsAsItIsTold) {
  KvServer server({"-m", "16", "--wait", "event"});
  ASSERT_NE(server.port(), 0);
  EXPECT_TRUE(ended(server.run({"put", "key", "value", "--wait", "spin"}), 0));
  EXPECT_TRUE(ended(server.run({"get", "key", "--wait", "event"}), 0));
  server.process().send(SIGTERM);
  const Ran ran = server.process().finish();
  EXPECT_TRUE(contains(ran.out, "by the policy `event`"));
}

TEST(KvServe, SeveralWorkersServeOneTree) {
  const Scratch scratch;
  make_tree(scratch);
  KvServer server({"-m", "256", "-w", "2"});
  ASSERT_NE(server.port(), 0);
  EXPECT_TRUE(ended(server.run({"load", scratch.path().string()}), 0));
  EXPECT_TRUE(ended(server.run({"verify", scratch.path().string()}), 0));
}

TEST(KvServe, AFullStoreSaysSoAndKeepsWhatItHas) {
  const Scratch scratch;
  for (int i = 0; i < 40; ++i) scratch.write("f/" + std::to_string(100 + i), every_byte(1'000'000));
  KvServer server({"-m", "16", "--lease-kib", "1024"});
  ASSERT_NE(server.port(), 0);
  ASSERT_TRUE(ended(server.run({"put", "first", "kept"}), 0));
  const Ran load = server.run({"load", scratch.path().string()});
  EXPECT_EQ(load.exit, 3);
  EXPECT_TRUE(contains(load.err, "store full"));
  EXPECT_TRUE(contains(load.err, "of 16.0 MiB, keys and values take")) << "what fills it";
  EXPECT_TRUE(contains(load.err, "raise --memory"));
  const Ran get = server.run({"get", "first"});
  EXPECT_TRUE(ended(get, 0));
  EXPECT_EQ(get.out, "kept");
}

TEST(KvServe, GarbageOnThePortHurtsNobody) {
  KvServer server;
  ASSERT_NE(server.port(), 0);
  std::vector<int> sockets;
  for (int i = 0; i < 8; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    // Half of them send garbage, the others stay silent.
    const std::string garbage = i % 2 == 0 ? "GET / HTTP/1.1\r\n\r\n" : every_byte(20'000);
    if (i < 4) static_cast<void>(::send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL));
    sockets.push_back(fd);
  }
  EXPECT_TRUE(ended(server.run({"put", "key", "value"}), 0));
  const Ran get = server.run({"get", "key"});
  EXPECT_TRUE(ended(get, 0));
  EXPECT_EQ(get.out, "value");
  for (const int fd : sockets) ::close(fd);
  server.process().send(SIGTERM);
  EXPECT_TRUE(ended(server.process().finish(), 0));
}

}  // namespace
}  // namespace verbena::test
