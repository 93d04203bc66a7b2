#include "system_calls.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <thread>

namespace verbena::test {
namespace {

constinit std::atomic<int> listener{-1};
constinit std::atomic<bool> is_noting{false};
constinit std::array<SystemCall, SystemCallSection::kMost> noted{};
constinit std::atomic<std::size_t> noted_count{0};

/// A newer kernel writes more than this header knows of.
template <class T>
union Roomy {
  T value;
  std::array<std::byte, 1024> room;
};

void note(const seccomp_notif& call) noexcept {
  const std::size_t at = noted_count.load(std::memory_order_relaxed);
  if (at < noted.size()) noted[at] = {.number = call.data.nr, .thread = static_cast<pid_t>(call.pid)};
  // Release: whoever reads the count sees the call.
  noted_count.store(at + 1, std::memory_order_release);
}

/// Answers until the process ends. It was started before the filter, and is outside of it.
void supervise() noexcept {
  while (listener.load(std::memory_order_acquire) < 0) std::this_thread::yield();
  for (;;) {
    Roomy<seccomp_notif> told;
    std::memset(&told, 0, sizeof told);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &told) != 0) {
      if (errno == EINTR || errno == ENOENT) continue;  // The caller is gone.
      return;
    }
    if (is_noting.load(std::memory_order_acquire)) note(told.value);
    Roomy<seccomp_notif_resp> answer;
    std::memset(&answer, 0, sizeof answer);
    answer.value.id = told.value.id;
    answer.value.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const SystemCall& call) {
  return out << "system call " << call.number << " of thread " << call.thread;
}

std::string watch_system_calls() {
  // Asked for before a thread waits for the answer.
  const std::uint32_t action = SECCOMP_RET_USER_NOTIF;
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0)
    return std::string("the kernel cannot report system calls (seccomp, user notification): ") + std::strerror(errno);
  std::thread(supervise).detach();
  std::array<sock_filter, 1> code{sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)};
  const sock_fprog program{.len = static_cast<unsigned short>(code.size()), .filter = code.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return std::string("no_new_privs: ") + std::strerror(errno);
  const auto fd =
      static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
  // The supervisor waits for ever then, without harm.
  if (fd < 0) return std::string("a seccomp filter that reports is refused: ") + std::strerror(errno);
  listener.store(fd, std::memory_order_release);
  return {};
}

void SystemCallSection::begin() noexcept {
  noted_count.store(0, std::memory_order_relaxed);
  is_noting.store(true, std::memory_order_release);
}

void SystemCallSection::end() noexcept { is_noting.store(false, std::memory_order_release); }

std::size_t SystemCallSection::count() noexcept { return noted_count.load(std::memory_order_acquire); }

std::vector<SystemCall> SystemCallSection::calls() {
  const std::size_t there = std::min(count(), noted.size());
  return {noted.begin(), noted.begin() + static_cast<std::ptrdiff_t>(there)};
}

}  // namespace verbena::test
