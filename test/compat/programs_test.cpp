// The programs of the replaced systems, by the command lines that their READMEs have, and their other options.
#include "kv_process.hpp"
#include "paths.hpp"
#include "scratch.hpp"
#include "shell.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

namespace verbena::test {
namespace {

/// "./bin/kv_client -a <server_ip>" as arguments, for a server of this host.
Arguments as_readme(const std::string& line) {
  Arguments words;
  std::istringstream text(line);
  for (std::string word; text >> word;) words.push_back(word == "<server_ip>" ? "127.0.0.1" : word);
  words.front() = words.front().substr(words.front().rfind('/') + 1);
  return words;
}

/// A server by a README's line, and what a client's line answers to `input`.
struct Session {
  Ran client;
  Ran server;
};
Session converse(const std::string& server_line, const std::string& client_line, const std::string& input) {
  KvProcess server(as_readme(server_line));
  EXPECT_TRUE(server.await("Server is running. Press Ctrl+C to stop.\n"));
  Session session;
  session.client = run_kv(as_readme(client_line), input);
  server.send(SIGINT);
  session.server = server.finish();
  return session;
}

/// The lines of a client's session from its first prompt on.
std::string prompts_of(const Ran& client) {
  const std::size_t at = client.out.find("kv> ");
  return at == std::string::npos ? client.out : client.out.substr(at);
}

constexpr const char* kReadmeCommands =
    "put mykey myvalue\n"
    "get mykey\n"
    "cas mykey 1 newvalue\n"
    "del mykey\n"
    "bench 1000\n";

void expect_readme_session(const Session& session, const std::string& mode) {
  const Ran& client = session.client;
  EXPECT_EQ(client.exit, 0) << client.err;
  EXPECT_TRUE(client.out.starts_with("=== RDMA KV Store Client ===\nConnecting to 127.0.0.1:12345 (" + mode +
                                     " mode)...\nConnected!\n"))
      << client.out;
  const std::string prompts = prompts_of(client);
  EXPECT_TRUE(prompts.starts_with("kv> OK\nkv> myvalue\nkv> OK (new version: 2)\nkv> OK\nkv> \n=== Running Benchmark"))
      << prompts;
  for (const char* phase : {"\nPUT: 1000/1000 successful in ", "\nPUT throughput: ", "\nGET: 1000/1000 successful in ",
                            "\nGET throughput: ", "\nDELETE: 1000/1000 successful in ", "\nDELETE throughput: "})
    EXPECT_NE(prompts.find(phase), std::string::npos) << phase << prompts;
  EXPECT_TRUE(prompts.ends_with("kv> Goodbye!\n")) << prompts;
  const Ran& server = session.server;
  EXPECT_EQ(server.exit, 0) << server.err;
  EXPECT_TRUE(
      server.out.starts_with("=== RDMA KV Store Server ===\nBind address: 0.0.0.0:12345\n"
                             "Memory pool: 1024 MB\n"))
      << server.out;
  EXPECT_NE(server.out.find("\nConnection mode: " + mode + "\n"), std::string::npos) << server.out;
  EXPECT_TRUE(server.out.ends_with("\nReceived signal 2, shutting down...\nServer shutdown complete.\n")) << server.out;
}

// On rdma_kv's own port.
TEST(CompatReadme, RdmaKvWithRdmaCm) {
  const Session session = converse("./bin/kv_server -a 0.0.0.0 -p 12345 -m 1024 -H",
                                   "./bin/kv_client -a <server_ip> -p 12345", kReadmeCommands);
  expect_readme_session(session, "RDMA CM");
  EXPECT_NE(session.server.out.find("\nHuge pages: enabled\n"), std::string::npos);
  // It says which pages there are.
  EXPECT_NE(session.server.out.find("pages of "), std::string::npos) << session.server.out;
}

TEST(CompatReadme, RdmaKvWithSockets) {
  const Session session = converse("./bin/kv_server -a 0.0.0.0 -p 12345 -m 1024 -S",
                                   "./bin/kv_client -a <server_ip> -p 12345 -S", kReadmeCommands);
  expect_readme_session(session, "Socket");
  EXPECT_NE(session.server.out.find("\nHuge pages: disabled\n"), std::string::npos);
}

TEST(CompatReadme, RdmaKvWithSocketsAndADevice) {
  expect_readme_session(converse("./bin/kv_server -a 0.0.0.0 -p 12345 -m 1024 -S -d soft",
                                 "./bin/kv_client -a <server_ip> -p 12345 -S -d soft", kReadmeCommands),
                        "Socket");
}

/// A kv_server on a port of its own, and a client of it.
class CompatServer : public testing::Test {
 protected:
  void start(Arguments more) {
    more.insert(more.begin(), {"kv_server", "--address", "127.0.0.1", "--port", "0"});
    server_ = std::make_unique<KvProcess>(more);
    ASSERT_TRUE(server_->await("Server is running."));
  }
  /// The port is in what the server prints when it has started.
  [[nodiscard]] Ran client(Arguments more, const std::string& input) {
    const std::string front = "Listening on 127.0.0.1:";
    const std::string said = server_->said();
    const std::size_t at = said.find(front);
    if (at == std::string::npos) return {};
    const std::string port = std::to_string(std::atoi(said.c_str() + at + front.size()));
    more.insert(more.begin(), {"kv_client", "--address", "127.0.0.1", "--port", port, "--timeout-ms", "30000"});
    return run_kv(more, input);
  }
  std::unique_ptr<KvProcess> server_;
};

TEST_F(CompatServer, TakesLongOptions) {
  start({"--memory", "64", "--table", "65536", "--workers", "2", "--hugepages", "--socket", "--device", "soft"});
  const Ran ran = client({"--socket", "--device", "soft"}, "put a b\nquit\nput never seen\n");
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(prompts_of(ran), "kv> OK\nkv> Goodbye!\n");
}

TEST_F(CompatServer, CountsVersionsOfAKeyFromOne) {
  start({"-m", "64"});
  const Ran ran = client({},
                         "put other x\nput other y\nput key one\nput key two\ncas key 1 three\ncas key 2 three\n"
                         "get key\ndel key\ncas key 3 four\nput key again\ncas key 1 and again\nget key\n");
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(prompts_of(ran),
            "kv> OK\nkv> OK\nkv> OK\nkv> OK\nkv> CAS FAILED (current version: 2)\nkv> OK (new version: 3)\n"
            "kv> three\nkv> OK\nkv> (nil)\nkv> OK\nkv> OK (new version: 2)\nkv> and again\nkv> Goodbye!\n");
}

TEST_F(CompatServer, HasTheServersVersionsIfAskedTo) {
  start({"-m", "64"});
  const Ran ran = client({"--server-versions"}, "put a 1\nput b 2\ncas b 1 3\ncas b 2 3\nget b\n");
  EXPECT_EQ(prompts_of(ran),
            "kv> OK\nkv> OK\nkv> CAS FAILED (current version: 2)\nkv> OK (new version: 3)\nkv> 3\n"
            "kv> Goodbye!\n");
  // A value without a count is not mistaken for one with.
  const Ran other = client({}, "get b\nput b 4\n");
  EXPECT_EQ(other.exit, 0);
  EXPECT_NE(other.out.find("kv> ERROR: -11 (wrong kind: "), std::string::npos) << other.out;
}

TEST_F(CompatServer, AnswersWrongCommandsAsRdmaKvDoes) {
  start({"-m", "64"});
  const Ran ran = client({},
                         "\n  \nput\nput key\nget\ndel\ncas key\ncas key x value\ncas key 1\nbench 0\nbench -1\n"
                         "bench many\nfrobnicate it\nget nothing\ndel nothing\n");
  EXPECT_EQ(ran.exit, 0) << ran.err;
  const std::string usage_put = "kv> Usage: put <key> <value>\n", usage_cas =
                                                                      "kv> Usage: cas <key> <expected_version> "
                                                                      "<new_value>\n";
  const std::string usage_bench = "kv> Usage: bench <num>, with 1 to 1000000000 operations\n";
  EXPECT_EQ(prompts_of(ran), "kv> kv> " + usage_put + usage_put + "kv> Usage: get <key>\nkv> Usage: del <key>\n" +
                                 usage_cas + usage_cas + usage_cas + usage_bench + usage_bench + usage_bench +
                                 "kv> Unknown command: frobnicate\nkv> (nil)\nkv> (nil)\nkv> Goodbye!\n");
}

TEST_F(CompatServer, TakesLongKeysAndValues) {
  start({"-m", "64"});
  const std::string key(1024, 'k'), longer(1025, 'k'), value(1 << 20, 'v');
  const Ran ran = client({}, "put " + key + ' ' + value + "\nget " + key + "\nput " + longer + " x\n");
  EXPECT_TRUE(prompts_of(ran).starts_with("kv> OK\nkv> " + value + "\nkv> ERROR: -6 (bad key: "))
      << prompts_of(ran).substr(0, 200);
}

TEST_F(CompatServer, AClientWhoseServerEndsDoesNotLookSuccessful) {
  start({"-m", "64"});
  KvProcess& server = *server_;
  server.send(SIGTERM);
  EXPECT_TRUE(server.await("\nReceived signal 15, shutting down...\n"));
  const Ran ended = server.finish();
  EXPECT_EQ(ended.exit, 0) << ended.err;
  const Ran ran = run_kv({"kv_client", "-a", "127.0.0.1", "-p", "1"}, "get x\n");
  EXPECT_EQ(ran.exit, 3);
  EXPECT_TRUE(ran.err.starts_with("kv_client: cannot connect to 127.0.0.1:1: ")) << ran.err;
}

TEST(CompatWrong, EveryOptionIsChecked) {
  expect_refused(wrong_numbers({
                     {{"kv_server"}, "-p", "--port", 0, 65535},
                     {{"kv_server"}, "-m", "--memory", 1, 1 << 20},
                     {{"kv_server"}, "-t", "--table", 1, std::uint64_t{1} << 34},
                     {{"kv_server"}, "-w", "--workers", 1, 64},
                 }),
                 "kv_server");
  expect_refused(wrong_numbers({
                     {{"kv_client", "-a", "127.0.0.1"}, "-p", "--port", 1, 65535},
                     {{"kv_client", "-a", "127.0.0.1"}, "--timeout-ms", "--timeout-ms", 1, 86'400'000},
                 }),
                 "kv_client");
  expect_refused({{{"kv_server", "--hugepages=1"}, {"--hugepages", "takes no value"}},
                  {{"kv_server", "--hugepage"}, {"--hugepage", "did you mean --hugepages?"}},
                  {{"kv_server", "-a"}, {"--address", "its value is missing"}},
                  {{"kv_server", "-S", "more"}, {"more"}},
                  {{"kv_server", "-d", "nosuch0"}, {"nosuch0"}, 3},
                  {{"kv_server", "-a", "no.such.host.invalid"}, {"no.such.host.invalid"}, 3},
                  {{"kv_server", "-d", "soft", "-m", "1", "-w", "64"}, {"--memory"}, 3}},
                 "kv_server");
  expect_refused({{{"kv_client"}, {"-a", "required"}},
                  {{"kv_client", "-a", "127.0.0.1", "-m", "64"}, {"-m"}},
                  {{"kv_client", "-a", "127.0.0.1", "-d", "nosuch0"}, {"nosuch0"}, 3}},
                 "kv_client");
  expect_refused({{{"application", "127.0.0.1"}, {"127.0.0.1"}},
                  {{"application", "-m", "0"}, {"--memory", "1 to "}},
                  {{"application", "--max-value-mib", "0"}, {"--max-value-mib"}}},
                 "application");
  expect_refused({{{"client", "127.0.0.1", "more"}, {"more"}},
                  {{"client", "--seconds", "0"}, {"--seconds"}},
                  {{"client", "--plot"}, {"--plot"}},
                  {{"client", "--plot", "/proc"}, {"--plot", "/proc"}, 3}},
                 "client");
}

TEST(CompatWrong, RequiredHugepagesAreThereOrItDoesNotStart) {
  // More than any machine has reserved, and no more than may be asked for.
  const Ran ran =
      run_kv({"kv_server", "-d", "soft", "-p", "0", "-a", "127.0.0.1", "-m", "1000000", "--require-hugepages"});
  EXPECT_EQ(ran.exit, 3) << ran.out;
  EXPECT_TRUE(ran.err.starts_with("kv_server: cannot serve on ")) << ran.err;
}

TEST(CompatNames, ALinkGivesTheProgram) {
  const Scratch scratch;
  for (const char* name : {"kv_server", "kv_client", "application", "client"}) {
    const std::string link = (scratch.path() / name).string();
    ASSERT_EQ(::symlink(tested_program().c_str(), link.c_str()), 0);
    EXPECT_TRUE(run(link + " --version").out.starts_with(fmt::format("{} ", name)));
  }
  const std::string other = (scratch.path() / "other").string();
  ASSERT_EQ(::symlink(tested_program().c_str(), other.c_str()), 0);
  EXPECT_EQ(run(other + " --version 2>&1").exit, 2);
  EXPECT_EQ(run(other + " 2>&1").exit, 2);
}

/// A server of the RDMA Key-Value Store's kind, and its sweep.
TEST(CompatSweep, PrintsATableAndDrawsIt) {
  KvProcess server({"application", "-d", "soft", "-a", "127.0.0.1", "-p", "0", "-m", "256"});
  ASSERT_TRUE(server.await("serving on 127.0.0.1:") && server.await("\n"));
  const std::string said = server.said();
  const std::string port = std::to_string(std::atoi(said.c_str() + said.find("127.0.0.1:") + 10));
  const Scratch scratch;
  const std::string plot = (scratch.path() / "sweep.svg").string();
  const Ran ran = run_kv({"client", "127.0.0.1", "-d", "soft", "-p", port, "--seconds", "0.5", "--plot", plot});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  std::istringstream table(ran.out);
  std::string line;
  std::getline(table, line);
  EXPECT_EQ(line, "     bytes      set MiB/s      get MiB/s         set us         get us");
  std::size_t bytes = 1;
  for (; std::getline(table, line); bytes *= 2) {
    std::istringstream words(line);
    std::size_t length = 0;
    double set_rate = 0, get_rate = 0, set_us = 0, get_us = 0;
    words >> length >> set_rate >> get_rate >> set_us >> get_us;
    EXPECT_EQ(length, bytes) << line;
    // The columns agree with each other, but for the digits that are not printed.
    const double product = static_cast<double>(bytes) / 1.048576;
    EXPECT_NEAR(set_rate * set_us, product, 0.0006 * (set_rate + set_us));
    EXPECT_NEAR(get_rate * get_us, product, 0.0006 * (get_rate + get_us));
  }
  EXPECT_EQ(bytes, std::size_t{32} << 20) << ran.out;
  const std::string svg = scratch.read("sweep.svg");
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n")) << svg;
  EXPECT_EQ(run_kv({"client", "127.0.0.1", "-d", "soft", "-p", port, "--seconds", "0.1", "--json"}).exit, 0);
  server.send(SIGTERM);
  EXPECT_EQ(server.finish().exit, 0);
}

TEST(CompatSweep, EndsAtTheServersLimit) {
  KvProcess server({"application", "-d", "soft", "-a", "127.0.0.1", "-p", "0", "-m", "64", "--max-value-mib", "1"});
  ASSERT_TRUE(server.await("serving on 127.0.0.1:") && server.await("\n"));
  const std::string said = server.said();
  const std::string port = std::to_string(std::atoi(said.c_str() + said.find("127.0.0.1:") + 10));
  const Ran ran = run_kv({"client", "127.0.0.1", "-d", "soft", "-p", port, "--seconds", "0.2", "--json"});
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(ran.err, "client: the server takes values of at most 1048576 bytes: the sweep ends there\n");
  if (have_python()) {
    EXPECT_EQ(from_json(ran.out, "len(data[\"sweep\"])"), "21");
    EXPECT_EQ(from_json(ran.out, "data[\"sweep\"][20][\"bytes\"]"), "1048576");
    EXPECT_EQ(from_json(ran.out, "all(row[\"puts\"] > 0 and row[\"gets\"] > 0 for row in data[\"sweep\"])"), "True");
  }
}

}  // namespace
}  // namespace verbena::test
