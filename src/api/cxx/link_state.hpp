// What a link is made of: its connection, and a slot for each operation that it has started.
#pragma once

#include <verbena/coroutine_loop.hpp>
#include <verbena/typed.hpp>

#include "api/session.hpp"
#include "base/failure.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace verbena::typed::detail {

/// A message in elements; kBadArgument: it has no whole number of them. `window` is this side's.
[[nodiscard]] std::expected<Received, Status> elements_of(const char* call, const rdma::Message& message,
                                                          const std::byte* window, std::size_t element_bytes) noexcept;

/// The connection of a link, and a slot for each operation that was started and whose end nobody has taken. It lasts
/// until the link is closed and no slot is used: one word counts both.
class LinkState final : public coroutine::detail::Driven {
 public:
  explicit LinkState(std::unique_ptr<rdma::Connection> connection) noexcept;
  LinkState(const LinkState&) = delete;
  LinkState& operator=(const LinkState&) = delete;

  [[nodiscard]] rdma::Connection& connection() const noexcept { return *connection_; }

  /// Calls `begin(connection, cookie)`, and gives what that has started a slot.
  template <class Begin>
  [[nodiscard]] Started start(const char* call, Begin&& begin) noexcept;
  /// Whether the operation of `slot` is complete: `status` and `old` then, and the slot is free.
  [[nodiscard]] bool take(std::uint32_t slot, Status& status, std::uint64_t& old) noexcept;
  /// Whoever had the operation has gone: its claim stays until it is complete.
  void abandon(std::uint32_t slot, Claim&& claim) noexcept;
  /// Takes completions in. kBusy: another thread does; kTimedOut: none came.
  [[nodiscard]] Status collect(Deadline deadline, const char* call) noexcept;
  [[nodiscard]] Deadline deadline_or_default(const std::optional<Deadline>& deadline) const noexcept;
  [[nodiscard]] std::uint32_t quarantined() const noexcept { return quarantined_.load(std::memory_order_acquire); }
  /// Ends the connection, and what is under way; this may be gone then.
  void close() noexcept;

  // --- for coroutines. \thread their loop's
  /// Has `wait` told of the end of `slot`, which is under way. kOk: it is or will be told; kAgain: it is complete;
  /// kBusy: another thread uses the connection, or another loop the link.
  [[nodiscard]] Status await(std::uint32_t slot, coroutine::detail::Wait& wait) noexcept;
  /// False: it was told.
  [[nodiscard]] bool stop_awaiting(std::uint32_t slot) noexcept;
  /// Null where a thread of the library drives the connection.
  [[nodiscard]] coroutine::detail::Driven* driven() noexcept { return is_driven_by_callers_ ? this : nullptr; }
  [[nodiscard]] session::Session* session() const noexcept { return Inside::session(*connection_); }
  void look() noexcept override;
  void sleep(Deadline deadline) noexcept override;
  void wake() noexcept override;

 private:
  enum class State : std::uint8_t {
    kUnderWay,
    kAwaited,  ///< Under way, and a coroutine is to be told.
    kTelling,  ///< It is just being told; kComplete follows.
    kComplete,
    kAbandoned
  };
  /// Takes completions as they come, in the thread that drives the connection, while a coroutine awaits one.
  struct Watch : session::TakeCall {
    LinkState* link = nullptr;
    session::Session* session = nullptr;
  };
  struct Slot {
    std::atomic<State> state{State::kComplete};
    Status status = Status::kOk;
    std::uint32_t generation = 0;
    std::uint64_t old = 0;
    Claim claim;                              ///< kAbandoned: in quarantine.
    coroutine::detail::Wait* wait = nullptr;  ///< kAwaited.
  };
  static constexpr std::uint64_t kOpen = std::uint64_t{1} << Link::kMaxOperations;
  static constexpr std::chrono::seconds kDrain{2};
  static_assert(Link::kMaxOperations == 63 && Link::kMaxOperations < rdma::Connection::kMaxStarted);

  /// The thread that starts operations, or takes in their ends.
  class Turn {
   public:
    explicit Turn(std::atomic<bool>& flag) noexcept
        : flag_(flag), is_mine_(!flag.exchange(true, std::memory_order_acquire)) {}
    ~Turn() {
      if (is_mine_) flag_.store(false, std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const noexcept { return is_mine_; }

   private:
    std::atomic<bool>& flag_;
    const bool is_mine_;
  };
  static Status refuse_turn(const char* call) noexcept {
    return note(Status::kBusy, call, "another thread uses operations of this link: let one do so at a time");
  }

  [[nodiscard]] std::uint64_t cookie_of(std::uint32_t slot) const noexcept {
    return std::uint64_t{slots_[slot].generation} << 32 | slot;
  }
  [[nodiscard]] bool is_used(std::uint32_t slot) const noexcept {
    return (used_.load(std::memory_order_acquire) >> slot & 1) != 0;
  }
  [[nodiscard]] bool is_any_under_way() const noexcept;
  std::size_t collect_now() noexcept;
  void on_completion(const rdma::Completion& completion) noexcept;
  void complete(std::uint32_t slot, Status status, std::uint64_t old) noexcept;
  [[nodiscard]] Status start_watch() noexcept;
  void stop_watch() noexcept;
  static void on_watch(session::Call& call) noexcept;
  [[nodiscard]] bool is_any_awaited() const noexcept;
  void free(std::uint32_t slot) noexcept { let_go(std::uint64_t{1} << slot); }
  /// Don't touch this object afterwards, unless something else is held.
  void let_go(std::uint64_t bit) noexcept {
    if (used_.fetch_and(~bit, std::memory_order_acq_rel) == bit) delete this;
  }

  const std::unique_ptr<rdma::Connection> connection_;
  std::atomic<std::uint64_t> used_{kOpen};  ///< A bit for each slot, and kOpen for the link.
  std::atomic<bool> is_in_turn_{false};
  std::atomic<std::uint32_t> quarantined_{0};
  std::array<Slot, Link::kMaxOperations> slots_;
  const bool is_driven_by_callers_;
  Watch watch_;
  std::atomic<bool> is_watching_{false};
};

}  // namespace verbena::typed::detail
