// Connections: what two sides tell each other, the bootstraps that carry it, and bringing a QP to RTS.
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

/// The time of a `timeout` attribute: a NIC repeats what nobody has acknowledged for so long (ibv_modify_qp(3)), and
/// may take up to four times as long (IBTA 9.9.2.1.1).
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
  /// Where the path's attributes come from instead; lives until bring_up has returned. What is said above of access,
  /// timers and retries holds all the same.
  const Route* route = nullptr;
};
/// kRejected, with the text, when the peer's NIC is of another kind.
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
// deadline. A READY that does not come ends the attempt; nothing of it is left. Then the socket closes, or stays open
// and silent, so that each end hears when the other's process ends. Over RDMA CM
// HELLO rides in the private data of its request and reply, REJECT in that of its reject, and READY is its own
// ready-to-use, which the server does not answer.
//
// Where client and server have a key in common, a challenge goes before all that, and each later frame but REJECT has a
// seal (link/seal.hpp):
//
// client: KEY (name of its key, random number)          ->
//                                     <-  CHALLENGE (random number, sealed): the server has the key
// client: HELLO, sealed: the client has the key         ->
// and so on, all sealed.
//
// Nobody's endpoint is told to who has not proven the key, and a socket that has not is one of a listener's pending
// ones.
//
// TCP does not say who is at its other end, and anybody can name anybody's GID. Where NICs can ask each other
// (nic::Inquiry), neither side makes, tells or uses anything before the process that the other side's GID belongs to
// has confirmed every byte of the handshake. RDMA CM and a device's socket mode have nobody to ask. RDMA CM has no room
// for a challenge: with a key a device's handshake goes over a socket.

/// What tells that the peer is gone while nothing is sent: RDMA CM's connection, or the socket, which the peer's kernel
/// closes when the process ends. The software NIC hears by itself of a process that ends, and not of a connection whose
/// process and NIC go on. Destroying it tells the peer. Empty without a watcher. Move-only.
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
  /// From now on the QP goes to error with kPeerLost when the peer leaves. The QP outlives this object. \thread setup
  void watch(nic::Nic& nic, const ibv_qp* qp) noexcept {
    if (watched_) watched_->watch(nic, qp);
  }
  /// Whether the peer is seen to have left at this moment. RDMA CM tells later.
  [[nodiscard]] bool is_over() const noexcept { return watched_ && watched_->is_over(); }

 private:
  std::unique_ptr<Watched> watched_;
};

class Key;
class Keys;
class SocketWatcher;

enum class Role : std::uint8_t { kServer, kClient };

/// One end of a handshake, over whatever carries it: a client's comes from `dial`, a server's from `Listener::next`.
/// Destroyed before it is over, it tells the peer, which sees kPeerLost. \thread owner
///
/// `confirm`, `answer` and `finish` wait for the peer until their deadline. With `Deadline::now()` they are one attempt
/// instead: kAgain until the peer has done its part, and the next call goes on from there, with what is received or
/// sent of a frame. So one thread drives any number of handshakes with an epoll set. A deadline that was in the future
/// when it was made is a wait even if it has passed by now, and ends with kTimedOut.
///
/// A handshake is over after `reject`, after `finish` has succeeded, and after any error of the three but
/// kAgain and those that say nothing was done (kTooLong and kBadArgument of the call's own arguments). Then every call
/// is kBadArgument, and what carried it is closed or has become the lifeline.
class Handshake {
 public:
  virtual ~Handshake() = default;
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  [[nodiscard]] const Endpoint& remote() const noexcept { return remote_; }
  /// Options for bring_up: the QP takes the way that the bootstrap found. Good until the handshake is over.
  [[nodiscard]] BringUp how() const noexcept;
  /// What to poll for `events` before the next attempt; -1 once it is over. The descriptor may live on in the lifeline:
  /// take it out of the poll set by this number, or watch it with EPOLLONESHOT.
  [[nodiscard]] int fd() const noexcept { return is_over() ? -1 : descriptor(); }
  /// POLLIN (as EPOLLIN) while the peer's part is awaited, POLLOUT (as EPOLLOUT) while a frame of ours waits for room,
  /// which it does only where the kernel is short of memory for sockets. POLLRDHUP (as EPOLLRDHUP) before `answer`: the
  /// descriptor tells of a client that hangs up, and the own NIC of what the client's NIC has answered
  /// (nic::Nic::notify_progress).
  [[nodiscard]] short events() const noexcept;
  /// Server only: the user of the client's process, and before `confirm` has succeeded that of the process whose GID
  /// the client names. None while that is not known, and where nobody can be asked.
  [[nodiscard]] std::optional<uid_t> uid() const;
  /// The name of the key that both sides have proven; empty: none was asked for. Good until the handshake is destroyed.
  [[nodiscard]] virtual std::string_view key_name() const noexcept { return {}; }

