// Connections: what two sides tell each other, the bootstraps that carry it, and bringing a QP to RTS.
#pragma once

#include "nic/nic.hpp"

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace verbena::link {

inline constexpr std::uint16_t kProtocolVersion = 1;
/// Bytes of a user's own data that a handshake carries each way.
inline constexpr std::size_t kMaxPrivateBytes = 512;
/// The same in CM mode, on either NIC: the client's and the server's.
inline constexpr std::size_t kMaxCmRequestBytes = 40;
inline constexpr std::size_t kMaxCmAnswerBytes = 180;

/// Everything that one side tells the other about its end. The private data is whatever the layer above needs
/// (windows, limits) in its own encoding.
struct Endpoint {
  nic::Kind nic = nic::Kind::kSoft;
  nic::QpAddress qp;
  std::uint32_t recv_depth = 0;  ///< Receives the QP can hold.
  std::uint64_t generation = 0;  ///< Random, new for each connection.
  std::array<std::byte, kMaxPrivateBytes> private_data{};
  std::uint16_t private_bytes = 0;

  [[nodiscard]] std::span<const std::byte> user_data() const noexcept { return {private_data.data(), private_bytes}; }
  /// kTooLong past kMaxPrivateBytes.
  [[nodiscard]] Status set_user_data(std::span<const std::byte> data) noexcept;
};

/// The endpoint of a QP of this process, with a random psn and generation.
[[nodiscard]] Endpoint describe(const nic::Nic& nic, const ibv_qp* qp, std::uint32_t recv_depth);

/// What knows the path to the peer better than the two endpoints do: RDMA CM, which has asked the subnet for it.
class Route {
 public:
  /// Attributes for going to `attr.qp_state` (INIT, RTR, RTS), and which of them are set. Errors: kDevice, kPeerLost.
  [[nodiscard]] virtual Result<int> attributes(ibv_qp_attr& attr) const = 0;

 protected:
  ~Route() = default;
};

/// Options of bring_up. Defaults are near what perftest and UCX use on RoCE.
struct BringUp {
  int access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;  ///< qp_access_flags
  std::uint8_t min_rnr_timer = 12;                                                           ///< 0.64 ms
  std::uint8_t rnr_retry = 7;    ///< 7 is for ever; the layers above have deadlines
  std::uint8_t retry_count = 6;  ///< 0 to 7; but 7 is for ever on Soft-RoCE, and a dead peer would never be noticed
  std::uint8_t timeout = 14;     ///< 4.096 us * 2^14 = 67 ms
  /// 0: the port and GID that the NIC was opened with, which are what the peer was told. Anything else is taken as it
  /// is, with `gid_index` as the row of that port's GID table.
  std::uint8_t port = 0;
  std::uint8_t gid_index = 0;
  /// Where the path's attributes come from instead; lives until bring_up has returned. What is said above of access,
  /// timers and retries holds all the same.
  const Route* route = nullptr;
};
/// Checks that both sides fit (kind of NIC and of network: kRejected with the text), then takes the QP from RESET
/// through INIT and RTR to RTS. READ depth is the smaller of both sides. Errors: those of Nic::modify_qp.
[[nodiscard]] Result<void> bring_up(nic::Nic& nic, ibv_qp* qp, const Endpoint& local, const Endpoint& remote,
                                    const BringUp& options, Deadline deadline);

// --- CM and socket bootstrap -------------------------------------------------------------------------------------
//
// client: HELLO (its endpoint)        ->
//                                     <-  HELLO (server's endpoint), or REJECT (status, text)
// both bring their QP up
// client: READY                       ->
//                                     <-  READY
// Over a socket these are frames: fixed-endian with a fixed maximum, every field is checked, and each step has a
// deadline. A READY that does not come ends the attempt; nothing of it is left. Then the socket closes, or stays open
// and silent, so that each end hears when the other's process ends. Over RDMA CM
// HELLO rides in the private data of its request and reply, REJECT in that of its reject, and READY is its own
// ready-to-use, which the server does not answer.

/// What tells that the peer is gone while nothing is sent: RDMA CM's connection, or the socket, which the peer's kernel
/// closes when the process ends. Empty on the software NIC, which hears of it by itself. Destroying it tells the peer.
/// Move-only.
class Lifeline {
 public:
  class Watched {
   public:
    virtual ~Watched() = default;
    virtual void watch(nic::Nic& nic, const ibv_qp* qp) noexcept = 0;
  };
  Lifeline() noexcept = default;
  explicit Lifeline(std::unique_ptr<Watched> watched) noexcept : watched_(std::move(watched)) {}
  /// From now on the QP goes to error with kPeerLost when the peer leaves. The QP outlives this object. \thread setup
  void watch(nic::Nic& nic, const ibv_qp* qp) noexcept {
    if (watched_) watched_->watch(nic, qp);
  }

 private:
  std::unique_ptr<Watched> watched_;
};

class SocketWatcher;

/// One side's end of a handshake, over whatever carries it. Destroyed before its end: the peer is told, as kPeerLost.
class Handshake {
 public:
  virtual ~Handshake() = default;
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;
  /// How to bring the QP up; good until `finish`.
  [[nodiscard]] virtual BringUp how() const noexcept { return {}; }
  /// Server only. Sends REJECT and ends.
  virtual void reject(Status status, std::string_view text) noexcept = 0;
  /// Server only. Sends HELLO.
  [[nodiscard]] virtual Result<void> answer(const Endpoint& local, Deadline deadline) = 0;
  [[nodiscard]] virtual Result<Lifeline> finish(Deadline deadline) = 0;

 protected:
  Handshake() = default;
};

/// A client's attempt: made by `dial`, finished by `finish`. Move-only; closing it early tells the peer.
class Dialed {
 public:
  Dialed(std::unique_ptr<Handshake> handshake, const Endpoint& remote) noexcept
      : handshake_(std::move(handshake)), remote_(remote) {}
  [[nodiscard]] const Endpoint& remote() const noexcept { return remote_; }
  /// Options for bring_up: the QP takes the way that the bootstrap found. Good until `finish`.
  [[nodiscard]] BringUp how() const noexcept { return handshake_ ? handshake_->how() : BringUp{}; }
  /// After the QP is in RTS: sends READY, waits for the server's. Then both sides may post.
  [[nodiscard]] Result<Lifeline> finish(Deadline deadline);

 private:
  std::unique_ptr<Handshake> handshake_;
  Endpoint remote_;
};
/// Over a socket: resolves, connects, sends HELLO, reads the answer. Errors: kNotFound (name does not resolve),
/// kConnectionRefused, kRejected / kNotAllowed / ... as the server sent it with its text, kProtocol, kTimedOut,
/// kPeerLost, kBadArgument.
/// Numeric addresses are taken as they are. A name goes through getaddrinfo, which knows no deadline: a resolver that
/// does not answer can hold the call for as long as resolv.conf says (10 s with the system's defaults).
/// With a `watcher`, which both ends have or neither, the socket becomes the connection's lifeline.
[[nodiscard]] Result<Dialed> dial(const std::string& host, std::uint16_t port, const Endpoint& local, Deadline deadline,
                                  SocketWatcher* watcher = nullptr);

/// A client that has said HELLO to a listener and waits for the answer. Destroyed without one, it closes, which the
/// client sees as kPeerLost. Move-only.
class Incoming {
 public:
  Incoming() noexcept = default;
  Incoming(std::unique_ptr<Handshake> handshake, const Endpoint& remote) noexcept
      : handshake_(std::move(handshake)), remote_(remote) {}
  [[nodiscard]] const Endpoint& remote() const noexcept { return remote_; }
  /// As Dialed::how.
  [[nodiscard]] BringUp how() const noexcept { return handshake_ ? handshake_->how() : BringUp{}; }
  /// Sends REJECT with a status and a text (at most 200 bytes of it, 140 over RDMA CM), and closes.
  void reject(Status status, std::string_view text) noexcept;
  /// Sends the server's HELLO; brings nothing up. Call after bring_up, so that the peer's QP finds ours.
  [[nodiscard]] Result<void> answer(const Endpoint& local, Deadline deadline);
  /// Waits for the client's READY and sends ours.
  [[nodiscard]] Result<Lifeline> finish(Deadline deadline);

 private:
  std::unique_ptr<Handshake> handshake_;
  Endpoint remote_;
};

struct ListenerOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;
  unsigned max_pending = 64;  ///< Sockets that have not finished HELLO; one more evicts the oldest.
  std::chrono::milliseconds hello_timeout{2000};
  std::size_t max_request_bytes = kMaxPrivateBytes;  ///< Of a client's user data; one with more is rejected.
  std::size_t max_answer_bytes = kMaxPrivateBytes;   ///< Of the server's: kTooLong by Incoming::answer.
  SocketWatcher* watcher = nullptr;                  ///< As of `dial`; outlives the connections.
};
/// Accepts sockets and reads their HELLO without blocking on any single one: a silent, slow or endless peer costs one
/// bounded slot for a bounded time.
class Listener {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Listener>> open(const ListenerOptions& options);
  virtual ~Listener() = default;
  [[nodiscard]] virtual std::uint16_t port() const noexcept = 0;
  /// The next complete HELLO. kTimedOut when none came; kClosed after `close`. \thread owner
  [[nodiscard]] virtual Result<Incoming> next(Deadline deadline) = 0;
  /// Makes `next` return kClosed, now and ever after; connecting is refused from here on. \thread any
  virtual void close() noexcept = 0;
  /// Sockets so far that were closed before a whole HELLO: garbage, silence, overflow, or the peer left. \thread any
  [[nodiscard]] virtual std::uint64_t dropped() const noexcept = 0;
};

// --- blob bootstrap -----------------------------------------------------------------------------------------------

/// Bytes of an exported endpoint; carry them by MPI, PMIx, etcd or a file.
inline constexpr std::size_t kBlobBytes = 640;
using Blob = std::array<std::byte, kBlobBytes>;
[[nodiscard]] Blob export_blob(const Endpoint& endpoint) noexcept;
/// kProtocol (naming what is wrong) for anything that export_blob of this version did not make.
[[nodiscard]] Result<Endpoint> import_blob(std::span<const std::byte> blob);

}  // namespace verbena::link
