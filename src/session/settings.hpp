// Settings of a session, and the events that it reports.
#pragma once

#include <verbena/error.hpp>
#include <verbena/rdma_types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::session {

class Session;

struct Settings {
  std::chrono::milliseconds connect_timeout{5000};  ///< Deadline of connecting. 1 ms to 12 days.
  std::chrono::milliseconds timeout{5000};          ///< Default deadline of each call. 1 ms to 12 days.
  unsigned max_connections = 64;                    ///< Listeners only. 1 to 65536.
  std::span<std::byte> window{};  ///< The user's own memory as default window; empty: allocated. A multiple of 64 B.
  std::size_t window_bytes = std::size_t{1} << 20;        ///< Bytes to allocate for it; 0: none. At most 64 GiB.
  bool is_window_shared = false;                          ///< Listeners only: one allocated window for all sessions.
  std::size_t inbox_bytes = std::size_t{1} << 20;         ///< 64 KiB to 1 GiB.
  std::size_t max_message_bytes = std::size_t{64} << 20;  ///< Longest message that Events::on_message gets.
};
/// Rounds window_bytes up to 64 B. Errors: kBadArgument, naming the option, its value and its range.
[[nodiscard]] Result<Settings> checked(Settings settings);

/// Where messages and completions go. Aligned, so that it is one atomic word.
struct alignas(4) Delivery {
  rdma::Receive receive = rdma::Receive::kQueue;
  rdma::Complete reads = rdma::Complete::kQueue;
  rdma::Complete writes = rdma::Complete::kQueue;  ///< Atomics too.
};

/// Callbacks of a session. The thread that drives it calls them between polls. They may call any function of any
/// session, and may wait.
class Events {
 public:
  /// Listeners: a client has connected, and nothing from it was received yet. Call Session::set_delivery and keep here.
  virtual void on_accept(Session&) noexcept {}
  /// The connection is up. Listeners: called after on_accept, unless that ended it.
  virtual void on_connect(Session&) noexcept {}
  /// A message arrived; its bytes are valid until this returns. Called with Receive::kHandler only.
  virtual void on_message(Session&, const rdma::Message&) noexcept {}
  /// A started operation is complete. Called with Complete::kHandler only.
  virtual void on_complete(Session&, const rdma::Completion&) noexcept {}
  /// The session is dead. Called once, unless this side closed it.
  virtual void on_disconnect(Session&, Status /*reason*/) noexcept {}
  /// A session that nobody keeps is about to be destroyed.
  virtual void on_gone(Session&) noexcept {}

 protected:
  ~Events() = default;
};

}  // namespace verbena::session
