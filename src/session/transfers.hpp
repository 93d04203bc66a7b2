// One-sided access of a session: transfers of other threads, and those that were started without waiting.
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
  /// Operations of the connection under way at a time.
  static constexpr std::uint32_t kParts = 64;
  /// Started calls at a time, until their completions are taken.
  static constexpr std::size_t kMostStarted = 64;
  /// Set in no token of this class: the session's own are told from them by it.
  static constexpr std::uint64_t kForeignToken = std::uint64_t{1} << 63;

  explicit Transfers(PhysicalPeer& physical)
      : physical_(physical), started_(std::make_unique<TransferCall[]>(kMostStarted)) {}

  /// The part of `rest`, from its front, that is one operation. Errors: as Connection's, for that part.
  [[nodiscard]] Status find(channel::Connection& connection, const Place& rest, RemoteSpan& part) noexcept {
    if (rest.space == Space::kPhysical) return physical_.find(connection, rest.span, part);
    part = rest.span;
    return Status::kOk;
  }
  void push(TransferCall& call) noexcept { waiting_.push(call); }
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }
  /// A call of nobody's, whose completion is kept. kAgain: kMostStarted are under way, or not taken; or why it cannot
  /// be started.
  [[nodiscard]] Status start(const Transfer& transfer, channel::Connection& connection) noexcept;
  /// Starts what there is room for.
  void progress(channel::Connection& connection) noexcept {
    if (!waiting_.empty()) start_waiting(connection);
  }
  void on_part(const channel::Completion& completion) noexcept;
  /// The caller has gone. False: its memory is with the NIC; only the end of the connection frees it.
  [[nodiscard]] bool cancel(TransferCall& call, channel::Connection& connection) noexcept;
  /// Nothing is started any more; what is with the NIC ends with the connection.
  void end(Status reason) noexcept;
  /// Operations of the connection under way in the users' memory.
  [[nodiscard]] bool is_quiet() const noexcept { return parts_ == 0; }

  /// Where completions go: the queue, or the handler.
  void set_delivery(rdma::Complete reads, rdma::Complete writes) noexcept {
    reads_ = reads;
    writes_ = writes;
  }
  void push(TakeCall& call) noexcept { takers_.push(call); }
  void cancel(TakeCall& call) noexcept { takers_.remove(call); }
  void feed_takers() noexcept {
    if (!takers_.empty()) hand_out();
  }
  /// For the handler. False: there is none.
  [[nodiscard]] bool take_for_handler(rdma::Completion& completion) noexcept;

 private:
  /// A call with parts under way. Their token is the slot and its generation: what completes for a call that is gone
  /// finds nobody.
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
  /// kAgain: there is no room now.
  [[nodiscard]] Status start_part(TransferCall& call, channel::Connection& connection) noexcept;
  /// Nothing more of it is started.
  void cut(TransferCall& call, Status status) noexcept;
  void finish(TransferCall& call) noexcept;
  /// Takes the completion of the oldest call out.
  [[nodiscard]] static rdma::Completion take(CallQueue<TransferCall>& calls) noexcept;

  PhysicalPeer& physical_;
  CallQueue<TransferCall> waiting_;  ///< Not started to the end.
  std::uint32_t parts_ = 0;          ///< Under way.
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
