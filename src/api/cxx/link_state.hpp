// The state of a link: its connection, and a slot for each operation that it has started.
#pragma once

#include "api/cxx/started.hpp"
#include "api/session.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>

namespace verbena::typed::detail {

/// A message in elements; kBadArgument: it has no whole number of them. `window` is this side's.
[[nodiscard]] std::expected<Received, Status> elements_of(const char* call, const rdma::Message& message,
                                                          const std::byte* window, std::size_t element_bytes) noexcept;

/// The connection of a link, with what was started on it.
class LinkState final : public StartedOperations, public coroutine::detail::Driven {
 public:
  explicit LinkState(std::unique_ptr<rdma::Connection> connection);

  /// Calls `begin(connection, cookie)`, and gives what that has started a slot.
  template <class Begin>
  [[nodiscard]] Started start(const char* call, Begin&& begin) noexcept {
    return StartedOperations::start(call, [&](std::uint64_t cookie) { return begin(*connection_, cookie); });
  }
  /// The same for messages.
  [[nodiscard]] Started start_send(const char* call, std::span<const std::byte> from,
                                   std::optional<std::uint32_t> immediate) noexcept;
  [[nodiscard]] Started start_receive(const char* call, std::span<std::byte> to, std::size_t element_bytes) noexcept;
  /// Writes into the peer's own window at `offset`, and tells it.
  [[nodiscard]] Started start_write_and_tell(const char* call, const rdma::Local& from, const rdma::Remote& to,
                                             std::size_t offset, std::uint32_t immediate) noexcept;
  [[nodiscard]] bool receives() const noexcept { return session() == nullptr || session()->receives(); }
  [[nodiscard]] Deadline default_deadline() const noexcept override;
  using StartedOperations::settle;
  /// Ends the connection, and what is under way; this may be gone then.
  void close() noexcept;

  // --- for coroutines. \thread their loop's
  [[nodiscard]] Status await(std::uint32_t slot, coroutine::detail::Wait& wait) noexcept override;
  /// Null where a thread of the library drives the connection.
  [[nodiscard]] coroutine::detail::Driven* driven() noexcept override { return is_driven_by_callers_ ? this : nullptr; }
  [[nodiscard]] session::Session* session() const noexcept { return Inside::session(*connection_); }
  void look() noexcept override;
  void sleep(Deadline deadline) noexcept override;
  void wake() noexcept override;

 private:
  static constexpr std::chrono::seconds kDrain{2};
  static_assert(Link::kMaxOperations == kSlotsOfGroup && Link::kMaxOperations < rdma::Connection::kMaxStarted);

  /// A message that was started, or a WRITE and the message that tells of it. The session has it until it is done.
  struct Message;
  template <class Kind>
  struct CallOf : Kind {
    Message* message = nullptr;
  };
  struct Writing {
    CallOf<session::TransferCall> write;
    CallOf<session::SendCall> note;
  };
  struct Message {
    /// Whether its end was told. The thread that drives the session touches nothing of it after kTold.
    enum class Stage : std::uint8_t { kUnderWay, kOver, kTold };
    std::variant<std::monostate, CallOf<session::SendCall>, CallOf<session::ReceiveCall>, Writing> call;
    std::size_t element_bytes = 0;  ///< Receives.
    LinkState* link = nullptr;
    std::uint32_t slot = 0;
    std::atomic<Stage> stage{Stage::kUnderWay};

    [[nodiscard]] session::ReceiveCall* receive() noexcept { return std::get_if<CallOf<session::ReceiveCall>>(&call); }
    /// One that is not done, unless all are.
    [[nodiscard]] session::Call& any() noexcept;
    [[nodiscard]] bool is_over() noexcept { return any().done(); }
    /// Whether it is over, and nobody else touches it.
    [[nodiscard]] bool is_left() noexcept;
    /// Once it is over.
    [[nodiscard]] Status status() noexcept;
  };
  /// Takes completions as they come, in the thread that drives the connection, while a coroutine awaits one.
  struct Watch : session::TakeCall {
    LinkState* link = nullptr;
    session::Session* session = nullptr;
  };

  ~LinkState() override = default;
  std::size_t collect_now() noexcept override;
  Status collect_until(std::uint32_t slot, Deadline deadline) noexcept override;
  void on_abandon(std::uint32_t slot) noexcept override;
  void on_completion(const rdma::Completion& completion) noexcept;
  [[nodiscard]] std::size_t poll_transfers() noexcept;
  [[nodiscard]] bool has_message(std::uint32_t slot) const noexcept {
    return (messages_started_.load(std::memory_order_relaxed) >> slot & 1) != 0;
  }
  [[nodiscard]] bool is_done(std::uint32_t slot) noexcept;
  /// A call of a message has ended. \thread the one that drives the session
  template <class Kind>
  static void on_call(session::Call& call) noexcept;
  /// Starts what `begin(session, message)` begins.
  template <class Begin>
  [[nodiscard]] Started start_with_message(const char* call, Begin&& begin) noexcept;
  /// Completes the slots of messages that are done.
  std::size_t take_in_messages() noexcept;
  [[nodiscard]] End end_of(Message& message) noexcept;
  [[nodiscard]] Status start_watch() noexcept;
  void stop_watch() noexcept;
  static void on_watch(session::Call& call) noexcept;

  const std::unique_ptr<rdma::Connection> connection_;
  const std::byte* const window_;  ///< This side's.
  /// Slots of messages whose end was not taken in. Changed in a turn.
  std::atomic<std::uint64_t> messages_started_{0};
  std::array<Message, Link::kMaxOperations> messages_;
  const bool is_driven_by_callers_;
  Watch watch_;
  std::atomic<bool> is_watching_{false};
};

}  // namespace verbena::typed::detail
