// One connection: a queue pair with its bring-up and goodbye, messages, large messages and one-sided access.
#pragma once

#include "channel/bounce.hpp"
#include "channel/large.hpp"
#include "channel/life.hpp"
#include "channel/messages.hpp"
#include "channel/operations.hpp"
#include "channel/options.hpp"
#include "channel/transfers.hpp"
#include "link/fabric.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace verbena::channel {

/// What a connection takes its memory from, all of one protection domain.
struct Memory {
  ibv_pd* pd = nullptr;
  nic::BufferPool* buffers = nullptr;
  Bounce* bounce = nullptr;  ///< Of the connection's loop.
};

/// What Connection::create allocates. \thread any  \alloc setup
[[nodiscard]] host::Footprint footprint(nic::Kind kind, const nic::Limits& limits, const Options& options);

/// Immovable. Destroying one that is alive ends what is in flight without a call of the handler.
/// \thread owner of the loop, except where it says setup  \alloc setup only
class Connection final : private engine::QueuePair::Owner, private Transfers {
 public:
  /// Makes the QP in RESET, and takes buffers; a lease is an arena of its own, granted to the peer that is met.
  /// Errors: those of `check`, kLimit (the loop is full), and those of BufferPool, RegisteredArena and Nic. \thread
  /// setup
  [[nodiscard]] static Result<std::unique_ptr<Connection>> create(engine::CompletionLoop& loop, const Memory& memory,
                                                                  const Options& options, Handler& handler);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // --- bring-up. \thread setup. Then `attach`.

  /// User data that rides along with the handshake, at most. RDMA CM carries less: see link::kMaxCmRequestBytes.
  static constexpr std::size_t kMaxUserBytes = link::kMaxPrivateBytes - wire::kMaxHandshakeBytes;
  /// Client: finds the server and meets it; `connect` follows.
  [[nodiscard]] Result<void> dial(link::Fabric& fabric, std::uint16_t port, std::span<const std::byte> user_data,
                                  Deadline deadline);
  /// The same with a server that was dialed with what `describe` said.
  [[nodiscard]] Result<void> dialed(std::unique_ptr<link::Handshake> handshake);
  /// Server: meets a client; `connect` follows, or `refuse`.
  [[nodiscard]] Result<void> answer(std::unique_ptr<link::Handshake> handshake, std::span<const std::byte> user_data);
  /// For other carriers: what to hand to the peer, and what came from it. `connect` follows once both sides have met,
  /// and `open_lease` once both are connected, which no handshake says here.
  [[nodiscard]] Result<link::Endpoint> describe(std::span<const std::byte> user_data);
  [[nodiscard]] Result<void> meet(const link::Endpoint& remote);
  /// The peer's user data out of an endpoint; kProtocol when this layer's part of it is not well-formed.
  [[nodiscard]] static Result<std::span<const std::byte>> user_data_of(const link::Endpoint& remote);
  /// That of the peer that was met.
  [[nodiscard]] std::span<const std::byte> peer_data() const noexcept { return life_.peer_data(); }
  [[nodiscard]] const ibv_gid& peer_gid() const noexcept { return life_.remote().qp.gid; }
  /// Goes on until both sides may post. With a deadline that has passed it is one attempt: Status::kAgain says that it
  /// is to be called again, when `wait_fd` is readable or the NIC tells of progress (Nic::notify_progress).
  [[nodiscard]] Result<void> connect(Deadline deadline);
  /// Opens the peer's lease for large messages, where there is one. Its NIC hands it out once it has connected, too.
  [[nodiscard]] Result<void> open_lease(Deadline deadline) { return larges_.open_lease(deadline); }
  [[nodiscard]] int wait_fd() const noexcept { return life_.fd(); }
  /// The poll events that it waits for there.
  [[nodiscard]] short wait_events() const noexcept { return life_.events(); }
  void refuse(const Error& why) noexcept { life_.refuse(why); }
  /// Hands the connection to the loop's thread, once, after `connect`. From then on the handler is called. \thread any
  void attach() noexcept { pair_.attach(); }

