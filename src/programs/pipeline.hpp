// Many operations of one client in flight, each with a buffer of its own.
#pragma once

#include <verbena/kv.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace verbena::programs {

/// Added to a client's own timeout, which thus ends first: see Pipeline.
inline constexpr std::chrono::milliseconds kExtraPatience{2000};

/// `depth` slots over a client. Their buffers are registered memory if the client has it; otherwise plain memory below
/// the eager limit, whose values the client copies. \thread owner of the client
class Pipeline {
 public:
  struct Slot {
    std::span<std::byte> buffer;
    std::size_t item = 0;     ///< For the caller: what the operation is about.
    std::size_t length = 0;   ///< For the caller: bytes of the buffer in use.
    std::uint64_t begin = 0;  ///< For the caller: a point in time.
  };

  /// `slot_bytes` is the wanted size of a slot; `slot_bytes()` returns the actual one. If the client completes nothing
  /// for `patience`, it counts as broken; make that longer than its own timeout, which should end first.
  Pipeline(kv::Client& client, unsigned depth, std::size_t slot_bytes, std::chrono::milliseconds patience)
      : client_(client), slots_(std::max(depth, 1U)), patience_(patience) {
    constexpr std::size_t kLine = 64;
    const std::size_t wanted = (std::max<std::size_t>(slot_bytes, 1) + kLine - 1) / kLine * kLine;
    std::span<std::byte> memory = client.allocate(wanted * slots_.size());
    slot_bytes_ = wanted;
    if (memory.empty()) {
      slot_bytes_ = std::min(wanted, kv::kEagerBytes - kLine);
      plain_.resize(slot_bytes_ * slots_.size());
      memory = plain_;
    }
    free_.reserve(slots_.size());
    for (std::size_t i = slots_.size(); i-- > 0;) {
      slots_[i].buffer = memory.subspan(i * slot_bytes_, slot_bytes_);
      free_.push_back(&slots_[i]);
    }
  }

  [[nodiscard]] std::size_t slot_bytes() const noexcept { return slot_bytes_; }
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  /// Marks the connection as unusable.
  void set_broken() noexcept { broken_ = true; }
  [[nodiscard]] std::uint64_t cookie_of(const Slot& slot) const noexcept {
    return static_cast<std::uint64_t>(&slot - slots_.data());
  }

  /// Takes a free slot; null: none is free. Give it to an operation (with its cookie), or back.
  [[nodiscard]] Slot* take() noexcept {
    if (free_.empty()) return nullptr;
    Slot* const slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(Slot& slot) noexcept { free_.push_back(&slot); }  // Never grows: reserved for all.

  /// Takes current completions: calls settle(slot, outcome) for each and frees the slot afterwards. `settle` must not
  /// call this object.
  template <class Settle>
  void reap(Settle&& settle) {
    const std::size_t count = client_.poll(completions_);
    for (const kv::Completion& completion : std::span(completions_).first(count)) {
      if (completion.cookie >= slots_.size()) continue;
      Slot& slot = slots_[static_cast<std::size_t>(completion.cookie)];
      settle(slot, completion.outcome);
      give_back(slot);
    }
    count == 0 ? note_idle() : note_progress();
  }

  /// Calls `operation` (a start_put or start_get); repeats it after completions while it returns kAgain, because the
  /// server may allow fewer operations in flight than there are slots.
  template <class Operation, class Settle>
  [[nodiscard]] Status start(Operation&& operation, Settle&& settle) {
    Status status = operation();
    while (status == Status::kAgain && client_.in_flight() != 0 && !broken_) {
      reap(settle);
      status = operation();
    }
    return status;
  }

  /// Waits for a free slot; null: the connection broke.
  template <class Settle>
  [[nodiscard]] Slot* await_free(Settle&& settle) {
    Slot* slot = take();
    while (slot == nullptr && !broken_) {
      reap(settle);
      slot = take();
    }
    return slot;
  }

  /// Waits until nothing is in flight, or the connection broke.
  template <class Settle>
  void drain(Settle&& settle) {
    while (client_.in_flight() != 0 && !broken_) reap(settle);
    // A failure that broke the connection also completes operations in flight.
    if (broken_) reap(settle);
  }

 private:
  void note_progress() noexcept { idle_polls_ = 0; }

  void note_idle() noexcept {
    // If client and server share a core, the server needs it now.
    constexpr std::uint32_t kYieldEvery = 1024, kLookEvery = 4096;
    ++idle_polls_;
    if (idle_polls_ == 1) give_up_ = Deadline::never();
    if (idle_polls_ % kYieldEvery == 0) std::this_thread::yield();
    if (idle_polls_ % kLookEvery != 0) return;
    if (give_up_.is_never()) give_up_ = Deadline::after(patience_);
    if (give_up_.passed() || client_.connection_error().status() != Status::kOk) broken_ = true;
  }

  kv::Client& client_;
  std::size_t slot_bytes_ = 0;
  std::vector<std::byte> plain_;
  std::vector<Slot> slots_;
  std::vector<Slot*> free_;
  std::array<kv::Completion, 64> completions_{};  // A member, because clearing it at each poll would show in a bench.
  std::chrono::milliseconds patience_;
  Deadline give_up_ = Deadline::never();
  std::uint32_t idle_polls_ = 0;
  bool broken_ = false;
};

}  // namespace verbena::programs
