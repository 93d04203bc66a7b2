// One-sided access: READ, WRITE and atomics on the peer's memory, blocking or started and completed later.
#pragma once

#include "channel/bounce.hpp"
#include "channel/credits.hpp"
#include "channel/operations.hpp"
#include "channel/options.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::channel {

/// Every call returns kOk, or: kBadArgument (spans that do not fit each other, no bytes, a word that is not aligned),
/// kNotFound (no imported window has the key), kOutOfRange, kRemoteAccess (the window lacks the right), kUnsupported
/// (the device has none): nothing was posted; or why the connection is dead.
/// \thread owner of the loop, except import and release (setup, or owner)
class Transfers final : private Bounce::Waiter {
 public:
  Transfers(engine::QueuePair& pair, Credits& credits, Operations& operations, Bounce& bounce) noexcept;
  ~Transfers() { bounce_.forget(*this); }
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  /// Bytes of `open`'s memory.
  [[nodiscard]] static std::size_t bytes_for(const Options& options) noexcept {
    return options.max_operations * sizeof(std::uint64_t);
  }
  /// `memory` is this object's from then on, of which `begin` is the first byte.
  void open(const nic::Buffer& memory, std::byte* begin) noexcept {
    results_ = begin;
    results_lkey_ = memory.lkey();
    most_inline_ = std::min(pair_.max_inline(), engine::kHeldInlineBytes);
  }
  /// READs and atomics in flight, at most.
  void meet(std::uint32_t max_reads) noexcept { max_reads_ = max_reads; }

  // --- blocking. A handler gets kAgain. Past its deadline a call on registered memory fails the connection with
  // kTimedOut and drains it first, so that the memory is the caller's again when the call returns. A call on any other
  // memory leaves the connection alive: the chunks that it uses are in quarantine until the NIC is done with them.
  [[nodiscard]] Status read(LocalSpan to, RemoteSpan from, const Patience& patience) noexcept;
  [[nodiscard]] Status write(LocalSpan from, RemoteSpan to, const Patience& patience) noexcept;
  [[nodiscard]] Status read(std::span<std::byte> to, RemoteSpan from, const Patience& patience) noexcept;
  [[nodiscard]] Status write(std::span<const std::byte> from, RemoteSpan to, const Patience& patience) noexcept;
  [[nodiscard]] Status change(const Change& change, RemoteSpan word, std::uint64_t& old,
                              const Patience& patience) noexcept;

  // --- at once, where the NIC is made of software and nothing is ahead. kAgain, and nothing has happened: it is not
  // so.
  [[nodiscard]] Status read_now(const LocalSpan& to, const RemoteSpan& from) noexcept;
  [[nodiscard]] Status write_now(const LocalSpan& from, const RemoteSpan& to) noexcept;
  [[nodiscard]] Status read_now(std::span<std::byte> to, const RemoteSpan& from) noexcept;
  [[nodiscard]] Status write_now(std::span<const std::byte> from, const RemoteSpan& to) noexcept;
  [[nodiscard]] Status change_now(const Change& change, RemoteSpan word, std::uint64_t& old) noexcept;
  [[nodiscard]] Status read_list_now(std::span<const nic::PlainRead> reads, std::uint32_t rkey) noexcept;

  // --- started: see Connection.
  [[nodiscard]] Status start_read(LocalSpan to, RemoteSpan from, std::uint64_t token) noexcept;
  [[nodiscard]] Status start_write(LocalSpan from, RemoteSpan to, std::uint64_t token) noexcept;
  [[nodiscard]] Status start_read(std::span<std::byte> to, RemoteSpan from, std::uint64_t token) noexcept;
  [[nodiscard]] Status start_write(std::span<const std::byte> from, RemoteSpan to, std::uint64_t token) noexcept;
  [[nodiscard]] Status start_change(const Change& change, RemoteSpan word, std::uint64_t token) noexcept;
  [[nodiscard]] Status start_write_imm(LocalSpan from, RemoteSpan to, std::uint32_t immediate,
                                       std::uint64_t token) noexcept;
  /// Whoever started the operation with `token` has gone: its memory is not looked at from here on. False: it is on
  /// registered memory, which only a drain gives back.
  [[nodiscard]] bool abandon(std::uint64_t token) noexcept;

  // --- windows
  [[nodiscard]] Result<void> import(const nic::Window& window, Deadline deadline);
  [[nodiscard]] Result<void> release(const nic::Window& window);
  [[nodiscard]] engine::WindowTable& windows() noexcept { return windows_; }

