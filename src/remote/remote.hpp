// One-sided access: read, write and atomics on the peer's memory, blocking or started and completed later.
#pragma once

#include "engine/connection.hpp"
#include "link/link.hpp"
#include "nic/nic.hpp"
#include "nic/registered_arena.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace verbena::remote {

using engine::LocalSpan;
using engine::RemoteSpan;

/// Eight bytes of the peer's exported memory that only NICs' atomics change. Aligned to 8.
struct RemoteWord {
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
};

/// How a started operation ended.
struct Completion {
  std::uint64_t token = 0;  ///< As it was started with.
  Status status = Status::kOk;
  std::uint64_t old = 0;  ///< What an atomic found.
};

class Link;

/// What a link calls, in the thread that polls its loop. A handler may start operations on any link of the loop and may
/// fail or dispose of it (CompletionLoop::dispose); it must not wait.
class Handler {
 public:
  virtual void on_complete(Link&, const Completion&) noexcept {}
  /// The peer wrote `bytes` with an immediate; they are in this side's memory.
  virtual void on_immediate(Link&, std::uint32_t /*immediate*/, std::uint32_t /*bytes*/) noexcept {}
  /// The link is dead, once; every operation has been completed before.
  virtual void on_failure(Link&, Status /*reason*/) noexcept {}

 protected:
  ~Handler() = default;
};

struct LinkOptions {
  std::uint32_t bounce_bytes = 64 * 1024;  ///< Of one bounce buffer, through which unregistered memory goes. A multiple
                                           ///< of 64, 64 B to 16 MiB; cut to what the NIC takes at once.
  std::uint32_t bounce_buffers = 8;        ///< That many operations may be in quarantine; 1 to 1024.
  std::uint32_t max_inline = 256;          ///< Writes up to this, or to what the NIC gives, go inline.
  std::uint32_t max_operations = 64;       ///< Started and not complete, or not taken. 1 to 8192.
  std::uint32_t max_reads = 16;  ///< READs and atomics among them, at least 1; what both NICs can do lowers it.
  /// Immediates of the peer that can be under way; 0: none. Each takes a receive, given back when on_immediate returns.
  /// A peer that is faster waits, for as long as link::BringUp::rnr_retry says: with its default until this side dies
  /// or that side gives up. 0 to 4096.
  std::uint32_t receives = 0;
  std::optional<unsigned> node{};  ///< Of the link's own memory: the NUMA node of the loop's thread, best.
  Handler* handler = nullptr;      ///< Outlives the link. Without one completions are taken (Link::take).
};

/// Entries that one link takes of its loop's LoopOptions::cqe. \thread any  \alloc none
[[nodiscard]] std::uint32_t completions_needed(const LinkOptions& options) noexcept;

/// One QP for one-sided access, driven by the thread that calls. Every call returns kOk, or:
/// kBadArgument (spans that do not fit each other, a word that is not aligned), kNotFound (no imported window has the
/// key), kOutOfRange, kRemoteAccess (the window lacks the right; nothing was posted), kTimedOut, or why the link is
/// dead.
///
/// Past its deadline a call on the caller's own memory (but for writes that went inline, which leave the link alive and
/// may still happen) kills the link with kTimedOut, and drains it first, so that the
/// memory is the caller's again when the call returns; that may take Connection::kDrainTimeout more. A call that goes
/// through the link's own memory leaves the link alive: the memory is in quarantine until the NIC is done with it.
///
/// What is started is complete when its Completion came, in the order of the starts, also among blocking calls. Until
/// then its memory is the NIC's. A blocking call from a handler is kBadArgument.
/// \thread owner of the loop, except create, connect and import_window (setup)  \alloc setup only
class Link final : private engine::Connection {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Link>> create(engine::CompletionLoop& loop, ibv_pd* pd,
                                                            const LinkOptions& options);
  /// What `create` allocates. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const nic::Limits& limits, const LinkOptions& options);
  ~Link() override;

  /// What to hand to the peer, and to `connect` as `local`. May be called again for other user data.
  [[nodiscard]] Result<link::Endpoint> local_endpoint(std::span<const std::byte> user_data);
  /// `how` is the way that the bootstrap found (Dialed::how, Incoming::how); none for blobs.
  [[nodiscard]] Result<void> connect(const link::Endpoint& local, const link::Endpoint& remote, Deadline deadline,
                                     const link::BringUp& how = {});
  /// Keeps what the bootstrap's `finish` returned until the link ends.
  using Connection::keep;
  /// Makes a window of the peer usable. At most 64. Errors: those of Nic::import_window, kLimit.
  [[nodiscard]] Result<void> import_window(const nic::Window& window, Deadline deadline);
  [[nodiscard]] Result<void> release_window(const nic::Window& window);

