#include "other_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace verbena::nic::soft {
namespace {

void bark(int) {
  constexpr char kText[] = "watchdog: the test hangs\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  ::_exit(99);
}

}  // namespace

std::chrono::seconds long_run() noexcept {
  const char* const text = std::getenv("VERBENA_FLIP_SECONDS");
  return std::chrono::seconds(text != nullptr ? std::strtoul(text, nullptr, 10) : 0);
}

void start_watchdog(unsigned seconds) noexcept {
  ::signal(SIGALRM, &bark);
  ::alarm(seconds + static_cast<unsigned>(long_run().count()));
}

// --- OtherProcess -----------------------------------------------------------------------------------------------

OtherProcess::OtherProcess(OtherProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), socket_(std::move(other.socket_)) {}

OtherProcess& OtherProcess::operator=(OtherProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(socket_, other.socket_);
  return *this;
}

OtherProcess::~OtherProcess() {
  if (pid_ <= 0) return;
  kill();
  while (pid_ > 0 && wait() >= 0) {}
}

OtherProcess OtherProcess::start(std::string_view role, std::uint64_t argument) {
  OtherProcess other;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return other;
  Fd theirs(ends[1]);
  other.socket_ = Fd(ends[0]);
  // A side that says nothing ends the test, not the machine's patience.
  const timeval patience{20 + long_run().count(), 0};
  for (const int end : ends) ::setsockopt(end, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  constexpr int kSocket = 100;  // Where the other process finds it.
  const std::string role_text(role);
  const std::string argument_text = std::to_string(argument);
  const std::string socket_text = std::to_string(kSocket);
  ::setenv("LD_BIND_NOW", "1", 1);  // A phase that is single-stepped holds no symbol lookups.
  const pid_t pid = ::fork();
  if (pid == 0) {
    // Only calls that are safe in the child of a process with threads.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(theirs.get(), kSocket);
    ::execl("/proc/self/exe", "test", "--other", role_text.c_str(), argument_text.c_str(), socket_text.c_str(),
            nullptr);
    ::_exit(98);
  }
  other.pid_ = pid;
  return other;
}

void OtherProcess::kill() const noexcept {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

int OtherProcess::wait() noexcept {
  int status = -1;
  if (pid_ <= 0) return -1;
  while (::waitpid(pid_, &status, __WALL) < 0) {
    if (errno == EINTR) continue;
    pid_ = -1;
    return -1;
  }
  if (WIFEXITED(status) || WIFSIGNALED(status)) pid_ = -1;
  return status;
}

// --- talking ----------------------------------------------------------------------------------------------------

bool put_bytes(int socket, std::span<const std::byte> bytes) noexcept {
  return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

bool get_bytes(int socket, std::span<std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

// --- sides ------------------------------------------------------------------------------------------------------

Result<void> make_side(conformance::Side& side, Nic& nic, const conformance::SideOptions& options) {
  side.options = options;
  side.nic = &nic;
  VERBENA_ASSIGN(
      side.arena,
      host::Arena::create(
          {.size_bytes = options.arena_bytes, .share = host::Share::kReadWrite, .prefault_threads = 1, .name = "two"}));
  VERBENA_ASSIGN(side.memory_id, nic.attach(side.arena, {.to = Grant::To::kAnyPeer}));
  side.attached = true;
  VERBENA_ASSIGN(ibv_pd * pd, nic.alloc_pd());
  side.pd = Pd(nic, pd);
  VERBENA_ASSIGN(ibv_mr * mr,
                 nic.reg_mr(pd, side.arena.data(), side.arena.size(), side.address(0), options.region_access));
  side.mr = Mr(nic, mr);
  VERBENA_ASSIGN(ibv_comp_channel * channel, nic.create_channel());
  side.channel = Channel(nic, channel);
  VERBENA_ASSIGN(ibv_cq * send_cq, nic.create_cq(options.cqe, channel));
  side.send_cq = Cq(nic, send_cq);
  VERBENA_ASSIGN(ibv_cq * recv_cq, nic.create_cq(options.cqe, channel));
  side.recv_cq = Cq(nic, recv_cq);
  side.qp_options = {.send_cq = send_cq,
                     .recv_cq = recv_cq,
                     .max_send_wr = options.send_depth,
                     .max_recv_wr = options.recv_depth,
                     .max_send_sge = options.max_sge,
                     .max_recv_sge = options.max_sge,
                     .max_inline = options.max_inline,
                     .signal_all = options.signal_all};
  VERBENA_ASSIGN(ibv_qp * qp, nic.create_qp(pd, side.qp_options));
  side.qp = Qp(nic, qp);
  return conformance::to_init(nic, qp, options);
}

Introduction introduce(const conformance::Side& side) {
  return {side.nic->address_of(side.qp.get()), side.nic->window_of(side.mr.get())};
}

Result<void> connect_side(conformance::Side& side, const QpAddress& peer) {
  VERBENA_TRY(conformance::to_rtr(*side.nic, side.qp.get(), peer, 0, side.options));
  return conformance::to_rts(*side.nic, side.qp.get(), side.options);
}

}  // namespace verbena::nic::soft

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "--other") == 0) {
    verbena::nic::soft::start_watchdog(120);
    // _exit: what the parent left of this process is not worth a leak report.
    ::_exit(verbena::nic::soft::run_other(argv[2], std::strtoull(argv[3], nullptr, 10), std::atoi(argv[4])));
  }
  testing::InitGoogleTest(&argc, argv);
  verbena::nic::soft::start_watchdog(280);
  return RUN_ALL_TESTS();
}