  /// Whether a WRITE waits for room: what is sent must not overtake it.
  [[nodiscard]] bool is_write_waiting() const noexcept { return waiting_writes_ != 0; }
  [[nodiscard]] bool is_waiting() const noexcept { return !waiting_.empty(); }
  /// Posts what waits, as there is room.
  void progress() noexcept;
  /// The next transfer whose last work request has been retired, in the order of their starts; or kNoSlot.
  [[nodiscard]] std::uint32_t take_retired() noexcept {
    if (posted_.empty()) return kNoSlot;
    const std::uint32_t slot = posted_.first();
    if (!pair_.sends().is_retired(operations_[slot].last_position)) return kNoSlot;
    posted_.pop(operations_);
    finish(slot);
    return slot;
  }
  /// A piece that was not the last is complete. True: its transfer, which was given up, ends with it.
  [[nodiscard]] bool on_piece(std::uint32_t slot) noexcept;
  /// Nothing is in flight any more: what was in quarantine is free.
  void on_drained() noexcept;
  /// After it: the next transfer that has not ended, in the order of their starts; or kNoSlot.
  [[nodiscard]] std::uint32_t take_unfinished() noexcept;

 private:
  using Kind = Operation::Kind;
  void on_chunk() noexcept override { progress(); }

  /// Whether the check looks for a failure of the queue pair: `direct` does so by itself.
  enum class Look : std::uint8_t { kAtAll, kAtPlaces };
  template <Look kLook = Look::kAtAll>
  [[nodiscard]] Status check(const RemoteSpan& remote, std::uint32_t access) noexcept {
    if (kLook == Look::kAtAll && pair_.reason() != Status::kOk) [[unlikely]]
      return pair_.reason();
    if (remote.length == 0) [[unlikely]]
      return Status::kBadArgument;
    return windows_.check(remote, access);
  }
  template <Look kLook = Look::kAtAll>
  [[nodiscard]] Status check_read(const RemoteSpan& from, std::uint64_t local) noexcept {
    if (local < from.length) [[unlikely]]
      return Status::kBadArgument;
    const Status checked = check<kLook>(from, IBV_ACCESS_REMOTE_READ);
    return checked == Status::kOk && max_reads_ == 0 ? Status::kUnsupported : checked;
  }
  /// Cuts `to` to what is written.
  template <Look kLook = Look::kAtAll>
  [[nodiscard]] Status check_write(RemoteSpan& to, std::uint64_t local) noexcept {
    if (to.length < local) [[unlikely]]
      return Status::kBadArgument;
    to.length = local;
    return check<kLook>(to, IBV_ACCESS_REMOTE_WRITE);
  }
  [[nodiscard]] Status check_word(const RemoteSpan& word) noexcept;
  /// The NIC's way past its queues, for what nothing is ahead of that is not posted; or null.
  [[nodiscard]] const nic::Direct* direct() const noexcept {
    return waiting_.empty() && !pair_.loop().in_handler() ? pair_.direct() : nullptr;
  }
  /// Carries a checked READ or WRITE out that way, in pieces that the NIC takes at once. kAgain: `done` bytes of it,
  /// and the rest is to be posted.
  [[nodiscard]] Status move_now(nic::Direct::Move nic::Direct::* move, std::byte* local, std::uint32_t lkey,
                                const RemoteSpan& remote, std::uint64_t& done) noexcept;
  /// The same for calls that are one piece, or nothing.
  [[nodiscard]] Status move_whole_now(nic::Direct::Move nic::Direct::* move, std::byte* local, std::uint32_t lkey,
                                      const RemoteSpan& remote) noexcept;
  [[nodiscard]] Status start(const Operation& operation) noexcept;
  [[nodiscard]] Status run(Operation operation, const Patience& patience, std::uint64_t* old = nullptr) noexcept;
  [[nodiscard]] Status give_up(std::uint32_t slot) noexcept;
  void abandon_slot(std::uint32_t slot) noexcept;
  void finish(std::uint32_t slot) noexcept;
  [[nodiscard]] bool post_piece(std::uint32_t slot) noexcept;
  [[nodiscard]] bool post_atomic(std::uint32_t slot) noexcept;
  [[nodiscard]] bool is_inline(const Operation& operation, std::uint64_t bytes) const noexcept {
    return operation.kind == Kind::kWrite && bytes <= most_inline_;
  }
  /// Puts the next piece into a chunk, and cuts it to that. False: none is free.
  [[nodiscard]] bool fill_chunk(Operation& operation, std::uint32_t& bytes) noexcept;
  void empty_chunk(Operation& operation) noexcept;

  engine::QueuePair& pair_;
  Credits& credits_;
  Operations& operations_;
  Bounce& bounce_;
  engine::WindowTable windows_;
  // Both in the order they were started.
  SlotQueue waiting_;  ///< Not posted to the end.
  SlotQueue posted_;   ///< Posted to the end. Their last requests complete in this order, and need no id for it.
  std::uint32_t waiting_writes_ = 0;
  std::uint32_t reads_out_ = 0;
  std::uint32_t max_reads_ = 0;
  const std::uint32_t max_message_;
  std::uint32_t most_inline_ = 0;
  const bool has_atomics_;
  std::byte* results_ = nullptr;  ///< What atomics find, a word for each slot.
  std::uint32_t results_lkey_ = 0;
  ibv_send_wr request_{};
  ibv_sge sge_{};
};

}  // namespace verbena::channel
