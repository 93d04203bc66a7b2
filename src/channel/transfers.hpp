// One-sided access: READ, WRITE and atomics on the peer's memory, blocking or started and completed later.
#pragma once

#include "channel/bounce.hpp"
#include "channel/operations.hpp"
#include "channel/options.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::channel {

/// Every call returns kOk or an error. With these nothing was posted: kBadArgument (spans that do not fit each other,
/// no bytes, a misaligned word), kNotFound (no imported window has the key), kOutOfRange, kRemoteAccess (the window
/// lacks the right), kUnsupported (the device has none). Any other error is the reason why the connection is dead.
/// Unregistered memory goes through the loop's bounce chunks.
/// \thread owner of the loop, except import_window and release_window (setup, or owner)
class Transfers : private Bounce::Waiter {
  using Kind = Operation::Kind;

 public:
  /// Keeps the references and uses them from `open` on.
  Transfers(engine::QueuePair& pair, Operations& operations, Bounce& bounce) noexcept
      : pair_(pair), operations_(operations), bounce_(bounce) {}
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  /// Bytes that `open` needs.
  [[nodiscard]] static std::size_t bytes_for(const Options& options) noexcept {
    return options.max_operations * sizeof(std::uint64_t);
  }
  /// Takes over `memory`; its part for this object starts at `begin`.
  void open(const nic::Buffer& memory, std::byte* begin) noexcept;
  /// `max_reads`: READs and atomics in flight, at most.
  void meet(std::uint32_t max_reads) noexcept { max_reads_ = max_reads; }

  // --- blocking. These may also return kTimedOut, and kAgain in a handler. When a call on registered memory times out,
  // it fails the connection and drains it (QueuePair::kDrainTimeout at most), so the caller has the memory back when
  // the call returns. A call on other memory leaves the connection alive: its chunks stay in quarantine until the NIC
  // is done with them.
  [[nodiscard]] Status read(const LocalSpan& to, const RemoteSpan& from, const Patience& patience) noexcept {
    return move<Kind::kRead>(to, from, patience);
  }
  [[nodiscard]] Status write(const LocalSpan& from, const RemoteSpan& to, const Patience& patience) noexcept {
    return move<Kind::kWrite>(from, to, patience);
  }
  [[nodiscard]] Status read(std::span<std::byte> to, const RemoteSpan& from, const Patience& patience) noexcept {
    return read(LocalSpan::bounced(to), from, patience);
  }
  [[nodiscard]] Status write(std::span<const std::byte> from, const RemoteSpan& to, const Patience& patience) noexcept {
    return write(LocalSpan::bounced(from), to, patience);
  }
  [[nodiscard]] Status change(const Change& change, RemoteSpan word, std::uint64_t& old,
                              const Patience& patience) noexcept;

  // --- at once: carried out in the calling thread, in one piece, when the NIC is a software NIC and no earlier
  // operation is queued. kAgain: not possible now, and nothing has happened.
  // Memory of this side need not be registered. The NIC itself refuses spans without bytes, and READs where there are
  // none.
  [[nodiscard, gnu::always_inline]] Status read_now(std::span<std::byte> to, const RemoteSpan& from) noexcept {
    if (to.size() < from.length) [[unlikely]]
      return Status::kBadArgument;
    const Status checked = windows_.check(from, IBV_ACCESS_REMOTE_READ);
    return checked == Status::kOk ? move_whole_now(&nic::Direct::read_plain, to.data(), from) : checked;
  }
  [[nodiscard, gnu::always_inline]] Status write_now(std::span<const std::byte> from, const RemoteSpan& to) noexcept {
    if (to.length < from.size()) [[unlikely]]
      return Status::kBadArgument;
    const RemoteSpan part = to.first(from.size());
    const Status checked = windows_.check(part, IBV_ACCESS_REMOTE_WRITE);
    return checked == Status::kOk ? move_whole_now(&nic::Direct::write_plain, LocalSpan::bounced(from).data, part)
                                  : checked;
  }
  [[nodiscard]] Status change_now(const Change& change, RemoteSpan word, std::uint64_t& old) noexcept;
  /// Carries out a list of READs from one window, 1 to nic::Direct::kMaxList of them: all, or nothing has happened.
  [[nodiscard]] Status read_list_now(std::span<const nic::PlainRead> reads, std::uint32_t rkey) noexcept;