  // --- messages

  /// Sends one eager message gathered from up to three parts (total 1 to longest_send()). The parts are free when it
  /// returns. kAgain: no credit or no send-queue slot now; poll and try again. kTooLong, or the reason of death.
  [[nodiscard]] Status send(std::span<const std::byte> a, std::span<const std::byte> b = {},
                            std::span<const std::byte> c = {}) noexcept {
    const Status checked = check_message(a.size() + b.size() + c.size());
    return checked == Status::kOk ? messages_.post(kNoTag, engine::QueuePair::Signal::kSometimes, a, b, c) : checked;
  }
  /// The same with a completion: on_complete once the peer's NIC has the message. A software NIC hands on what did not
  /// fit into its ring only while this side polls. kAgain, too, when max_operations are in flight.
  [[nodiscard]] Status start_send(std::span<const std::byte> a, std::span<const std::byte> b,
                                  std::uint64_t token) noexcept;
  /// Room for a message of up to longest_send() bytes in registered memory, to be written in place: the caller's until
  /// `start_reserved` or `cancel_reserved`. Empty: Options::reservations are in use; those with the NIC come back with
  /// polls. The messages of several reservations may be sent in any order.
  [[nodiscard]] std::span<std::byte> reserve() noexcept {
    std::byte* const body = messages_.reserve();
    return {body, body == nullptr ? 0 : longest_send()};
  }
  [[nodiscard]] bool is_reserved(const std::byte* body) const noexcept { return messages_.is_reserved(body); }
  /// As `start_send`, of the first bytes of a reservation, which is over unless this fails.
  [[nodiscard]] Status start_reserved(std::span<const std::byte> body, std::uint64_t token) noexcept;
  void cancel_reserved(const std::byte* body) noexcept { messages_.cancel_reserved(body); }
  /// In Handler::on_message: its body stays where it is, and costs the peer a credit, until `give_back` of what this
  /// returns, or until the connection goes.
  [[nodiscard]] std::uint32_t keep_message() noexcept { return messages_.keep(); }
  void give_back(std::uint32_t kept) noexcept {
    messages_.give_back(kept);
    if (pair_.reason() == Status::kOk) messages_.progress();
  }
  /// Starts a large message: `head` (at most 2 KiB, copied now), then `body` (registered memory of this side, which
  /// must stay as it is until its completion). Fragments go out as the peer's lease has room, during later polls.
  /// Large messages leave in the order they were started. kAgain when max_larges are in flight; kUnsupported when the
  /// peer gives no lease.
  [[nodiscard]] Status start_large(std::span<const std::byte> head, LocalSpan body, std::uint64_t token) noexcept;
  /// Longest message that `send` takes.
  [[nodiscard]] std::uint32_t longest_send() const noexcept { return messages_.longest(); }
  /// Has Handler::on_room called after the next poll that brings something.
  void tell_of_room() noexcept { wants_room_ = true; }
  /// Eager messages that could be sent now.
  [[nodiscard]] std::uint32_t credits() const noexcept { return is_waiting() ? 0 : messages_.room(); }

  // --- one-sided access, and the windows of the peer that it needs: see Transfers
  using Transfers::abandon;
  using Transfers::change;
  using Transfers::change_now;
  using Transfers::import_window;
  using Transfers::is_usable;
  using Transfers::lend_window;
  using Transfers::read;
  using Transfers::read_list_now;
  using Transfers::read_now;
  using Transfers::release_window;
  using Transfers::start_change;
  using Transfers::start_read;
  using Transfers::start_write;
  using Transfers::write;
  using Transfers::write_now;

  // --- windows of this side

  /// Binds a window of type 2 (nic::Nic::alloc_mw) for the peer, under the key `rkey`: what is sent after it finds the
  /// window bound. kAgain: the send queue has no room now. A binding that the NIC refuses ends the connection.
  [[nodiscard]] Status bind(ibv_mw& window, std::uint32_t rkey, const ibv_mw_bind_info& info) noexcept;
  /// Takes a bound window back: once its completion says kOk the peer reaches its memory no more. kAgain, and nothing
  /// has happened: the send queue has no room, or max_operations are in flight.
  [[nodiscard]] Status start_invalidate(std::uint32_t rkey, std::uint64_t token) noexcept;

