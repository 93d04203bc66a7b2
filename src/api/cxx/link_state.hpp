// The state of a link: its connection, and a slot for each operation that it has started.
#pragma once

#include "api/cxx/started.hpp"
#include "api/session.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
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
  /// The same for a message of kind `Call`, which `fill` makes ready.
  template <class Call, class Fill>
  [[nodiscard]] Started start_message(const char* call, std::size_t element_bytes, Fill&& fill) noexcept;
  [[nodiscard]] bool receives() const noexcept { return session() == nullptr || session()->receives(); }
  [[nodiscard]] Deadline default_deadline() const noexcept override;
  using StartedOperations::settle;
  /// Ends the connection, and what is under way; this may be gone then.
  void close() noexcept;

  // --- for coroutines. \thread their loop's
  /// kUnsupported: it is a message.
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

  /// A message that was started. The session has it until it is done.
  struct Message {
    std::variant<std::monostate, session::SendCall, session::ReceiveCall> call;
    std::size_t element_bytes = 0;  ///< Receives.

    [[nodiscard]] session::ReceiveCall* receive() noexcept { return std::get_if<session::ReceiveCall>(&call); }
    [[nodiscard]] session::Call& any() noexcept {
      auto* const send = std::get_if<session::SendCall>(&call);
      return send != nullptr ? static_cast<session::Call&>(*send) : *receive();
    }
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

template <class Call, class Fill>
Started LinkState::start_message(const char* call, std::size_t element_bytes, Fill&& fill) noexcept {
  Started started = StartedOperations::start(call, [&](std::uint64_t cookie) {
    if (session() == nullptr) return note(Status::kClosed, call, "the connection was closed");
    const auto slot = static_cast<std::uint32_t>(cookie);
    Message& message = messages_[slot];
    Call& made = message.call.template emplace<Call>();
    message.element_bytes = element_bytes;
    fill(made);
    Status begun = session()->begin(made, nullptr);
    if (begun == Status::kOk && made.done() && damage_of(made.status) >= Damage::kConnection) begun = made.status;
    if (begun != Status::kOk) return api::note_general(*session(), call, begun);
    messages_started_.fetch_or(std::uint64_t{1} << slot, std::memory_order_relaxed);
    return begun;
  });
  if (started.is_under_way()) (void)started.poll();
  return started;
}

}  // namespace verbena::typed::detail
