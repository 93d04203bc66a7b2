// Links of the typed API: who has a segment from the start of an operation to its end.
#include <verbena/typed.hpp>

#include "api/cxx/guarded.hpp"
#include "api/cxx/started.hpp"
#include "api/session.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace verbena::typed {
namespace detail {

/// The connection of a link, with what was started on it.
class LinkState final : public StartedOperations {
 public:
  explicit LinkState(std::unique_ptr<rdma::Connection> connection)
      : StartedOperations(Link::kMaxOperations, 1), connection_(std::move(connection)) {}

  /// Calls `begin(connection, cookie)`, and gives what that has started a slot.
  template <class Begin>
  [[nodiscard]] Started start(const char* call, Begin&& begin) noexcept {
    return StartedOperations::start(call, [&](std::uint64_t cookie) { return begin(*connection_, cookie); });
  }
  [[nodiscard]] Deadline default_deadline() const noexcept override;
  /// Ends the connection, and what is under way; this may be gone then.
  void close() noexcept;

 private:
  static constexpr std::chrono::seconds kDrain{2};
  static_assert(Link::kMaxOperations == kSlotsOfGroup && Link::kMaxOperations < rdma::Connection::kMaxStarted);

  ~LinkState() override = default;
  std::size_t collect_now() noexcept override;
  Status collect_until(Deadline deadline) noexcept override;
  void on_completion(const rdma::Completion& completion) noexcept;

  const std::unique_ptr<rdma::Connection> connection_;
};

void LinkState::on_completion(const rdma::Completion& completion) noexcept {
  // Else it is the user's own, started past the link.
  if (is_current(completion.cookie))
    complete(static_cast<std::uint32_t>(completion.cookie), {.value = completion.old, .status = completion.status});
}

std::size_t LinkState::collect_now() noexcept {
  std::array<rdma::Completion, 16> completions;
  const std::size_t count = connection_->poll(completions);
  std::ranges::for_each(std::span(completions).first(count),
                        [this](const rdma::Completion& each) { on_completion(each); });
  return count;
}

Status LinkState::collect_until(Deadline deadline) noexcept {
  const auto completion = connection_->complete(deadline);
  if (!completion) return completion.error();
  on_completion(*completion);
  return Status::kOk;
}

Deadline LinkState::default_deadline() const noexcept {
  const session::Session* const session = Inside::session(*connection_);
  return session != nullptr ? session->default_patience().begin() : Deadline::now();
}

void LinkState::close() noexcept {
  {
    const Turn turn(*this);
    // Another thread would go on with a connection that is gone.
    VERBENA_CHECK(static_cast<bool>(turn));
    session::Session* const session = Inside::session(*connection_);
    const bool is_in_callback = session != nullptr && api::is_in_callback(*session);
    if (is_in_callback && is_any_under_way()) {
      // There the connection's own end does not wait for the NIC.
      session->stop_in_callback();
      const Deadline limit = Deadline::after(kDrain);
      while (is_any_under_way()) {
        const auto completion = connection_->complete(limit);
        if (!completion) break;
        on_completion(*completion);
      }
    }
    connection_->close();
    if (!is_in_callback) complete_all(Status::kClosed);
  }
  end();
}

Status refuse_call(const char* call, bool is_open, rdma::Access lacking) noexcept {
  return is_open ? refuse_right(call, lacking) : note(Status::kClosed, call, "the link has no connection");
}

}  // namespace detail

// --- links --------------------------------------------------------------------------------------------------------

using detail::Started;

Link::~Link() { close(); }

Result<Link> Link::over(std::unique_ptr<rdma::Connection> connection) {
  constexpr const char* kCall = "typed::Link::over";
  return api::guarded(kCall, [&]() -> Result<Link> {
    if (connection == nullptr) return fail(Status::kBadArgument, kCall, 0, "connection must not be null");
    Link link;
    link.connection_ = connection.get();
    link.state_ = new detail::LinkState(std::move(connection));
    return link;
  });
}

