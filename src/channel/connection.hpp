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

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace verbena::channel {

/// Where a connection gets its memory, all of one protection domain.
struct Memory {
  ibv_pd* pd = nullptr;
  nic::BufferPool* buffers = nullptr;
  Bounce* bounce = nullptr;  ///< The loop's.
};

/// The memory that Connection::create allocates. \thread any  \alloc setup
[[nodiscard]] host::Footprint footprint(nic::Kind kind, const nic::Limits& limits, const Options& options);

/// One connection; immovable. Destroying a live one ends what is in flight without calling the handler.
/// \thread owner of the loop, except where it says setup  \alloc setup only
class Connection final : private engine::QueuePair::Owner, private Transfers {
 public:
  /// Creates the QP in RESET and takes buffers. The lease is an arena of its own, granted to the peer once it is met.
  /// Errors: those of `check`, kLimit (the loop is full), and those of BufferPool, RegisteredArena and Nic.
  /// \thread setup
  [[nodiscard]] static Result<std::unique_ptr<Connection>> create(engine::CompletionLoop& loop, const Memory& memory,
                                                                  const Options& options, Handler& handler);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // --- bring-up. \thread setup. Call `attach` afterwards.

  /// User data in the handshake, at most. RDMA CM carries less: see link::kMaxCmRequestBytes.
  static constexpr std::size_t kMaxUserBytes = link::kMaxPrivateBytes - wire::kMaxHandshakeBytes;
  /// Client: finds the server and meets it; `connect` follows.
  [[nodiscard]] Result<void> dial(link::Fabric& fabric, std::uint16_t port, std::span<const std::byte> user_data,
                                  Deadline deadline);
  /// The same with a server that was dialed with the result of `describe`.
  [[nodiscard]] Result<void> dialed(std::unique_ptr<link::Handshake> handshake);
  /// Server: meets a client; `connect` follows, or `refuse`.
  [[nodiscard]] Result<void> answer(std::unique_ptr<link::Handshake> handshake, std::span<const std::byte> user_data);
  /// For other carriers: `describe` gives the bytes for the peer, `meet` takes the peer's. Call `connect` once both
  /// sides have met, and `open_lease` once both are connected; no handshake tells you here.
  [[nodiscard]] Result<link::Endpoint> describe(std::span<const std::byte> user_data);
  [[nodiscard]] Result<void> meet(const link::Endpoint& remote);
  /// The peer's user data in an endpoint. Errors: kProtocol if this layer's part of it is malformed.
  [[nodiscard]] static Result<std::span<const std::byte>> user_data_of(const link::Endpoint& remote);
  /// The user data of the peer that was met.
  [[nodiscard]] std::span<const std::byte> peer_data() const noexcept { return life_.peer_data(); }
  [[nodiscard]] const ibv_gid& peer_gid() const noexcept { return life_.remote().qp.gid; }
  /// A window of the peer's to import while the connection is made, 3 at most: if it cannot be, both sides learn why.
  /// One of no bytes stands for the key's whole range: the queue pair imports it, and `lend_window` makes parts of it
  /// usable. Call it once the peer was met, before `connect`.
  void needs_window(const nic::Window& window) noexcept;
  /// Runs until both sides may post. If `deadline` has passed it is one attempt; on kAgain call it again when `wait_fd`
  /// is readable or the NIC reports progress (Nic::notify_progress).
  [[nodiscard]] Result<void> connect(Deadline deadline);
  /// Opens the peer's lease for large messages, if there is one. The peer's NIC hands it out only once it has connected
  /// too.
  [[nodiscard]] Result<void> open_lease(Deadline deadline) { return larges_.open_lease(deadline); }
  [[nodiscard]] int wait_fd() const noexcept { return life_.fd(); }
  /// The poll events to wait for on `wait_fd`.
  [[nodiscard]] short wait_events() const noexcept { return life_.events(); }
  void refuse(const Error& why) noexcept { life_.refuse(why); }
  /// Hands the connection to the loop's thread, once, after `connect`. The handler is called from then on. \thread any
  void attach() noexcept { pair_.attach(); }

  // --- messages

  /// Sends one eager message gathered from up to three parts (total 1 to longest_send()). You may reuse the parts on
  /// return. kAgain: no credit or no send-queue slot now; poll and try again. Other errors: kTooLong, or the reason why
  /// the connection is dead.
  [[nodiscard]] Status send(std::span<const std::byte> a, std::span<const std::byte> b = {},
                            std::span<const std::byte> c = {}) noexcept {
    const Status checked = check_message(a.size() + b.size() + c.size());
    return checked == Status::kOk ? messages_.post(kNoTag, engine::QueuePair::Signal::kSometimes, a, b, c) : checked;
  }
  /// The same past the queues of a software NIC: on return the peer's NIC has the message. False: not possible now, and
  /// nothing has happened.
  [[nodiscard]] bool send_now(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
    return check_message(a.size() + b.size()) == Status::kOk && messages_.send_now(a, b, {});
  }
  /// Call outside of handlers after `send_now`, so that a caller that does nothing else still receives messages and
  /// notices failures.
  void look_if_due() noexcept { pair_.look_if_due(); }
  /// As `send` with a completion: on_complete once the peer's NIC has the message. A software NIC whose ring was full
  /// passes the message on only while this side polls. kAgain also when max_operations are in flight.
  [[nodiscard]] Status start_send(std::span<const std::byte> a, std::span<const std::byte> b,
                                  std::uint64_t token) noexcept;
  /// Reserves registered memory to write a message of up to longest_send() bytes in place; the caller has it until
  /// `start_reserved` or `cancel_reserved`. Empty: Options::reservations are in use; polls bring back those with the
  /// NIC. Reserved messages may be sent in any order.
  [[nodiscard]] std::span<std::byte> reserve() noexcept {
    std::byte* const body = messages_.reserve();
    return {body, body == nullptr ? 0 : longest_send()};
  }
  [[nodiscard]] bool is_reserved(const std::byte* body) const noexcept { return messages_.is_reserved(body); }
  /// As `start_send`, for the first bytes of a reservation, which ends unless this fails.
  [[nodiscard]] Status start_reserved(std::span<const std::byte> body, std::uint64_t token) noexcept;
  void cancel_reserved(const std::byte* body) noexcept { messages_.cancel_reserved(body); }
  /// Call in Handler::on_message, with Options::keeps_messages: the body stays where it is, and costs the peer a
  /// credit, until `give_back` of the returned value or the connection's end.
  [[nodiscard]] std::uint32_t keep_message() noexcept {
    VERBENA_CHECK(options_.keeps_messages);
    return messages_.keep();
  }
  void give_back(std::uint32_t kept) noexcept {
    messages_.give_back(kept);
    if (pair_.reason() == Status::kOk) messages_.progress();
  }
  /// Starts a large message: `head` (at most 2 KiB, copied now), then `body` (registered memory of this side; don't
  /// change it until its completion). Later polls send fragments as the peer's lease has room. Large messages leave in
  /// start order. kAgain: max_larges are in flight; kUnsupported: the peer gives no lease.
  [[nodiscard]] Status start_large(std::span<const std::byte> head, LocalSpan body, std::uint64_t token) noexcept;
  /// Longest message that `send` accepts.
  [[nodiscard]] std::uint32_t longest_send() const noexcept { return messages_.longest(); }
  /// Asks for a call of Handler::on_room after the next poll that brings something.
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

  // --- batches

  /// Sends and starts between `hold` and the matching `release` share one doorbell (see engine::Batch); `flush` or the
  /// loop's next poll rings it earlier. Handlers already run in a batch when a poll brought several completions.
  void hold() noexcept { pair_.hold(); }
  void release() noexcept { pair_.release(); }
  void flush() noexcept { pair_.flush(); }

  // --- the end

  /// Starts an orderly leave: sends `words`, a message of the protocol above with static storage, after everything sent
  /// before. Its receiver calls `peer_left`. Idempotent.
  void leave(std::span<const std::byte> words) noexcept;
  /// Whether leaving is over: the peer's NIC has the words, there is nobody to tell, or time is up.
  [[nodiscard]] bool has_left() const noexcept { return life_.has_left(); }
  /// The time by which `has_left` is true, once `leave` was called.
  [[nodiscard]] Deadline linger() const noexcept { return life_.linger(); }
  /// As QueuePair::look_for_peer.
  [[nodiscard]] bool look_for_peer() noexcept { return pair_.look_for_peer(); }
  /// Call when the peer says that it leaves: ends the connection with kClosed.
  void peer_left() noexcept { pair_.fail(Status::kClosed); }
  /// Kills the connection with `reason`: the QP goes to error and drains during polls; on_end follows.
  void fail(Status reason) noexcept { pair_.fail(reason); }
  [[nodiscard]] bool alive() const noexcept { return life_.is_open() && pair_.reason() == Status::kOk; }
  /// Whether nothing is in flight any more, after a failure.
  [[nodiscard]] bool drained() const noexcept { return pair_.is_drained(); }
  /// Leaves the loop, once it is drained: from then on any thread may destroy it, which takes long.
  void leave_loop() noexcept { pair_.leave_loop(); }
  /// Why it failed; kOk while it has not.
  [[nodiscard]] Status failure() const noexcept { return pair_.reason(); }

  /// The raw queue pair; null if a drain had to destroy it.
  [[nodiscard]] ibv_qp* queue_pair() const noexcept { return pair_.get(); }
  [[nodiscard]] Result<nic::PeerProcess> peer() const { return pair_.nic().peer_of(pair_.get()); }
  [[nodiscard]] engine::CompletionLoop& loop() const noexcept { return pair_.loop(); }

 private:
  Connection(engine::CompletionLoop& loop, const Memory& memory, const Options& options, Handler& handler);
  [[nodiscard]] Result<void> open(const Memory& memory);
  [[nodiscard]] Result<void> take_peer();
  [[nodiscard]] Result<void> import_needs(Deadline deadline);

  // engine::QueuePair::Owner
  void handle(std::span<const ibv_wc> completions) noexcept override;
  void take(std::span<const std::byte> message) noexcept override;
  void on_attached() noexcept override;
  void on_drained() noexcept override;

  /// Goes on with what completions and messages of one poll have made possible.
  void on_polled() noexcept;
  void on_receive(const ibv_wc& completion) noexcept;
  [[nodiscard]] Status on_fragment(const ibv_wc& completion) noexcept;
  void on_sent(const ibv_wc& completion) noexcept;
  void on_failed(const ibv_wc& completion) noexcept;
  void complete_retired() noexcept;
  void complete(Operation& operation, Status status) noexcept;
  void progress() noexcept;
  void say_goodbye() noexcept;
  /// Posts a single SEND as an operation with a completion.
  template <class Post>
  [[nodiscard]] Status start_posted(std::uint64_t total, std::uint64_t token, Post&& post) noexcept;
  [[nodiscard]] Status check_message(std::size_t total) const noexcept {
    const Status checked = messages_.check(total);
    // A WRITE waiting for room goes first.
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
  std::array<nic::Window, 3> needs_;
  std::size_t needed_ = 0;
  std::span<const std::byte> words_;  ///< This side's last message.
  nic::Buffer memory_;                ///< Memory of the parts above.
};

}  // namespace verbena::channel