  // --- started. Operations complete in the order of their starts; don't touch their memory until then. A WRITE arrives
  // before anything sent or written after it; an eager message gets kAgain until that WRITE is posted. Transfers are
  // split into work requests that the NIC can take. kAgain: max_operations are in flight.
  [[nodiscard]] Status start_read(const LocalSpan& to, const RemoteSpan& from, std::uint64_t token) noexcept {
    return start<Kind::kRead>(to, from, token);
  }
  [[nodiscard]] Status start_write(const LocalSpan& from, const RemoteSpan& to, std::uint64_t token) noexcept {
    return start<Kind::kWrite>(from, to, token);
  }
  [[nodiscard]] Status start_read(std::span<std::byte> to, const RemoteSpan& from, std::uint64_t token) noexcept {
    return start_read(LocalSpan::bounced(to), from, token);
  }
  [[nodiscard]] Status start_write(std::span<const std::byte> from, const RemoteSpan& to,
                                   std::uint64_t token) noexcept {
    return start_write(LocalSpan::bounced(from), to, token);
  }
  /// Starts an atomic on a word of the peer, aligned to 8 bytes; the completion carries the old value.
  [[nodiscard]] Status start_change(const Change& change, RemoteSpan word, std::uint64_t token) noexcept;
  /// Drops the operations with `token`, whose starter is gone: their memory is no longer accessed, and no completion is
  /// reported. False: one of them is on registered memory and with the NIC; only its completion, or the connection's
  /// end, frees that memory.
  [[nodiscard]] bool abandon(std::uint64_t token) noexcept;

  // --- windows
  /// Makes a window of the peer usable; at most 64 at a time. If `deadline` has passed: one attempt, which may be
  /// kAgain.
  [[nodiscard]] Result<void> import_window(const nic::Window& window, Deadline deadline);
  [[nodiscard]] Result<void> release_window(const nic::Window& window);
  /// Whether a window is imported already.
  [[nodiscard]] bool is_usable(const nic::Window& window) noexcept {
    return windows_.check({window.address, window.length, window.rkey}, window.access) == Status::kOk;
  }
  /// Makes a window usable that the caller imported on the queue pair itself; replaces the one lent before.
  void lend_window(const nic::Window& window) noexcept { windows_.lend(window); }

  /// Whether a WRITE waits for room: later messages must not overtake it.
  [[nodiscard]] bool is_write_waiting() const noexcept { return waiting_writes_ != 0; }
  [[nodiscard]] bool is_waiting() const noexcept { return !waiting_.empty(); }
  /// Posts waiting operations while there is room.
  void progress() noexcept;
  /// The next transfer whose last work request has retired, in start order; or null.
  [[nodiscard]] Operation* take_retired() noexcept {
    Operation* const oldest = posted_.first();
    if (oldest == nullptr || !pair_.sends().is_retired(oldest->last_position)) return nullptr;
    posted_.pop();
    finish(*oldest);
    return oldest;
  }
  /// Handles the completion of a piece that was not the last. True: its transfer was given up and ends with it.
  [[nodiscard]] bool on_piece(Operation& operation) noexcept;
  /// Call when nothing is in flight any more: frees what was in quarantine.
  void on_drained() noexcept;
  /// After `on_drained`: the next transfer that has not ended, in start order; or null.
  [[nodiscard]] Operation* take_unfinished() noexcept;

 protected:
  ~Transfers() { bounce_.forget(*this); }

 private:
  void on_chunk() noexcept override { progress(); }