void Link::close() noexcept {
  const CancellationHeld held;
  connection_ = nullptr;
  if (detail::LinkState* const state = std::exchange(state_, nullptr); state != nullptr) state->close();
}

Result<rdma::Window> Link::find_window(std::string_view name, const std::optional<Deadline>& deadline) {
  if (connection_ == nullptr) return fail(Status::kClosed, "typed::Link::find", 0, "the link has no connection");
  return connection_->find(name, deadline);
}

Status Link::write_and_tell(const rdma::Local& from, const rdma::Remote& to, std::uint32_t immediate,
                            const std::optional<Deadline>& deadline) noexcept {
  constexpr const char* kCall = "typed::Link::write_with_immediate";
  if (connection_ == nullptr) return detail::refuse_call(kCall, false, rdma::Access::kWrite);
  if (from.size() == 0) return note(Status::kBadArgument, kCall, "from must have at least one element; got none");
  const rdma::Window window = connection_->peer_window();
  const std::uint64_t offset = to.address - window.address;  // Wraps around for what is in front of it.
  const bool is_inside = to.rkey == window.rkey && offset <= window.length && to.length <= window.length - offset;
  if (!is_inside || to.length < from.size())
    return note(Status::kOutOfRange, kCall, "{} bytes at {:#x} must be inside the peer's own window, and hold {} bytes",
                to.length, to.address, from.size());
  return connection_->write_with_immediate(from.bytes(), immediate, offset, deadline);
}

std::expected<Received, Status> Link::receive_bytes(std::span<std::byte> to, std::size_t element_bytes,
                                                    const std::optional<Deadline>& deadline) noexcept {
  constexpr const char* kCall = "typed::Link::receive";
  if (connection_ == nullptr) return std::unexpected(detail::refuse_call(kCall, false, rdma::Access::kLocal));
  const auto message = connection_->receive(to, deadline);
  if (!message) return std::unexpected(message.error());
  Received received{.kind = message->kind, .immediate = message->immediate};
  const std::size_t bytes = message->data.size();
  const bool is_in_window = message->kind == rdma::Message::Kind::kWritten && bytes != 0;
  const std::size_t offset =
      is_in_window ? static_cast<std::size_t>(message->data.data() - connection_->window().data()) : 0;
  if (bytes % element_bytes != 0 || offset % element_bytes != 0)
    return std::unexpected(note(Status::kBadArgument, kCall,
                                "the peer sent {} bytes, at offset {}, and elements have {} bytes: the message is gone",
                                bytes, offset, element_bytes));
  received.first = offset / element_bytes;
  received.count = bytes / element_bytes;
  return received;
}

Started Link::begin_read(const rdma::Local& to, const rdma::Remote& from) noexcept {
  return state_->start("typed::Link::start_read", [&](rdma::Connection& connection, std::uint64_t cookie) {
    return connection.start_read(to, from, cookie);
  });
}
Started Link::begin_write(const rdma::Local& from, const rdma::Remote& to) noexcept {
  return state_->start("typed::Link::start_write", [&](rdma::Connection& connection, std::uint64_t cookie) {
    return connection.start_write(from, to, cookie);
  });
}
Started Link::begin_fetch_add(const rdma::Remote& word, std::uint64_t delta) noexcept {
  return state_->start("typed::Link::start_fetch_add", [&](rdma::Connection& connection, std::uint64_t cookie) {
    return connection.start_fetch_add(word, delta, cookie);
  });
}
Started Link::begin_compare_swap(const rdma::Remote& word, std::uint64_t expected, std::uint64_t desired) noexcept {
  return state_->start("typed::Link::start_compare_swap", [&](rdma::Connection& connection, std::uint64_t cookie) {
    return connection.start_compare_swap(word, expected, desired, cookie);
  });
}

std::size_t Link::quarantined() const noexcept { return state_ != nullptr ? state_->quarantined() : 0; }

Status Link::settle(Deadline deadline) noexcept {
  return state_ != nullptr ? state_->settle(deadline, "typed::Link::settle") : Status::kOk;
}

}  // namespace verbena::typed
