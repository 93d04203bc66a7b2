// What connections cost between two processes, through the public API, with 4,096 descriptors in each: a Markdown table
// on standard output, each round on standard error. usage: connections [--connections N] [--cycles N] [--rounds N]
// [--seconds S] [--socket]
//
// The listener is this program once more. Descriptors, threads and memory are those that /proc tells of, for each
// connection beyond the first, which is open all the time: what a process has once, its NIC and threads, is in neither
// figure. Memory is what the process has mapped and is there (Rss), so that a page which both ends map counts at both.
#include <verbena/rdma.hpp>

#include <fcntl.h>
#include <malloc.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

extern char** environ;

namespace {

using namespace verbena;
using Clock = std::chrono::steady_clock;

struct Settings {
  unsigned connections = 1000;
  unsigned cycles = 10'000;
  unsigned rounds = 5;
  double seconds = 0.5;      ///< Each rate is measured for so long.
  bool has_handler = false;  ///< Clients have a handler, so a thread of the library drives them.
  bool is_socket = false;
  std::uint16_t port = 0;  ///< The listener's port, in the other process.
};

[[noreturn]] void give_up(const char* what, std::string_view why) {
  std::fprintf(stderr, "connections: %s: %.*s\n", what, static_cast<int>(why.size()), why.data());
  std::exit(1);
}

/// Resources of this process, as the kernel counts them.
struct Held {
  long descriptors = 0;
  long threads = 0;
  long resident_kib = 0;
  long tables_kib = 0;  ///< Page tables.
};

long field_of(const char* file, std::string_view name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name)) return std::stol(line.substr(name.size()));
  give_up(file, "no such line");
}

Held held() {
  malloc_trim(0);  // Returns the memory that nobody uses to the system.
  Held held;
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  held.descriptors = std::distance(begin(entries), end(entries));
  held.threads = field_of("/proc/self/status", "Threads:");
  held.resident_kib = field_of("/proc/self/smaps_rollup", "Rss:");
  held.tables_kib = field_of("/proc/self/status", "VmPTE:");
  return held;
}

rdma::Options options_of(const Settings& settings) {
  rdma::Options options;
  options.transport.device = "soft";
  if (settings.is_socket) options.transport.bootstrap = Bootstrap::kSocket;
  options.address = "127.0.0.1";
  options.port = settings.port;
  options.connect_timeout = options.timeout = std::chrono::seconds{30};
  return options;
}

// --- the listener's process ---------------------------------------------------------------------------------------

/// Sends back what arrives.
class Echo final : public rdma::Handler {
 public:
  void on_message(rdma::Connection& connection, const rdma::Message& message) noexcept override {
    (void)connection.send(message.data);
  }
};

/// Answers each line on standard input with what the process holds.
int listen(Settings settings) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Echo echo;
  rdma::Options options = options_of(settings);
  options.handler = &echo;
  options.receive = rdma::Receive::kHandler;
  options.max_connections = settings.connections + 16;
  const auto listener = rdma::Listener::start(options);
  if (!listener) give_up("listen", listener.error().text());
  std::printf("%d\n", (*listener)->port());
  std::fflush(stdout);
  for (char line[16]; std::fgets(line, sizeof line, stdin) != nullptr;) {
    const Held now = held();
    std::printf("%ld %ld %ld %ld\n", now.descriptors, now.threads, now.resident_kib, now.tables_kib);
    std::fflush(stdout);
  }
  return 0;
}

class Server {
 public:
  explicit Server(const Settings& settings) {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) give_up("pipe2", std::strerror(errno));
    std::vector<std::string> words = {"connections", "--listen", "--connections", std::to_string(settings.connections)};
    if (settings.is_socket) words.emplace_back("--socket");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    if (posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ) != 0)
      give_up("posix_spawn", "the listener's process does not start");
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    to_ = fdopen(to[1], "w");
    from_ = fdopen(from[0], "r");
    int port = 0;
    if (std::fscanf(from_, "%d", &port) != 1) give_up("listen", "no port");
    port_ = static_cast<std::uint16_t>(port);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    std::fclose(to_);
    std::fclose(from_);
    waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] Held held() {
    std::fputs("held\n", to_);
    std::fflush(to_);
    Held now;
    if (std::fscanf(from_, "%ld %ld %ld %ld", &now.descriptors, &now.threads, &now.resident_kib, &now.tables_kib) != 4)
      give_up("listen", "no answer");
    return now;
  }

 private:
  pid_t pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
  std::uint16_t port_ = 0;
};