  [[nodiscard]] Status check_place(const RemoteSpan& remote, std::uint32_t access) noexcept {
    if (pair_.reason() != Status::kOk) [[unlikely]]
      return pair_.reason();
    if (remote.length == 0) [[unlikely]]
      return Status::kBadArgument;
    return windows_.check(remote, access);
  }
  [[nodiscard]] Status check_read(const RemoteSpan& from, std::uint64_t local) noexcept {
    if (local < from.length) [[unlikely]]
      return Status::kBadArgument;
    const Status checked = check_place(from, IBV_ACCESS_REMOTE_READ);
    return checked == Status::kOk && max_reads_ == 0 ? Status::kUnsupported : checked;
  }
  /// Shortens `to` to the bytes that are written.
  [[nodiscard]] Status check_write(RemoteSpan& to, std::uint64_t local) noexcept {
    if (to.length < local) [[unlikely]]
      return Status::kBadArgument;
    to.length = local;
    return check_place(to, IBV_ACCESS_REMOTE_WRITE);
  }
  [[nodiscard]] Status check_word(const RemoteSpan& word) noexcept;
  /// The NIC's way past its queues, unless an operation is still waiting to be posted or a handler runs; else null.
  [[nodiscard]] const nic::Direct* direct() const noexcept {
    return waiting_.empty() && !pair_.loop().in_handler() ? pair_.direct() : nullptr;
  }
  /// The direct way of a WRITE of registered memory: bytes that a request would carry inline need no key.
  [[nodiscard]] nic::Direct::Move nic::Direct::* way_of_write(std::uint64_t bytes) const noexcept {
    return bytes <= most_inline_ ? &nic::Direct::write_plain : &nic::Direct::write;
  }
  /// Carries a checked READ or WRITE out through `direct`, in pieces that the NIC takes at once. kAgain: the first
  /// `done` bytes are done; post the rest.
  [[nodiscard]] Status move_now(nic::Direct::Move nic::Direct::* move, std::byte* local, std::uint32_t lkey,
                                const RemoteSpan& remote, std::uint64_t& done) noexcept;
  /// The same for calls that must be one piece, or nothing, with memory that need not be registered.
  [[nodiscard, gnu::always_inline]] Status move_whole_now(nic::Direct::Move nic::Direct::* move, std::byte* local,
                                                          const RemoteSpan& remote) noexcept {
    const nic::Direct* const now = direct();
    if (now == nullptr || !(now->*move)(pair_.get(), local, 0, remote.length, remote.address, remote.rkey)) [[unlikely]]
      return Status::kAgain;
    pair_.went_directly(remote.length);
    return Status::kOk;
  }
  template <Kind kKind>
  [[nodiscard]] Status check_spans(RemoteSpan& remote, std::uint64_t local) noexcept {
    return kKind == Kind::kRead ? check_read(remote, local) : check_write(remote, local);
  }
  template <Kind kKind>
  [[nodiscard]] Status start(const LocalSpan& local, RemoteSpan remote, std::uint64_t token) noexcept;
  template <Kind kKind>
  [[nodiscard]] Status move(const LocalSpan& local, RemoteSpan remote, const Patience& patience) noexcept;
  /// Null: max_operations are in flight.
  [[nodiscard]] Operation* begin(const Operation& operation) noexcept;
  [[nodiscard]] Status run(Operation operation, const Patience& patience, std::uint64_t* old = nullptr) noexcept;
  [[nodiscard]] Status give_up(Operation& operation) noexcept;
  void give_away(Operation& operation) noexcept;
  void finish_piece(Operation& operation) noexcept;
  void finish(Operation& operation) noexcept;
  [[nodiscard]] bool post_piece(Operation& operation) noexcept;
  [[nodiscard]] bool post_atomic(Operation& operation) noexcept;
  [[nodiscard]] std::byte* result_of(const Operation& operation) const noexcept {
    return results_ + operations_.slot_of(operation) * sizeof(std::uint64_t);
  }
  [[nodiscard]] bool is_inline(const Operation& operation, std::uint64_t bytes) const noexcept {
    return operation.kind == Kind::kWrite && bytes <= most_inline_;
  }
  /// Puts the next piece into a chunk and shortens `bytes` to it. False: no chunk is free.
  [[nodiscard]] bool fill_chunk(Operation& operation, std::uint32_t& bytes) noexcept;
  void empty_chunk(Operation& operation) noexcept;

  engine::QueuePair& pair_;
  Operations& operations_;
  Bounce& bounce_;
  engine::WindowTable windows_;
  // Both in start order.
  engine::Fifo<Operation> waiting_;  ///< Not fully posted.
  engine::Fifo<Operation>
      posted_;  ///< Fully posted. Their last requests complete in this order, so they need no id for it.
  std::uint32_t waiting_writes_ = 0;
  std::uint32_t reads_out_ = 0;
  std::uint32_t max_reads_ = 0;
  std::uint32_t max_message_ = 0;
  std::uint32_t most_inline_ = 0;
  bool has_atomics_ = false;
  std::byte* results_ = nullptr;  ///< Atomics' results, one word per slot.
  std::uint32_t results_lkey_ = 0;
  ibv_send_wr request_{};
  ibv_sge sge_{};
};

}  // namespace verbena::channel
