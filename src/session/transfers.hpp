// One-sided access of a session: transfers of other threads, and transfers started without waiting.
#pragma once

#include "channel/connection.hpp"
#include "session/calls.hpp"
#include "session/physical_peer.hpp"

#include <verbena/rdma_types.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace verbena::session {

/// \thread owner of the session's loop
class Transfers {
 public:
  /// Operations of the connection in flight at a time.
  static constexpr std::uint32_t kParts = 64;
  /// Started calls at a time, until the user takes their completions.
  static constexpr std::size_t kMostStarted = 64;
  /// Clear in all tokens of this class: it marks the session's own.
  static constexpr std::uint64_t kForeignToken = std::uint64_t{1} << 63;

  explicit Transfers(PhysicalPeer& physical)
      : physical_(physical), started_(std::make_unique<TransferCall[]>(kMostStarted)) {}

  /// The first part of `rest` that is one operation. Errors: as Connection's, for that part.
  [[nodiscard]] Status find(channel::Connection& connection, const Place& rest, RemoteSpan& part) noexcept {
    if (rest.space == Space::kPhysical) return physical_.find(connection, rest.span, part);
    part = rest.span;
    return Status::kOk;
  }
  void push(TransferCall& call) noexcept {
    call.number = ++last_number_;
    waiting_.push(call);
  }
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }
  /// The number of the transfer that came last; 0: none has come.
  [[nodiscard]] std::uint64_t last_number() const noexcept { return last_number_; }
  /// Whether a transfer up to this number is not with the connection as a whole.
  [[nodiscard]] bool is_any_waiting(std::uint64_t number) const noexcept {
    return !waiting_.empty() && waiting_.first()->number <= number;
  }
  /// Starts a call that nobody waits for, and keeps its completion. kAgain: kMostStarted are in flight or not taken.
  /// Other errors: why it cannot be started.
  [[nodiscard]] Status start(const Transfer& transfer, channel::Connection& connection) noexcept;
  /// Starts waiting calls while there is room.
  void progress(channel::Connection& connection) noexcept {
    if (!waiting_.empty()) start_waiting(connection);
  }
  void on_part(const channel::Completion& completion) noexcept;
  /// The caller is gone. False: its memory is with the NIC; only the end of the connection frees it.
  [[nodiscard]] bool cancel(TransferCall& call, channel::Connection& connection) noexcept;
  /// Starts nothing more; operations with the NIC end with the connection.
  void end(Status reason) noexcept;
  /// Whether no operation of the connection is in flight in users' memory.
  [[nodiscard]] bool is_quiet() const noexcept { return parts_ == 0; }

  /// Sets where completions go: to the queue, or to the handler.
  void set_delivery(rdma::Complete reads, rdma::Complete writes) noexcept {
    reads_ = reads;
    writes_ = writes;
  }
  void push(TakeCall& call) noexcept { takers_.push(call); }
  void cancel(TakeCall& call) noexcept { takers_.remove(call); }
  void feed_takers() noexcept {
    if (!takers_.empty()) hand_out();
  }
  /// For the handler. False: no completion is left.
  [[nodiscard]] bool take_for_handler(rdma::Completion& completion) noexcept;

 private:
  /// A call with parts in flight. Their token is the slot and its generation, so a completion for a call that is gone
  /// finds nothing.
  struct Slot {
    TransferCall* call = nullptr;
    std::uint32_t generation = 0;
  };
  static constexpr std::uint32_t kLastGeneration = (std::uint32_t{1} << 31) - 1;

  [[nodiscard]] std::uint64_t token_of(const TransferCall& call) const noexcept;
  void enter(TransferCall& call) noexcept;
  void leave(const TransferCall& call) noexcept;
  [[nodiscard]] TransferCall* find(std::uint64_t token) const noexcept;
  void hand_out() noexcept;
  void start_waiting(channel::Connection& connection) noexcept;
  /// kAgain: no room now.
  [[nodiscard]] Status start_part(TransferCall& call, channel::Connection& connection) noexcept;
  /// Starts no more of this call.
  void cut(TransferCall& call, Status status) noexcept;
  void finish(TransferCall& call) noexcept;
  /// Takes the completion of the oldest call.
  [[nodiscard]] static rdma::Completion take(CallQueue<TransferCall>& calls) noexcept;

  PhysicalPeer& physical_;
  CallQueue<TransferCall> waiting_;  ///< Not fully started.
  std::uint64_t last_number_ = 0;
  std::uint32_t parts_ = 0;  ///< In flight.
  std::array<Slot, kParts> slots_{};
  std::unique_ptr<TransferCall[]> started_;
  std::size_t under_way_ = 0;  ///< Entries of started_ that are not complete.
  rdma::Complete reads_ = rdma::Complete::kQueue;
  rdma::Complete writes_ = rdma::Complete::kQueue;
  CallQueue<TransferCall> to_take_;
  CallQueue<TransferCall> to_handler_;
  CallQueue<TakeCall> takers_;
};

}  // namespace verbena::session
