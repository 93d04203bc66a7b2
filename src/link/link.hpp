// Connections: the data that both sides exchange, the bootstraps that carry it, and bringing a QP to RTS.
#pragma once

#include "nic/nic.hpp"

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace verbena::link {

inline constexpr std::uint16_t kProtocolVersion = 2;
/// Bytes of a user's own data that a handshake carries each way.
inline constexpr std::size_t kMaxPrivateBytes = 512;
/// The same in CM mode, on either NIC: for the client and for the server.
inline constexpr std::size_t kMaxCmRequestBytes = 40;
inline constexpr std::size_t kMaxCmAnswerBytes = 180;

/// Everything that one side tells the other about its end. The private data belongs to the layer above (windows,
/// limits), in its own encoding.
struct Endpoint {
  nic::Kind nic = nic::Kind::kSoft;
  nic::QpAddress qp;
  std::uint32_t recv_depth = 0;  ///< Receives the QP can hold.
  std::uint64_t generation = 0;  ///< Random, new for each connection.
  std::array<std::byte, kMaxPrivateBytes> private_data{};
  std::uint16_t private_bytes = 0;

  [[nodiscard]] std::span<const std::byte> user_data() const noexcept { return {private_data.data(), private_bytes}; }
  /// kTooLong if `data` exceeds kMaxPrivateBytes.
  [[nodiscard]] Status set_user_data(std::span<const std::byte> data) noexcept;
};

/// The endpoint of a QP of this process, with a random psn and generation.
[[nodiscard]] Endpoint describe(const nic::Nic& nic, const ibv_qp* qp, std::uint32_t recv_depth);

/// A path to the peer, known better than from the two endpoints: RDMA CM has asked the subnet for it.
class Route {
 public:
  /// Attributes for going to `attr.qp_state` (INIT, RTR, RTS), and which of them are set. Errors: kDevice, kPeerLost.
  [[nodiscard]] virtual Result<int> attributes(ibv_qp_attr& attr) const = 0;

 protected:
  ~Route() = default;
};

/// The time of a `timeout` attribute: after it a NIC repeats an unacknowledged request (ibv_modify_qp(3)). It may take
/// up to four times as long (IBTA 9.9.2.1.1).
[[nodiscard]] constexpr std::chrono::nanoseconds ack_timeout(std::uint8_t timeout) noexcept {
  return std::chrono::nanoseconds{std::int64_t{4096} << timeout};
}

/// Options of bring_up. Defaults are near what perftest and UCX use on RoCE.
struct BringUp {
  int access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;  ///< qp_access_flags
  std::uint8_t min_rnr_timer = 12;                                                           ///< 0.64 ms
  std::uint8_t rnr_retry = 7;    ///< 7 is for ever; the layers above have deadlines
  std::uint8_t retry_count = 6;  ///< 0 to 7; but 7 is for ever on Soft-RoCE, and a dead peer would never be noticed
  std::uint8_t timeout = 14;     ///< 4.096 us * 2^14 = 67 ms
  std::uint8_t traffic_class = 0;
  /// 0: the port and GID that the NIC was opened with, which are what the peer was told. Anything else is taken as it
  /// is, with `gid_index` as the row of that port's GID table.
  std::uint8_t port = 0;
  std::uint8_t gid_index = 0;
  /// Gives the path's attributes instead; must live until bring_up has returned. Access, timers and retries above still
  /// apply.
  const Route* route = nullptr;
};
/// kRejected if the peer's NIC is of another kind.
[[nodiscard]] Result<void> check_kind(const nic::Nic& nic, const Endpoint& remote);
/// Whether a QP of this side fits the peer's: kProtocol (numbers that no NIC has), kRejected (another kind of NIC or
/// network), with the text.
[[nodiscard]] Result<void> check_fit(const nic::Nic& nic, const Endpoint& local, const Endpoint& remote,
                                     const BringUp& options);
/// Takes the QP from RESET to INIT, where receives can be posted. Errors: those of Nic::modify_qp.
[[nodiscard]] Result<void> prepare(nic::Nic& nic, ibv_qp* qp, const BringUp& options, Deadline deadline);
/// Checks that both sides fit, as check_fit does, then takes the QP from RESET or INIT through RTR to RTS. MTU and READ
/// depth are the smaller of both sides. An unreliable connection (IBV_QPT_UC) has no timers, retries and READs. Errors:
/// those of Nic::modify_qp; after its kAgain call it again with the same arguments.
[[nodiscard]] Result<void> bring_up(nic::Nic& nic, ibv_qp* qp, const Endpoint& local, const Endpoint& remote,
                                    const BringUp& options, Deadline deadline);

// --- CM and socket bootstrap -------------------------------------------------------------------------------------
//
// client: HELLO (its endpoint)        ->
//         the server asks the client's NIC: was that you?
//                                     <-  HELLO (server's endpoint), or REJECT (status, text)
// the client asks the server's NIC: were that my HELLO, and yours?
// both bring their QP up
// client: READY                       ->
//                                     <-  READY
// Over a socket these are frames: fixed-endian with a fixed maximum, every field is checked, and each step has a
// deadline. A missing READY ends the attempt without leaving anything behind. After READY the socket closes, or stays
// open and silent, so that each end learns when the other's process ends. Over RDMA CM the private data of its request
// and reply carries HELLO, that of its reject carries REJECT, and READY is CM's own ready-to-use, which the server does
// not answer.
//
// If client and server have a common key, a challenge comes first, and each later frame except REJECT has a seal
// (link/seal.hpp):
//
// client: KEY (name of its key, random number)          ->
//                                     <-  CHALLENGE (random number, sealed): the server has the key
// client: HELLO, sealed: the client has the key         ->
// and so on, all sealed.
//
// Neither side tells its endpoint before the other one has proven the key. Until then a socket counts as one of a
// listener's pending ones.
//
// TCP does not tell who is at its other end, and anybody can use anybody's GID. If NICs can ask each other
// (nic::Inquiry), neither side makes, tells or uses anything before the process that owns the other side's GID has
// confirmed every byte of the handshake. RDMA CM and a device's socket mode have nobody to ask. RDMA CM has no room for
// a challenge, so with a key a device's handshake uses a socket.

/// Tells that the peer is gone while nothing is sent: RDMA CM's connection, or the socket, which the peer's kernel
/// closes when the process ends. The software NIC itself notices a process that ends, but not a connection that ends
/// while its process and NIC go on. Its destructor tells the peer. Empty without a watcher. Move-only.
class Lifeline {
 public:
  class Watched {
   public:
    virtual ~Watched() = default;
    virtual void watch(nic::Nic& nic, const ibv_qp* qp) noexcept = 0;
    [[nodiscard]] virtual bool is_over() const noexcept { return false; }
  };
  Lifeline() noexcept = default;
  explicit Lifeline(std::unique_ptr<Watched> watched) noexcept : watched_(std::move(watched)) {}
  /// From now on the QP goes to error with kPeerLost when the peer leaves. The QP must outlive this object. \thread
  /// setup
  void watch(nic::Nic& nic, const ibv_qp* qp) noexcept {
    if (watched_) watched_->watch(nic, qp);
  }
  /// Whether the peer has visibly left by now. RDMA CM tells later.
  [[nodiscard]] bool is_over() const noexcept { return watched_ && watched_->is_over(); }

 private:
  std::unique_ptr<Watched> watched_;
};

class Key;
class Keys;
class SocketWatcher;

enum class Role : std::uint8_t { kServer, kClient };

/// One end of a handshake, over any bootstrap: `dial` makes a client's, `Listener::next` a server's. If destroyed
/// before it is over, it tells the peer, which sees kPeerLost. \thread owner
///
/// `confirm`, `answer` and `finish` wait for the peer until their deadline. With `Deadline::now()` they make one
/// attempt instead: kAgain until the peer has done its part, and the next call continues, even within a frame. So one
/// thread can drive any number of handshakes with an epoll set. A deadline that was in the future when it was made
/// means a wait even if it has passed by now, and ends with kTimedOut.
///
/// A handshake is over after `reject`, after `finish` has succeeded, and after any error of the three except kAgain and
/// those that changed nothing (kTooLong and kBadArgument of the call's own arguments). Then every call returns
/// kBadArgument, and its socket or CM id is closed or has become the lifeline.
class Handshake {
 public:
  virtual ~Handshake() = default;
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  [[nodiscard]] const Endpoint& remote() const noexcept { return remote_; }
  /// Options for bring_up: the QP uses the path that the bootstrap found. Valid until the handshake is over.
  [[nodiscard]] BringUp how() const noexcept;
  /// The descriptor to poll for `events` before the next attempt; -1 once it is over. The lifeline may keep it open:
  /// remove it from the poll set by this number, or watch it with EPOLLONESHOT.
  [[nodiscard]] int fd() const noexcept { return is_over() ? -1 : descriptor(); }
  /// POLLIN (as EPOLLIN) while it waits for the peer; POLLOUT (as EPOLLOUT) while a frame of ours waits for room, which
  /// happens only if the kernel is short of memory for sockets. POLLRDHUP (as EPOLLRDHUP) before `answer`: the
  /// descriptor tells when the client hangs up, and this side's NIC when the client's NIC has answered
  /// (nic::Nic::notify_progress).
  [[nodiscard]] short events() const noexcept;
  /// Server only: the user of the client's process; before `confirm` has succeeded, of the process whose GID the client
  /// names. None while it is unknown, and if there is nobody to ask.
  [[nodiscard]] std::optional<uid_t> uid() const;
  /// The name of the key that both sides have proven; empty without a key. Valid until the handshake is destroyed.
  [[nodiscard]] virtual std::string_view key_name() const noexcept { return {}; }

  /// Ends the handshake. First sends REJECT with a status and a text (at most 200 bytes of it, 140 over RDMA CM, where
  /// only a client that waits for its answer is told them), as far as that works without waiting: a server until its
  /// READY, a client in the place of its own. Does nothing if the handshake is over.
  void reject(Status status, std::string_view text) noexcept;
  /// Server only, and first: asks the client's NIC, if possible, whether its process has sent the HELLO. Don't make
  /// anything for the client, or tell it anything, before this succeeds. Tells the client an error. Errors: those of
  /// nic::Inquiry::answer, kPeerLost (it has hung up). Call it again to learn of a client that hangs up later.
  [[nodiscard]] Result<void> confirm(Deadline deadline);
  /// Server only: sends the server's HELLO; brings nothing up. Call it after bring_up, so that the peer's QP finds
  /// ours. After kAgain call it with the same endpoint. Further errors: kPeerLost, kTimedOut.
  [[nodiscard]] Result<void> answer(const Endpoint& local, Deadline deadline);
  /// Waits until the peer has brought its QP up, and is not told yet that this side has: a side may still `reject`. On
  /// a server that is the client's READY; a client knows it since the server's HELLO. Call it once the QP is in RTS; on
  /// a server after `answer`. Errors: those of `finish`.
  [[nodiscard]] Result<void> hear(Deadline deadline);
  /// Exchanges READY, the client's first; then both sides may post. Call it after `hear`, or instead. Errors: those of
  /// the peer's REJECT, kPeerLost, kProtocol, kTimedOut.
  [[nodiscard]] Result<Lifeline> finish(Deadline deadline);

 protected:
  /// A server's answer may have `max_answer_bytes` of user data. If there is an `inquiry`, the client's HELLO is only a
  /// claim until the answer.
  Handshake(Role role, const Endpoint& remote, std::size_t max_answer_bytes,
            std::unique_ptr<nic::Inquiry> inquiry = nullptr) noexcept;
  [[nodiscard]] Role role() const noexcept { return role_; }
  /// Both sides have both HELLOs.
  [[nodiscard]] bool has_met() const noexcept { return state_ == State::kMet; }
  /// Sets the events that an unfinished attempt waits for; POLLIN at first.
  void set_events(short events) noexcept { events_ = events; }

 private:
  enum class State : std::uint8_t {
    kClaimed,    ///< A server has a HELLO, which another process may have sent.
    kAsked,      ///< It knows that the client has sent it.
    kAnswering,  ///< Its own HELLO is partly sent.
    kMet,        ///< Both sides have both HELLOs: READY is next.
    kOver,
  };
  /// The bootstrap's part. Attempts don't wait: false while the peer, or room, is missing.
  [[nodiscard]] virtual Result<bool> try_answer(const Endpoint& local) = 0;
  /// RDMA CM has nothing between the answer and the end.
  [[nodiscard]] virtual Result<bool> try_hear() { return true; }
  [[nodiscard]] virtual Result<bool> try_finish() = 0;
  /// Call it after `try_finish` was true: turns the socket or CM id into the lifeline.
  [[nodiscard]] virtual Result<Lifeline> take_lifeline() = 0;
  virtual void send_reject(Status status, std::string_view text) noexcept = 0;
  /// Closes the socket or CM id. Idempotent.
  virtual void close() noexcept = 0;
  [[nodiscard]] virtual int descriptor() const noexcept = 0;
  /// Whether the peer has visibly closed its end.
  [[nodiscard]] virtual bool has_hung_up() const noexcept { return false; }
  [[nodiscard]] virtual const Route* route() const noexcept { return nullptr; }
  /// The kTimedOut error for a peer that did not do its part.
  [[nodiscard]] virtual Error late() const noexcept = 0;

  [[nodiscard]] bool is_over() const noexcept { return state_ == State::kOver; }
  [[nodiscard]] Error not_now(const char* call) const noexcept;
  /// Makes attempts until one succeeds or fails, or the deadline passes. Afterwards the state is `next`, `again` after
  /// kAgain, or kOver.
  template <class Attempt>
  [[nodiscard]] Result<void> drive(const char* call, State again, State next, Deadline deadline,
                                   const Attempt& attempt);

  State state_;
  const Role role_;
  short events_;
  const Endpoint remote_;
  const std::size_t max_answer_bytes_;
  std::unique_ptr<nic::Inquiry> inquiry_;
  std::optional<uid_t> uid_;  ///< The confirmed user.
};

/// Set each option on both ends, or on neither.
struct DialOptions {
  SocketWatcher* watcher = nullptr;  ///< The socket becomes the connection's lifeline.
  /// Attests the handshake to the server, and asks the server to confirm its part. Further errors: kNotAllowed (a user
  /// that may not connect, or the received frame is not the one that the server sent).
  nic::Nic* nic = nullptr;
  /// Client and server prove to each other that they have this key. Further errors: kNotAllowed (the server does not
  /// have it, or uses no keys, or the received frame is not the one that the server sent), kSystem (no random numbers).
  std::shared_ptr<const Key> key{};
};
/// Connects over a socket: resolves, connects, sends HELLO, waits for the answer. Errors: kNotFound (name does not
/// resolve), kConnectionRefused, kRejected / kNotAllowed / ... as the server sent it with its text, kProtocol,
/// kTimedOut, kPeerLost, kBadArgument.
/// Numeric addresses need no resolver. A name goes through getaddrinfo, which has no deadline: a resolver that does not
/// answer can block the call for as long as resolv.conf says (10 s with the system's defaults).
[[nodiscard]] Result<std::unique_ptr<Handshake>> dial(const std::string& host, std::uint16_t port,
                                                      const Endpoint& local, Deadline deadline,
                                                      const DialOptions& options = {});

/// A quarter of the descriptors that this process may have, 64 to 512, because clients of all cores may connect at the
/// same time.
[[nodiscard]] unsigned usual_pending() noexcept;

struct ListenerOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;
  unsigned max_pending = usual_pending();  ///< Sockets that have not finished HELLO; one more evicts the oldest.
  std::chrono::milliseconds hello_timeout{2000};
  std::size_t max_request_bytes = kMaxPrivateBytes;  ///< Most user data of a client; one with more is rejected.
  std::size_t max_answer_bytes = kMaxPrivateBytes;   ///< Most of the server; more is kTooLong in `answer`.
  SocketWatcher* watcher = nullptr;                  ///< As for `dial`; must outlive the connections.
  nic::Nic* nic = nullptr;                           ///< As for `dial`; must outlive the handshakes.
  std::shared_ptr<const Keys> keys{};                ///< A client must prove one of them. Null: no key is needed.
  bool is_shut_at_first = false;                     ///< Has its port, and refuses connections until `admit`.
};
/// Accepts sockets and reads their HELLO without blocking on any single one: a silent, slow or endless peer occupies
/// one slot for a bounded time.
class Listener {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Listener>> open(const ListenerOptions& options);
  virtual ~Listener() = default;
  [[nodiscard]] virtual std::uint16_t port() const noexcept = 0;
  /// Clients may connect from now on. Call it once on a listener that was shut at first, before the first `next`.
  /// Errors: kSystem (somebody else listens on the port now). \thread owner
  [[nodiscard]] virtual Result<void> admit() = 0;
  /// Returns the next client whose HELLO is complete. kTimedOut if none came; with `Deadline::now()`, which makes one
  /// attempt as in Handshake, kAgain; kClosed after `close`. \thread owner
  [[nodiscard]] virtual Result<std::unique_ptr<Handshake>> next(Deadline deadline) = 0;
  /// Readable when `next` may make progress: for clients, and after `close`. It is an epoll set itself, so poll it for
  /// EPOLLIN only. It stays the same as long as the listener lives. \thread any
  [[nodiscard]] virtual int fd() const noexcept = 0;
  /// When to call `next` at the latest, even if fd() is not readable: it drops silent sockets. \thread owner
  [[nodiscard]] virtual Deadline due() const noexcept = 0;
  /// Makes `next` return kClosed, now and ever after, and fd() readable; the kernel refuses further connections.
  /// \thread any
  virtual void close() noexcept = 0;
  /// Number of sockets that were closed before a whole HELLO: garbage, silence, overflow, or the peer left. \thread any
  [[nodiscard]] virtual std::uint64_t dropped() const noexcept = 0;
};

// --- blob bootstrap -----------------------------------------------------------------------------------------------

/// Bytes of an exported endpoint; carry them by MPI, PMIx, etcd or a file.
inline constexpr std::size_t kBlobBytes = 640;
using Blob = std::array<std::byte, kBlobBytes>;
[[nodiscard]] Blob export_blob(const Endpoint& endpoint) noexcept;
/// kProtocol, with a text that names the fault, for anything that export_blob of this version did not make.
[[nodiscard]] Result<Endpoint> import_blob(std::span<const std::byte> blob);

}  // namespace verbena::link