  /// Reads from.length bytes to the front of `to`.
  [[nodiscard]] Status read(LocalSpan to, RemoteSpan from, Deadline deadline) noexcept;
  /// Writes all of `from` to the front of `to`.
  [[nodiscard]] Status write(LocalSpan from, RemoteSpan to, Deadline deadline) noexcept;
  /// The same for memory that is not registered, through bounce buffers; a longer transfer is several operations, and
  /// may have happened in part when it fails.
  [[nodiscard]] Status read(std::span<std::byte> to, RemoteSpan from, Deadline deadline) noexcept;
  [[nodiscard]] Status write(std::span<const std::byte> from, RemoteSpan to, Deadline deadline) noexcept;
  /// `old` is what was there; unchanged unless kOk. kUnsupported when this side's device has no atomics.
  [[nodiscard]] Status fetch_add(RemoteWord word, std::uint64_t delta, std::uint64_t& old, Deadline deadline) noexcept;
  [[nodiscard]] Status compare_swap(RemoteWord word, std::uint64_t expected, std::uint64_t desired, std::uint64_t& old,
                                    Deadline deadline) noexcept;

  /// The same without waiting: kOk when started, or kAgain (the link has max_operations or max_reads under way, or its
  /// send queue is full: poll the loop), or the reason; nothing was posted then. Transfers beyond what the NIC takes at
  /// once are split. kTooLong: beyond what the send queue takes.
  [[nodiscard]] Status start_read(LocalSpan to, RemoteSpan from, std::uint64_t token) noexcept;
  [[nodiscard]] Status start_write(LocalSpan from, RemoteSpan to, std::uint64_t token) noexcept;
  /// The peer's on_immediate follows the data.
  [[nodiscard]] Status start_write_imm(LocalSpan from, RemoteSpan to, std::uint32_t immediate,
                                       std::uint64_t token) noexcept;
  [[nodiscard]] Status start_fetch_add(RemoteWord word, std::uint64_t delta, std::uint64_t token) noexcept;
  [[nodiscard]] Status start_compare_swap(RemoteWord word, std::uint64_t expected, std::uint64_t desired,
                                          std::uint64_t token) noexcept;
  /// Completions of what was started, oldest first, as polls of the loop brought them; none where there is a handler.
  [[nodiscard]] std::size_t take(std::span<Completion> into) noexcept;
  /// Operations started and not complete.
  [[nodiscard]] std::uint32_t under_way() const noexcept { return started_ - completed_; }
  using Connection::flush;
  using Connection::hold;
  using Connection::release;

  /// No handler is called any more, and the link fails with kClosed if it has not failed.
  void mute() noexcept;

  /// The raw queue pair; null once a drain had to destroy it.
  [[nodiscard]] ibv_qp* queue_pair() const noexcept { return qp(); }
  /// Kills the link with `reason`; it drains during polls.
  void fail(Status reason) noexcept { begin_failure(reason); }
  [[nodiscard]] bool alive() const noexcept { return connected_ && reason() == Status::kOk; }
  [[nodiscard]] bool drained() const noexcept { return is_drained(); }
  [[nodiscard]] Status failure() const noexcept { return reason(); }

 private:
  friend class PhysicalMap;  // Has a window table of its own, and splits transfers where its runs end.
  /// Whose memory an operation touches, which decides what a passed deadline does.
  enum class Memory : std::uint8_t { kCallers, kOurs };
  /// An operation that was started.
  struct Started {
    std::uint64_t token = 0;
    std::uint64_t old = 0;
    std::uint32_t position = 0;  ///< Of its last work request.
    Status status = Status::kOk;
    bool is_read = false;  ///< A READ or an atomic.
    bool is_atomic = false;
  };
  static_assert(sizeof(Started) == 24);

  Link(engine::CompletionLoop& loop, const LinkOptions& options);
  void handle(std::span<const ibv_wc> completions) noexcept override;
  void on_attached() noexcept override;
  void on_drained() noexcept override;
  void complete(std::uint64_t id) noexcept;
  void complete_started(std::uint32_t position) noexcept;
  void complete_oldest(Status status) noexcept;
  void on_receive(const ibv_wc& completion) noexcept;
  void on_failed(const ibv_wc& completion) noexcept;