  /// Server only: sends REJECT with a status and a text (at most 200 bytes of it, 140 over RDMA CM), as far as that
  /// goes without waiting, and ends. A client's handshake only ends. Does nothing when it is over.
  void reject(Status status, std::string_view text) noexcept;
  /// Server only, and first: asks the client's NIC whether its process has sent the HELLO, where there is somebody to
  /// ask. Make nothing for the client before, and tell it nothing. An error has been told to the client. Errors: those
  /// of nic::Inquiry::answer, kPeerLost (it has hung up). Call it again to hear of a client that hangs up later.
  [[nodiscard]] Result<void> confirm(Deadline deadline);
  /// Server only: sends the server's HELLO; brings nothing up. Call after bring_up, so that the peer's QP finds ours.
  /// After kAgain call it with the same endpoint. Errors besides: kPeerLost, kTimedOut.
  [[nodiscard]] Result<void> answer(const Endpoint& local, Deadline deadline);
  /// After the QP is in RTS, and a server's `answer`: exchanges READY, the client's first. Then both sides may post.
  /// Errors: those of the peer's REJECT, kPeerLost, kProtocol, kTimedOut.
  [[nodiscard]] Result<Lifeline> finish(Deadline deadline);

 protected:
  /// A server's answer may have `max_answer_bytes` of user data. Its client's HELLO is a claim until the `inquiry` is
  /// answered, where there is one.
  Handshake(Role role, const Endpoint& remote, std::size_t max_answer_bytes,
            std::unique_ptr<nic::Inquiry> inquiry = nullptr) noexcept;
  [[nodiscard]] Role role() const noexcept { return role_; }
  /// What an attempt waits for that has come to nothing yet: POLLIN until it is set.
  void set_events(short events) noexcept { events_ = events; }

 private:
  enum class State : std::uint8_t {
    kClaimed,    ///< A server has the client's HELLO, which somebody else may have sent.
    kAsked,      ///< It knows that it was the client.
    kAnswering,  ///< Its own is partly sent.
    kMet,        ///< Both have both: READY is next.
    kOver,
  };
  /// What of it is left to the bootstrap. Attempts wait for nothing: false when the peer, or room, is
  /// awaited.
  [[nodiscard]] virtual Result<bool> try_answer(const Endpoint& local) = 0;
  [[nodiscard]] virtual Result<bool> try_finish() = 0;
  /// After `try_finish` was true: what carried it goes on as this.
  [[nodiscard]] virtual Result<Lifeline> take_lifeline() = 0;
  virtual void send_reject(Status status, std::string_view text) noexcept = 0;
  /// Releases what carries it. Idempotent.
  virtual void close() noexcept = 0;
  [[nodiscard]] virtual int descriptor() const noexcept = 0;
  /// Whether the peer is seen to have closed its end.
  [[nodiscard]] virtual bool has_hung_up() const noexcept { return false; }
  [[nodiscard]] virtual const Route* route() const noexcept { return nullptr; }
  /// The kTimedOut of a peer that did not do its part.
  [[nodiscard]] virtual Error late() const noexcept = 0;