  // --- batches

  /// What is sent and started from `hold` to as many calls of `release` goes out by one doorbell (see engine::Batch);
  /// or at `flush`, or at the next poll of the loop. Calls of the handler are in a batch already when a poll brought
  /// several completions.
  void hold() noexcept { pair_.hold(); }
  void release() noexcept { pair_.release(); }
  void flush() noexcept { pair_.flush(); }

  // --- the end

  /// This side leaves in order: `words`, a message of the protocol above with static storage, goes out behind all that
  /// was sent. Its receiver calls `peer_left`. Idempotent.
  void leave(std::span<const std::byte> words) noexcept;
  /// The peer's NIC has the words; or there is nobody to tell, or no time any more.
  [[nodiscard]] bool has_left() const noexcept { return life_.has_left(); }
  /// When `has_left` is true at the latest, once `leave` was called.
  [[nodiscard]] Deadline linger() const noexcept { return life_.linger(); }
  /// As QueuePair::look_for_peer.
  [[nodiscard]] bool look_for_peer() noexcept { return pair_.look_for_peer(); }
  /// The peer has said that it leaves: ends with kClosed.
  void peer_left() noexcept { pair_.fail(Status::kClosed); }
  /// Kills the connection with `reason`: the QP goes to error and drains during polls; on_end follows.
  void fail(Status reason) noexcept { pair_.fail(reason); }
  [[nodiscard]] bool alive() const noexcept { return life_.is_open() && pair_.reason() == Status::kOk; }
  /// Nothing of it is in flight any more, after a failure.
  [[nodiscard]] bool drained() const noexcept { return pair_.is_drained(); }
  /// Why it has failed; kOk while it has not.
  [[nodiscard]] Status failure() const noexcept { return pair_.reason(); }

  /// The raw queue pair; null once a drain had to destroy it.
  [[nodiscard]] ibv_qp* queue_pair() const noexcept { return pair_.get(); }
  [[nodiscard]] Result<nic::PeerProcess> peer() const { return pair_.nic().peer_of(pair_.get()); }
  [[nodiscard]] engine::CompletionLoop& loop() const noexcept { return pair_.loop(); }

 private:
  Connection(engine::CompletionLoop& loop, const Memory& memory, const Options& options, Handler& handler);
  [[nodiscard]] Result<void> open(const Memory& memory);
  [[nodiscard]] Result<void> take_peer();

  // engine::QueuePair::Owner
  void handle(std::span<const ibv_wc> completions) noexcept override;
  void on_attached() noexcept override;
  void on_drained() noexcept override;

  void on_receive(const ibv_wc& completion) noexcept;
  [[nodiscard]] Status on_fragment(const ibv_wc& completion) noexcept;
  void on_sent(const ibv_wc& completion) noexcept;
  void on_failed(const ibv_wc& completion) noexcept;
  void complete_retired() noexcept;
  void complete(Operation& operation, Status status) noexcept;
  void progress() noexcept;
  void say_goodbye() noexcept;
  /// Posts what is one SEND as an operation with a completion.
  template <class Post>
  [[nodiscard]] Status start_posted(std::uint64_t total, std::uint64_t token, Post&& post) noexcept;
  [[nodiscard]] Status check_message(std::size_t total) const noexcept {
    const Status checked = messages_.check(total);
    // A WRITE that waits for room goes first.
    return checked == Status::kOk && is_write_waiting() ? Status::kAgain : checked;
  }

  const Options options_;
  Handler& handler_;
  engine::QueuePair pair_;
  Credits credits_;
  Messages messages_;
  Operations operations_;
  LargeSender larges_;
  LargeReceiver larges_in_;
  Life life_;
  bool wants_room_ = false;
  std::span<const std::byte> words_;  ///< Said last.
  nic::Buffer memory_;                ///< Of the parts above.
};

}  // namespace verbena::channel