  [[nodiscard]] Result<void> create(ibv_pd* pd);
  [[nodiscard]] static engine::QueueOptions queues_needed(const LinkOptions& options) noexcept;
  /// As many as max_operations, rounded up to a power of two.
  [[nodiscard]] static std::size_t ring_entries(const LinkOptions& options) noexcept;
  [[nodiscard]] static std::size_t arena_bytes(const LinkOptions& options) noexcept;
  [[nodiscard]] Status check(const RemoteSpan& span, std::uint32_t access) noexcept;
  [[nodiscard]] Status transfer(ibv_wr_opcode opcode, LocalSpan local, RemoteSpan remote, Deadline deadline) noexcept;
  /// What an atomic does.
  struct Change {
    ibv_wr_opcode opcode;
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
  };
  [[nodiscard]] Status atomic(const Change& change, RemoteWord word, std::uint64_t& old, Deadline deadline) noexcept;
  [[nodiscard]] ibv_send_wr& prepare(const Change& change, RemoteWord word, std::byte* result) noexcept;
  [[nodiscard]] std::unexpected<Error> gone(const char* call) const noexcept;
  /// What stands against starting one more operation of `pieces` work requests.
  [[nodiscard]] Status room_for(std::uint64_t pieces, bool is_read) const noexcept;
  /// The NIC's way past its queues, for a blocking call that no started operation is ahead of; or null.
  [[nodiscard]] const nic::Direct* direct() const noexcept {
    return started_ == completed_ && !loop().in_handler() ? Connection::direct() : nullptr;
  }
  [[gnu::always_inline]] Status transfer_piece(ibv_wr_opcode opcode, std::byte* local, std::uint32_t lkey,
                                               std::uint32_t bytes, std::uint64_t remote, std::uint32_t rkey,
                                               Deadline deadline) noexcept;
  [[nodiscard]] Status wait_for_room(Deadline deadline) noexcept;
  /// Ends a call that posted at `position`. Without its completion the caller's memory is drained.
  [[nodiscard]] Status wait_for_position(std::uint32_t position, Memory memory, Deadline deadline) noexcept;
  [[nodiscard]] Status start_transfer(ibv_send_wr& request, LocalSpan local, RemoteSpan remote,
                                      std::uint64_t token) noexcept;
  [[nodiscard]] Status start_atomic(const Change& change, RemoteWord word, std::uint64_t token) noexcept;
  [[nodiscard]] Status check_word(RemoteWord word) noexcept;
  void note_started(std::uint64_t token, bool is_read, bool is_atomic) noexcept;
  [[nodiscard]] Started& started(std::uint32_t number) noexcept { return ring_[number & (ring_.size() - 1)]; }
  [[nodiscard]] std::byte* result_of(std::uint32_t number) const noexcept {
    return results_ + (number & (ring_.size() - 1)) * sizeof(std::uint64_t);
  }
  /// A slot whose bounce buffer is free, waiting for one out of quarantine.
  [[nodiscard]] Status take_slot(std::uint32_t& slot, Deadline deadline) noexcept;
  /// Posts and waits. Without its completion the slot's memory goes to quarantine.
  [[nodiscard]] Status run(ibv_send_wr& request, std::uint32_t slot, Deadline deadline) noexcept;
  void drain_now() noexcept;
  [[nodiscard]] std::byte* bounce(std::uint32_t slot) const noexcept {
    return memory_.data() + std::size_t{slot} * options_.bounce_bytes;
  }

  const LinkOptions options_;
  engine::InFlight in_flight_;
  std::uint32_t waiting_ = engine::wr::kNoSlot;  ///< The slot of the call that is blocked.
  bool connected_ = false;
  bool has_atomics_ = true;
  engine::WindowTable windows_;
  ibv_send_wr transfer_{};
  ibv_send_wr atomic_{};
  ibv_sge sge_{};
  ibv_sge atomic_sge_{};
  Handler* handler_;           ///< Never null.
  std::vector<Started> ring_;  ///< ring_entries.
  std::uint32_t started_ = 0;  ///< Numbers of operations; wrap. taken_ <= completed_ <= started_.
  std::uint32_t completed_ = 0;
  std::uint32_t taken_ = 0;
  std::uint32_t reads_out_ = 0;
  std::uint32_t max_reads_ = 0;
  std::uint32_t used_receives_ = 0;  ///< Consumed and not posted again.
  std::vector<ibv_recv_wr> receive_requests_;
  const std::uint32_t max_message_;
  std::byte* results_ = nullptr;
  std::optional<link::Endpoint> endpoint_;
  nic::RegisteredArena memory_;  ///< Bounce buffers, and results of started atomics.
};

}  // namespace verbena::remote