// --- the clients' process -----------------------------------------------------------------------------------------

class Quiet final : public rdma::Handler {};
using Client = std::unique_ptr<rdma::Connection>;

class Clients {
 public:
  explicit Clients(const Settings& settings) : options_(options_of(settings)) {
    if (settings.has_handler) options_.handler = &handler_;
  }
  [[nodiscard]] Client connect() const {
    auto made = rdma::Connection::connect(options_);
    if (!made) give_up("connect", made.error().text());
    return std::move(*made);
  }

 private:
  Quiet handler_;
  rdma::Options options_;
};

void must(const char* what, Status status) {
  if (status != Status::kOk) give_up(what, to_string(status));
}

void echo_once(rdma::Connection& client) {
  std::array<std::byte, 32> bytes{};
  must("send", client.send(bytes));
  if (const auto got = client.receive(bytes); !got) give_up("receive", to_string(got.error()));
}

void read_once(rdma::Connection& client) {
  std::array<std::byte, 32> bytes{};
  must("read", client.read(bytes));
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <class Call>
double rate_of(rdma::Connection& client, double seconds, Call&& call) {
  for (int i = 0; i < 1000; ++i) call(client);
  const auto start = Clock::now();
  double count = 0, passed = 0;
  do {
    for (int i = 0; i < 64; ++i) call(client);
    count += 64;
    passed = seconds_since(start);
  } while (passed < seconds);
  return count / passed;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// The resources that each further connection takes, at one end.
struct Cost {
  double descriptors = 0;
  double kib = 0;
  double tables_kib = 0;
  long threads = 0;  ///< All connections together.
};
Cost cost_of(const Held& before, const Held& after, unsigned count) {
  const auto each = [count](long more) { return static_cast<double>(more) / count; };
  return {.descriptors = each(after.descriptors - before.descriptors),
          .kib = each(after.resident_kib - before.resident_kib),
          .tables_kib = each(after.tables_kib - before.tables_kib),
          .threads = after.threads - before.threads};
}
struct Ends {
  Cost client;
  Cost listener;
};

struct Row {
  const char* driver = "";
  Ends connected, used, used_often;
  std::vector<double> up, down, echo_ratio, read_ratio;
  double cycle_ms = 0;
};

/// Waits until the listener has ended its side of the connections, 10 s at most.
void settle(Server& server, const Held& before) {
  for (int i = 0; i < 1000 && server.held().descriptors > before.descriptors; ++i) usleep(10'000);
}

void measure_round(const Settings& settings, Server& server, const Clients& clients, rdma::Connection& first,
                   Row& row) {
  const unsigned others = settings.connections - 1;
  const Held here = held(), there = server.held();
  const auto ends = [&] { return Ends{cost_of(here, held(), others), cost_of(there, server.held(), others)}; };
  const double echoes = rate_of(first, settings.seconds, echo_once);
  const double reads = rate_of(first, settings.seconds, read_once);
  auto start = Clock::now();
  std::vector<Client> rest;
  rest.reserve(others);
  for (unsigned i = 0; i < others; ++i) rest.push_back(clients.connect());
  row.up.push_back(seconds_since(start));
  // Memory is that of the first round: the allocator keeps some of it for the next.
  const bool is_first = row.up.size() == 1;
  if (is_first) row.connected = ends();
  const auto use = [&](int times) {
    for (const Client& client : rest)
      for (int i = 0; i < times; ++i) {
        echo_once(*client);
        read_once(*client);
      }
    return ends();
  };
  const Ends used = use(1);
  if (is_first) {
    row.used = used;
    row.used_often = use(100);
  }
  row.echo_ratio.push_back(rate_of(first, settings.seconds, echo_once) / echoes);
  row.read_ratio.push_back(rate_of(first, settings.seconds, read_once) / reads);
  start = Clock::now();
  rest.clear();
  row.down.push_back(seconds_since(start));
  settle(server, there);
  std::fprintf(stderr, "%s: up %.2f s, down %.2f s; alone %.0f echoes/s, %.0f reads/s; among them x %.3f, x %.3f\n",
               row.driver, row.up.back(), row.down.back(), echoes, reads, row.echo_ratio.back(), row.read_ratio.back());
}

Row measure(Settings settings) {
  Server server(settings);
  settings.port = server.port();
  const Clients clients(settings);
  const Client first = clients.connect();
  echo_once(*first);
  read_once(*first);
  Row row;
  row.driver = settings.has_handler ? "a thread of the library" : "the caller";
  for (unsigned round = 0; round < settings.rounds; ++round) measure_round(settings, server, clients, *first, row);
  const auto start = Clock::now();
  for (unsigned i = 0; i < settings.cycles; ++i) (void)clients.connect();
  row.cycle_ms = seconds_since(start) * 1e3 / std::max(settings.cycles, 1U);
  return row;
}

void print(const Settings& settings, const std::vector<Row>& rows) {
  std::printf(
      "| clients driven by | descriptors, client, listener | KiB connected | KiB used once | KiB used 100 times |"
      " KiB of page tables | threads more | s to connect %u | s to close | echoes, 1 of %u to 1 of 1 |"
      " reads, the same | ms for a connect and close |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
      "| *better* | lower | lower | lower | lower | lower | lower | lower | lower | higher | higher | lower |\n",
      settings.connections, settings.connections);
  for (const Row& row : rows) {
    const auto pair = [](const char* format, double client, double listener) { std::printf(format, client, listener); };
    std::printf("| %s ", row.driver);
    pair("| %.2f, %.2f ", row.used.client.descriptors, row.used.listener.descriptors);
    pair("| %.0f, %.0f ", row.connected.client.kib, row.connected.listener.kib);
    pair("| %.0f, %.0f ", row.used.client.kib, row.used.listener.kib);
    pair("| %.0f, %.0f ", row.used_often.client.kib, row.used_often.listener.kib);
    pair("| %.0f, %.0f ", row.used.client.tables_kib, row.used.listener.tables_kib);
    std::printf("| %ld, %ld | %.2f | %.2f | %.2f | %.2f | %.2f |\n", row.used.client.threads, row.used.listener.threads,
                median(row.up), median(row.down), median(row.echo_ratio), median(row.read_ratio), row.cycle_ms);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bool is_listener = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    const auto number = [value] { return static_cast<unsigned>(std::strtoul(value, nullptr, 10)); };
    const bool has_value = word == "--connections" || word == "--cycles" || word == "--rounds" || word == "--seconds";
    if (word == "--connections") settings.connections = std::max(2U, number());
    if (word == "--cycles") settings.cycles = number();
    if (word == "--rounds") settings.rounds = std::max(1U, number());
    if (word == "--seconds") settings.seconds = std::strtod(value, nullptr);
    if (word == "--socket") settings.is_socket = true;
    if (word == "--listen") is_listener = true;
    if (has_value) {
      ++i;
    } else if (word != "--socket" && word != "--listen") {
      give_up("usage", "connections [--connections N] [--cycles N] [--rounds N] [--seconds S] [--socket]");
    }
  }
  const rlimit files{4096, 4096};
  if (setrlimit(RLIMIT_NOFILE, &files) != 0) give_up("setrlimit", std::strerror(errno));
  if (is_listener) return listen(settings);
  std::vector<Row> rows;
  for (const bool has_handler : {false, true}) {
    settings.has_handler = has_handler;
    rows.push_back(measure(settings));
  }
  print(settings, rows);
  return 0;
}
