// The other end of verbena-perf: a server of one client after the other, and the one that --local starts.
#include "programs/perf.hpp"
#include "programs/perf_end.hpp"
#include "programs/values.hpp"

#include "base/error.hpp"

#include <fmt/core.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <vector>

namespace verbena::programs {
namespace {

constexpr std::chrono::seconds kStartTimeout{20};
constexpr std::chrono::seconds kEndTimeout{2};

/// One client. False: it was none, and was sent away.
Result<bool> serve_client(PerfDevice& device, link::Incoming& control, link::Listener& listener,
                          const PerfWhere& where) {
  const auto data = message::Channel::user_data_of(control.remote());
  const auto run = data ? perf_wire::decode_run(*data) : std::unexpected(Status::kProtocol);
  if (!run) {
    control.reject(Status::kProtocol, "this is a verbena-perf server, and that is no hello of its version");
    complain("sent a client away whose hello makes no sense");
    return false;
  }
  auto end = PerfEnd::create(device, *run, PerfRole::kServer, std::chrono::milliseconds{where.timeout_ms});
  if (!end) {
    control.reject(end.error().status(), end.error().text());
    return std::unexpected(end.error());
  }
  if (const auto welcomed = (*end)->welcome(control, listener); !welcomed) {
    control.reject(welcomed.error().status(), welcomed.error().text());
    return std::unexpected(welcomed.error());
  }
  VERBENA_TRY((*end)->serve(perf_cpus(where.cpu, run->threads)));
  return true;
}

/// For ever, or until so many clients were served. Runs that broke do not count: who breaks one does not end the
/// server.
Result<void> serve_clients(PerfDevice& device, link::Listener& listener, const PerfServeArguments& arguments) {
  for (std::uint32_t served = 0; arguments.clients == 0 || served < arguments.clients;) {
    // For ever: a server waits for whoever comes.
    VERBENA_ASSIGN(link::Incoming control, listener.next(Deadline::never()));
    const auto outcome = serve_client(device, control, listener, arguments.where);
    served += outcome && *outcome ? 1 : 0;
    if (outcome) continue;
    // What one client asks for may be too much; a device that failed is what the next one needs as well.
    if (outcome.error().status() == Status::kDevice) return std::unexpected(outcome.error());
    complain("{}: {}", to_string(outcome.error().status()), outcome.error().text());
  }
  return {};
}

Result<void> serve(const PerfServeArguments& arguments) {
  const PerfWhere& where = arguments.where;
  const link::FabricOptions options{
      .transport = where.transport, .role = link::Role::kServer, .address = where.address, .port = where.port};
  VERBENA_ASSIGN(PerfDevice device,
                 PerfDevice::open(options, Deadline::after(std::chrono::milliseconds{where.timeout_ms})));
  VERBENA_ASSIGN(const auto listener, device.fabric->listen({.port = where.port}));
  fmt::print("verbena-perf: serving on {}\nverbena-perf: {}\n", endpoint(device.fabric->address(), listener->port()),
             device.path());
  std::fflush(stdout);
  return serve_clients(device, *listener, arguments);
}

/// In the child: becomes the server. Nothing here allocates: the arguments were made before the fork.
[[noreturn]] void become_server(char* const* argv, int out) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(out, STDOUT_FILENO);
  ::execv("/proc/self/exe", argv);
  ::_exit(126);
}

enum class ReadTo : std::uint8_t { kLineBreak, kEnd };

/// Reads up to a line break or the end. False: the deadline passed before.
bool read_up_to(ReadTo to, int fd, std::string& line, Deadline deadline) {
  std::array<char, 256> part;
  while (to == ReadTo::kEnd || line.find('\n') == std::string::npos) {
    // What goes on writing does not put it off either.
    if (deadline.passed()) return false;
    pollfd readable{fd, POLLIN, 0};
    const int ready = ::poll(&readable, 1, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t got = ::read(fd, part.data(), part.size());
    if (got <= 0) return true;
    line.append(part.data(), static_cast<std::size_t>(got));
  }
  return true;
}

}  // namespace

Exit run_perf_server(const PerfServeArguments& arguments) {
  const auto served = serve(arguments);
  if (served) return Exit::kDone;
  complain("{}: {}", to_string(served.error().status()), served.error().text());
  return Exit::kError;
}

Result<PerfLocalServer> PerfLocalServer::start(const PerfServeArguments& arguments) {
  const PerfWhere& where = arguments.where;
  std::vector<std::string> words{"verbena-perf", "server", "--clients",    std::to_string(arguments.clients),
                                 "-p",           "0",      "--timeout-ms", std::to_string(where.timeout_ms)};
  const Transport& transport = where.transport;
  if (!where.address.empty()) words.insert(words.end(), {"-a", where.address});
  if (!transport.device.empty()) words.insert(words.end(), {"-d", transport.device});
  if (transport.bootstrap == Bootstrap::kSocket) words.emplace_back("-S");
  if (transport.gid_index) words.insert(words.end(), {"--gid-index", std::to_string(*transport.gid_index)});
  if (where.cpu) words.insert(words.end(), {"--cpu", std::to_string(*where.cpu)});
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::array<int, 2> out{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0) return fail_system("pipe2", errno, "starting a server");
  const pid_t pid = ::fork();
  const int cause = errno;
  if (pid == 0) become_server(argv.data(), out[1]);
  ::close(out[1]);
  PerfLocalServer server(pid, out[0]);
  if (pid < 0) return fail_system("fork", cause, "starting a server");
  std::string line;
  const bool in_time = read_up_to(ReadTo::kLineBreak, out[0], line, Deadline::after(kStartTimeout));
  line.resize(std::min(line.size(), line.find('\n')));
  const char* digits = line.data() + line.rfind(':') + 1;
  if (std::from_chars(digits, line.data() + line.size(), server.port_).ec != std::errc{} || server.port_ == 0)
    return fail(in_time ? Status::kPeerLost : Status::kTimedOut, "verbena-perf", 0,
                "the server that --local starts did not get ready; its own message says why");
  return server;
}

PerfLocalServer::PerfLocalServer(PerfLocalServer&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), out_(std::exchange(other.out_, -1)), port_(other.port_) {}

PerfLocalServer::~PerfLocalServer() {
  if (pid_ > 0) {
    // Its end closes the pipe; there may be lines in front of that.
    std::string rest;
    if (!read_up_to(ReadTo::kEnd, out_, rest, Deadline::after(kEndTimeout))) ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
}

}  // namespace verbena::programs
