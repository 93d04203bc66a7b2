// The state of a link: its connection, and a slot for each operation that it has started.
#pragma once

#include "api/cxx/started.hpp"
#include "api/session.hpp"

#include <array>
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

/// Begins a READ, WRITE or atomic, whose kind `transfer` has, as the calls of rdma::Connection do, and puts a failure
/// into words. Defined where they are.
[[nodiscard]] Status begin_transfer(session::Session& session, const char* call, const rdma::Local& here,
                                    const rdma::Remote& there, session::TransferCall& transfer,
                                    session::Call::Tell tell) noexcept;

class LinkState;
struct LinkCalls;
/// A call of an operation.
template <class Kind>
struct CallOf : Kind {
  LinkCalls* calls = nullptr;
};
/// A WRITE, and the message that tells of it.
struct Writing {
  CallOf<session::TransferCall> write;
  CallOf<session::SendCall> note;
};
/// The call or calls of an operation. The session has them until they are done.
struct LinkCalls {
  std::variant<CallOf<session::SendCall>, CallOf<session::ReceiveCall>, CallOf<session::TransferCall>, Writing> call;
  std::size_t element_bytes = 0;  ///< Receives.
  LinkState* link = nullptr;
  std::uint32_t slot = 0;

  [[nodiscard]] session::ReceiveCall* receive() noexcept { return std::get_if<CallOf<session::ReceiveCall>>(&call); }
  [[nodiscard]] session::TransferCall* transfer() noexcept { return std::get_if<CallOf<session::TransferCall>>(&call); }
  /// One that is not done, unless all are.
  [[nodiscard]] session::Call& any() noexcept;
  [[nodiscard]] bool are_done() noexcept { return any().done(); }
  /// Whether somebody is told of their end, or was. Once they have begun.
  [[nodiscard]] bool are_told() noexcept;
  /// Once they are done.
  [[nodiscard]] Status status() noexcept;
  template <class Kind>
  [[nodiscard]] CallOf<Kind>& emplace() noexcept;
};

/// The connection of a link, with a call for each operation that was started on it. The thread that drives the
/// connection ends the calls, and completes their slots.
class LinkState final : public StartedOperations, public coroutine::detail::Driven {
 public:
  explicit LinkState(std::unique_ptr<rdma::Connection> connection);

  [[nodiscard]] Started start_send(const char* call, std::span<const std::byte> from,
                                   std::optional<std::uint32_t> immediate) noexcept;
  [[nodiscard]] Started start_receive(const char* call, std::span<std::byte> to, std::size_t element_bytes) noexcept;
  /// A READ or WRITE.
  [[nodiscard]] Started start_transfer(const char* call, session::Transfer::Kind kind, const rdma::Local& here,
                                       const rdma::Remote& there) noexcept;
  [[nodiscard]] Started start_change(const char* call, const rdma::Remote& word,
                                     const session::Change& change) noexcept;
  /// Writes into the peer's own window at `offset`, and tells it.
  [[nodiscard]] Started start_write_and_tell(const char* call, const rdma::Local& from, const rdma::Remote& to,
                                             std::size_t offset, std::uint32_t immediate) noexcept;
  [[nodiscard]] bool receives() const noexcept { return session() == nullptr || session()->receives(); }
  [[nodiscard]] Deadline default_deadline() const noexcept override;
  using StartedOperations::settle;
  /// Ends the connection, and what is under way; this may be gone then.
  void close() noexcept;

  // --- for coroutines. \thread their loop's
  /// Null where a thread of the library drives the connection.
  [[nodiscard]] coroutine::detail::Driven* driven() noexcept override { return is_driven_by_callers_ ? this : nullptr; }
  [[nodiscard]] session::Session* session() const noexcept { return Inside::session(*connection_); }
  void look() noexcept override;
  void sleep(Deadline deadline) noexcept override;
  void wake() noexcept override;

 private:
  using Calls = LinkCalls;
  static constexpr std::chrono::seconds kDrain{2};
  static_assert(Link::kMaxOperations == kSlotsOfGroup);

  ~LinkState() override = default;
  void collect_now() noexcept override;
  Status collect_until(std::uint32_t slot, Deadline deadline) noexcept override;
  void on_abandon(std::uint32_t slot) noexcept override;
  void on_take(std::uint32_t slot, End& end) noexcept override;
  /// Starts what `begin(session, calls)` begins.
  template <class Begin>
  [[nodiscard]] Started start(const char* call, Begin&& begin) noexcept;
  /// A call has ended. \thread the one that drives the session
  template <class Kind>
  static void on_call(session::Call& call) noexcept;
  void complete_calls(Calls& calls) noexcept;
  /// Receives in quarantine take no message any more.
  void withdraw_abandoned() noexcept;

  const std::unique_ptr<rdma::Connection> connection_;
  const std::byte* const window_;  ///< This side's.
  std::array<Calls, Link::kMaxOperations> calls_;
  const bool is_driven_by_callers_;
};

}  // namespace verbena::typed::detail
