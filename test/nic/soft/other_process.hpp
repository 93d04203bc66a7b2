// The other process of a test: this executable again, with a socket to its parent.
//
// Re-executed, not merely forked: the parent has a NIC, whose control thread a fork would not copy.
#pragma once

#include "../conformance/fixture.hpp"

#include "base/error.hpp"
#include "nic/soft/system.hpp"

#include <sys/types.h>

#include <chrono>
#include <span>
#include <string>
#include <string_view>

namespace verbena::nic::soft {

/// What each side tells the other to connect.
struct Introduction {
  QpAddress address;
  Window window;
};

/// The other process, seen from the parent. Killed and reaped with its owner.
class OtherProcess {
 public:
  OtherProcess() noexcept = default;
  OtherProcess(OtherProcess&& other) noexcept;
  OtherProcess& operator=(OtherProcess&& other) noexcept;
  ~OtherProcess();
  /// Starts `/proc/self/exe --other role argument fd`. Not running on failure.
  [[nodiscard]] static OtherProcess start(std::string_view role, std::uint64_t argument);
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  explicit operator bool() const noexcept { return pid_ > 0; }
  void kill() const noexcept;
  /// Waits for a stop or the end, as waitpid; the end is the last one. -1 when there is nothing to wait for.
  [[nodiscard]] int wait() noexcept;

 private:
  pid_t pid_ = -1;
  Fd socket_;
};

/// Whole values over the socket between the two; false when the other end is gone or says nothing for 20 s.
[[nodiscard]] bool put_bytes(int socket, std::span<const std::byte> bytes) noexcept;
[[nodiscard]] bool get_bytes(int socket, std::span<std::byte> bytes) noexcept;
template <class T>
[[nodiscard]] bool put(int socket, const T& value) noexcept {
  return put_bytes(socket, std::as_bytes(std::span(&value, 1)));
}
template <class T>
[[nodiscard]] bool get(int socket, T& value) noexcept {
  return get_bytes(socket, std::as_writable_bytes(std::span(&value, 1)));
}

/// Ends the process with a message when it runs longer than any machine needs. In the other process too.
void start_watchdog(unsigned seconds) noexcept;
/// VERBENA_FLIP_SECONDS: how long a test goes on that is asked to; 0: no test is.
[[nodiscard]] std::chrono::seconds long_run() noexcept;

/// Everything of a side up to a QP in INIT.
[[nodiscard]] Result<void> make_side(conformance::Side& side, Nic& nic, const conformance::SideOptions& options);
[[nodiscard]] Introduction introduce(const conformance::Side& side);
/// INIT to RTS.
[[nodiscard]] Result<void> connect_side(conformance::Side& side, const QpAddress& peer);

/// What the suite's other processes do; the exit code. Defined by each suite.
int run_other(std::string_view role, std::uint64_t argument, int socket);

}  // namespace verbena::nic::soft