  [[nodiscard]] bool is_over() const noexcept { return state_ == State::kOver; }
  [[nodiscard]] Error not_now(const char* call) const noexcept;
  /// Attempts until one comes to something, or the deadline passes. Afterwards the state is `next`, `again` after
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
  std::optional<uid_t> uid_;  ///< Confirmed.
};

/// Each is what both ends have, or neither.
struct DialOptions {
  SocketWatcher* watcher = nullptr;  ///< The socket becomes the connection's lifeline.
  /// The handshake is attested to the server, and confirmed. Errors besides: kNotAllowed (a user that may not connect,
  /// or what came is not what the server sent).
  nic::Nic* nic = nullptr;
  /// Client and server prove to each other that they have it. Errors besides: kNotAllowed (the server has not, or has
  /// none, or what came is not what the server sent), kSystem (no random numbers).
  std::shared_ptr<const Key> key{};
};
/// Over a socket: resolves, connects, sends HELLO, waits for the answer. Errors: kNotFound (name does not resolve),
/// kConnectionRefused, kRejected / kNotAllowed / ... as the server sent it with its text, kProtocol, kTimedOut,
/// kPeerLost, kBadArgument.
/// Numeric addresses are taken as they are. A name goes through getaddrinfo, which knows no deadline: a resolver that
/// does not answer can hold the call for as long as resolv.conf says (10 s with the system's defaults).
[[nodiscard]] Result<std::unique_ptr<Handshake>> dial(const std::string& host, std::uint16_t port,
                                                      const Endpoint& local, Deadline deadline,
                                                      const DialOptions& options = {});

/// A quarter of the descriptors that this process may have, 64 to 512: clients of all cores may connect in one moment.
[[nodiscard]] unsigned usual_pending() noexcept;

struct ListenerOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;
  unsigned max_pending = usual_pending();  ///< Sockets that have not finished HELLO; one more evicts the oldest.
  std::chrono::milliseconds hello_timeout{2000};
  std::size_t max_request_bytes = kMaxPrivateBytes;  ///< Of a client's user data; one with more is rejected.
  std::size_t max_answer_bytes = kMaxPrivateBytes;   ///< Of the server's: kTooLong by Handshake::answer.
  SocketWatcher* watcher = nullptr;                  ///< As of `dial`; outlives the connections.
  nic::Nic* nic = nullptr;                           ///< As of `dial`; outlives the handshakes.
  std::shared_ptr<const Keys> keys{};                ///< A client proves one of them. Null: none is asked for.
};
/// Accepts sockets and reads their HELLO without blocking on any single one: a silent, slow or endless peer costs one
/// bounded slot for a bounded time.
class Listener {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Listener>> open(const ListenerOptions& options);
  virtual ~Listener() = default;
  [[nodiscard]] virtual std::uint16_t port() const noexcept = 0;
  /// The next client that has said a complete HELLO. kTimedOut when none came, but kAgain with `Deadline::now()`, which
  /// is one attempt, as of Handshake; kClosed after `close`. \thread owner
  [[nodiscard]] virtual Result<std::unique_ptr<Handshake>> next(Deadline deadline) = 0;
  /// Readable when `next` may get on: for clients, and after `close`. An epoll set itself, so poll it for EPOLLIN only.
  /// The same as long as the listener lives. \thread any
  [[nodiscard]] virtual int fd() const noexcept = 0;
  /// When to call `next` at the latest, even if fd() is not readable: it drops silent sockets. \thread owner
  [[nodiscard]] virtual Deadline due() const noexcept = 0;
  /// Makes `next` return kClosed, now and ever after, and fd() readable; connecting is refused from here on. \thread
  /// any
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
