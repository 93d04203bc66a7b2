// One-sided access of a session: transfers of other threads, and those that were started without waiting.
#pragma once

#include "channel/connection.hpp"
#include "session/calls.hpp"

#include <verbena/rdma_types.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace verbena::session {

/// Completions of what was started, until they are taken. \thread owner
class Completions {
 public:
  static constexpr std::size_t kMost = 64;
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  void push(const rdma::Completion& completion) noexcept { ring_[(first_ + count_++) % kMost] = completion; }
  [[nodiscard]] rdma::Completion pop() noexcept {
    --count_;
    return ring_[first_++ % kMost];
  }

 private:
  std::array<rdma::Completion, kMost> ring_{};
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

/// \thread owner of the session's loop
class Transfers {
 public:
  /// Operations of the connection under way at a time.
  static constexpr std::uint32_t kParts = 64;
  /// Set in no token of this class: the session's own are told from them by it.
  static constexpr std::uint64_t kForeignToken = std::uint64_t{1} << 63;

  /// Where a transfer's remote memory is.
  class Places {
   public:
    /// The part of `rest`, from its front, that is one operation. Errors: as Connection's, for that part.
    [[nodiscard]] virtual Status find(TransferCall::Space space, const channel::RemoteSpan& rest,
                                      channel::RemoteSpan& part) noexcept = 0;

   protected:
    ~Places() = default;
  };

  explicit Transfers(Places& places)
      : places_(places), started_(std::make_unique<TransferCall[]>(Completions::kMost)) {}

  void push(TransferCall& call) noexcept { waiting_.push(call); }
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }
  /// A call of nobody's, whose completion is kept: `like` it. kAgain: as many as Completions::kMost are under way, or
  /// not taken; or why it cannot be started.
  [[nodiscard]] Status start(const TransferCall& like, channel::Connection& connection) noexcept;
  /// Starts what there is room for.
  void progress(channel::Connection& connection) noexcept;
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
  void feed_takers() noexcept;
  /// For the handler. False: there is none.
  [[nodiscard]] bool take_for_handler(rdma::Completion& completion) noexcept;

 private:
  struct Part {
    TransferCall* call = nullptr;
    std::uint16_t generation = 0;
    std::uint32_t next_free = 0;
  };
  /// kAgain: there is no room now.
  [[nodiscard]] Status start_part(TransferCall& call, channel::Connection& connection) noexcept;
  /// Nothing more of it is started.
  void cut(TransferCall& call, Status status) noexcept;
  void finish(TransferCall& call) noexcept;
  [[nodiscard]] std::uint32_t take_part() noexcept;
  void free_part(std::uint32_t part) noexcept;
  [[nodiscard]] static std::uint64_t token_of(std::uint32_t part, std::uint16_t generation) noexcept {
    return part | std::uint64_t{generation} << 32;
  }

  Places& places_;
  CallQueue<TransferCall> waiting_;  ///< Not started to the end.
  std::array<Part, kParts> table_{};
  std::uint32_t first_free_ = 0;
  std::uint32_t fresh_ = 0;  ///< From here on no part was used yet.
  std::uint32_t parts_ = 0;  ///< In use.
  std::unique_ptr<TransferCall[]> started_;
  std::size_t untaken_ = 0;  ///< Entries of started_ that are under way, or complete and not taken.
  std::size_t under_way_ = 0;
  rdma::Complete reads_ = rdma::Complete::kQueue;
  rdma::Complete writes_ = rdma::Complete::kQueue;
  Completions to_take_;
  Completions to_handler_;
  CallQueue<TakeCall> takers_;
};

}  // namespace verbena::session
