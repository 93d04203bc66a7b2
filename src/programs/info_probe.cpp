// Tries on this process and on a child which of the needed system calls work.
#include "base/fd.hpp"
#include "host/physical.hpp"
#include "nic/nic.hpp"
#include "programs/info.hpp"

#include <verbena/deadline.hpp>

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace verbena::programs {
namespace {

/// Far more than a fork takes on a busy machine; a slower child is killed.
constexpr std::chrono::seconds kPatience{5};

/// At the same address in the child and its parent.
constexpr std::uint64_t kProbeWord = 0x7665'7262'656e'6121;

std::string why(int error) {
  const char* text = ::strerrordesc_np(error);
  return text != nullptr ? text : fmt::format("errno {}", error);
}

Probe outcome(const char* name, bool works, int error, const char* purpose) {
  return {.name = name, .works = works, .detail = works ? purpose : fmt::format("{} ({})", why(error), purpose)};
}

/// Reads kProbeWord in process `pid`, a fork of this one or its parent. Returns 0 or the errno.
int read_word(pid_t pid) noexcept {
  std::uint64_t copy = 0;
  const iovec local{.iov_base = &copy, .iov_len = sizeof copy};
  const iovec remote{.iov_base = const_cast<std::uint64_t*>(&kProbeWord), .iov_len = sizeof copy};
  const ssize_t got = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (got < 0) return errno;
  return got == sizeof copy && copy == kProbeWord ? 0 : EIO;
}

/// Runs in the child: reads its parent, reports the result, and stays until it is killed, so that it can be read.
[[noreturn]] void be_read(pid_t parent, int out) noexcept {
  const int error = read_word(parent);
  const bool told = ::write(out, &error, sizeof error) == sizeof error;
  // The death of the parent ends this too: the pipe then has no reader.
  pollfd gone{.fd = out, .events = 0, .revents = 0};
  if (told) (void)::poll(&gone, 1, Deadline::after(kPatience).left_ms());
  ::_exit(0);
}

/// Yama at scope 1 allows a process to read its child; a child that reads its parent counts as any process of the same
/// user.
void probe_reads(Permissions& permissions) {
  constexpr const char* kPurpose = "not needed: arenas are mapped";
  int child_error = ECHILD, peer_error = ECHILD;
  int ends[2] = {-1, -1};
  const bool has_pipe = ::pipe2(ends, O_CLOEXEC) == 0;
  Fd in(ends[0]);
  const Fd out(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t child = has_pipe ? ::fork() : -1;
  if (child == 0) {
    in.reset();
    be_read(parent, out.get());
  }
  if (child < 0) {
    child_error = peer_error = errno;
  } else {
    const bool is_told = wait_readable(in.get(), Deadline::after(kPatience));
    if (!is_told || ::read(in.get(), &peer_error, sizeof peer_error) != sizeof peer_error) peer_error = ETIMEDOUT;
    child_error = read_word(child);
    ::kill(child, SIGKILL);
    // It is dead, so this waits for nothing that it does.
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {}
  }
  permissions.read_child = outcome("process_vm_readv of a child", child_error == 0, child_error, kPurpose);
  permissions.read_peer = outcome("process_vm_readv of a peer", peer_error == 0, peer_error, kPurpose);
}

Probe probe_membarrier() {
  const auto call = [](int command) { return ::syscall(SYS_membarrier, command, 0, 0) == 0; };
  // As in the soft NIC: it marks only this process.
  const bool works = call(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) && call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return outcome("membarrier", works, errno, "the soft NIC needs it");
}

Probe probe_sealed_memfd() {
  const Fd fd(::memfd_create("verbena-info", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool works = fd && ::ftruncate(fd.get(), ::sysconf(_SC_PAGESIZE)) == 0 &&
                     ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0;
  return outcome("sealed memfd", works, errno, "keeps a peer from writing what it may only read");
}

/// Gets one as the soft NIC does: from a socket's other end, before Linux 6.5 by its pid.
Probe probe_pidfd() {
  int ends[2] = {-1, -1}, fd = -1;
  socklen_t length = sizeof fd;
  const bool have_ends = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
  const Fd one(ends[0]), other(ends[1]);
  if (!have_ends || ::getsockopt(one.get(), SOL_SOCKET, SO_PEERPIDFD, &fd, &length) != 0) {
    fd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  }
  const Fd pidfd(fd);
  return outcome("pidfd", static_cast<bool>(pidfd), errno, "shows at once when a peer dies");
}

Probe probe_frames() {
  constexpr const char* kName = "page frame numbers";
  constexpr const char* kPurpose = "not needed: for physical addressing only";
  const auto map = host::PageMap::open();
  if (!map) return outcome(kName, false, map.error().system_errno(), kPurpose);
  // Memory that certainly exists: this stack frame.
  const auto address = map->address_of(&map);
  if (address || address.error().system_errno() != 0)
    return outcome(kName, address.has_value(), address ? 0 : address.error().system_errno(), kPurpose);
  return {.name = kName, .works = false, .detail = fmt::format("hidden without CAP_SYS_ADMIN ({})", kPurpose)};
}

Probe probe_soft_nic() {
  const auto nic = nic::open_soft({});
  return {.name = "soft NIC",
          .works = nic.has_value(),
          .detail = nic ? "opened and closed again" : std::string(nic.error().text())};
}

}  // namespace

Permissions probe_permissions(const SystemFiles& files) {
  Permissions permissions;
  permissions.ptrace_scope = files.number("proc/sys/kernel/yama/ptrace_scope");
  // First, because the soft NIC starts a thread, and a fork copies only the forking one.
  probe_reads(permissions);
  permissions.membarrier = probe_membarrier();
  permissions.sealed_memfd = probe_sealed_memfd();
  permissions.pidfd = probe_pidfd();
  permissions.frames = probe_frames();
  permissions.soft_nic = probe_soft_nic();
  return permissions;
}

}  // namespace verbena::programs
