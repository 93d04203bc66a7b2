// Awaitable operations on segments: what typed::Link does, with the coroutine suspended instead of the thread.
#pragma once

#include <verbena/coroutine_task.hpp>
#include <verbena/typed.hpp>

#include <array>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

// The library's own; opaque here.
namespace verbena::session {
class Session;
}

/// Every awaitable takes the segment, and gives it back with the status: kOk, and what the blocking call of typed::Link
/// returns; or kTimedOut (its deadline; without one Options::timeout), kCancelled (its scope), kBusy (another thread
/// than the loop's, or one that uses the link), kLimit (LoopOptions::waits wait). Operations that have begun by then go
/// on, and its segment is in quarantine until the NIC is done; so is that of an awaitable that is destroyed. The
/// connection lives on. Messages go through memory of the library's: their segments come back in any case. \alloc none
///
/// A link is used by one loop at a time. On a connection that this thread drives (a client without a handler) reads,
/// writes and atomics that the NIC carries out at once suspend nobody; every 64th lets the others go first. A window of
/// the peer that was not found before (Link::find) is asked for while the thread waits.
namespace verbena::coroutine {

/// For operations on a segment.
template <class Part>
struct Refusal<typed::Outcome<Part>> {
  /// Without a segment.
  [[nodiscard]] static typed::Outcome<Part> of(Status status) noexcept { return {.status = status, .segment = {}}; }
};

/// A message that was awaited.
template <typed::Element T>
struct [[nodiscard]] Arrived {
  Status status = Status::kOk;  ///< kOk or an error; see typed::Link::receive.
  typed::Segment<T> segment{};  ///< The segment that it was awaited with; the elements of the message are in front.
  typed::Received received{};   ///< kOk: the message.
  std::size_t waiting = 0;      ///< kBufferTooSmall: elements that the message needs, which stays queued.
};

/// For messages.
template <typed::Element T>
struct Refusal<Arrived<T>> {
  /// Without a segment.
  [[nodiscard]] static Arrived<T> of(Status status) noexcept {
    return {.status = status, .segment = {}, .received = {}, .waiting = 0};
  }
};

namespace detail {

/// A message that a coroutine sends: bytes, or word of what was written into the peer's window.
struct Outgoing {
  std::span<const std::byte> bytes{};
  std::optional<std::uint32_t> immediate{};
  std::optional<std::size_t> written_at{};  ///< Offset in the window: it tells of what was written there.
  std::size_t written_bytes = 0;
};

/// Waits for something of a link's. Each of the three ways to begin returns whether it waits.
class LinkWait : public Awaitable, public Wait {
 protected:
  LinkWait() noexcept = default;
  ~LinkWait() override { leave(); }

  /// Whether nothing may begin; `status` says why.
  [[nodiscard]] bool is_refused() noexcept {
    status_ = context().loop->refuses(context().scope);
    return status_ != Status::kOk;
  }
  [[nodiscard]] bool goes_on() noexcept { return context().loop->goes_on(); }
  void let_others_go(std::coroutine_handle<> awaiting) noexcept { yield(context(), awaiting); }

  [[nodiscard]] bool await_operation(typed::detail::Started& started, std::coroutine_handle<> awaiting,
                                     const std::optional<Deadline>& deadline) noexcept;
  [[nodiscard]] bool await_send(const typed::Link& link, const Outgoing& message, std::coroutine_handle<> awaiting,
                                const std::optional<Deadline>& deadline) noexcept;
  [[nodiscard]] bool await_receive(const typed::Link& link, std::span<std::byte> to, std::coroutine_handle<> awaiting,
                                   const std::optional<Deadline>& deadline) noexcept;

  /// For an operation: why it could not be awaited, or was not awaited to its end; else kOk.
  [[nodiscard]] Status status() const noexcept { return status_ != Status::kOk ? status_ : ended(); }
  [[nodiscard]] Status sent() noexcept;
  /// The message that was received, in elements; `waiting` with kBufferTooSmall.
  [[nodiscard]] std::expected<typed::Received, Status> received(std::size_t element_bytes,
                                                                std::size_t& waiting) noexcept;

 private:
  enum class What : std::uint8_t { kNothing, kOperation, kSend, kReceive };
  struct Sending;
  struct Receiving;
  [[nodiscard]] bool withdraw() noexcept override;
  template <class Kind>
  [[nodiscard]] Kind& call() noexcept;
  template <class Kind>
  [[nodiscard]] bool await_call(const typed::Link& link, What what, std::coroutine_handle<> awaiting,
                                const std::optional<Deadline>& deadline) noexcept;

  What what_ = What::kNothing;
  Status status_ = Status::kOk;
  typed::detail::Started* started_ = nullptr;
  session::Session* session_ = nullptr;
  const std::byte* window_ = nullptr;  ///< This side's.
  alignas(8) std::array<std::byte, 152> call_;
};

/// A read or write.
template <class Part, class Remote, bool kIsRead>
class [[nodiscard]] TransferWait : public LinkWait {
 public:
  TransferWait(typed::Link& link, Part&& part, const Remote& remote, const std::optional<Deadline>& deadline) noexcept
      : link_(link), part_(std::move(part)), remote_(remote), deadline_(deadline) {}
  ~TransferWait() override { leave(); }
  TransferWait(const TransferWait&) = delete;
  TransferWait& operator=(const TransferWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept {
    if (is_refused()) [[unlikely]]
      return true;
    is_done_ = typed::detail::Inside::move_now<kIsRead>(link_, part_, remote_);
    return is_done_ && goes_on();
  }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    if (is_done_) return let_others_go(awaiting), true;
    if constexpr (kIsRead) {
      operation_.emplace(link_.start_read(std::move(part_), remote_));
    } else {
      operation_.emplace(link_.start_write(std::move(part_), remote_));
    }
    return await_operation(typed::detail::Inside::started(*operation_), awaiting, deadline_);
  }
  [[nodiscard]] typed::Outcome<Part> await_resume() noexcept {
    if (is_done_) [[likely]]
      return {.status = Status::kOk, .segment = std::move(part_)};
    if (!operation_) return {.status = status(), .segment = std::move(part_)};
    if (status() == Status::kOk) return std::move(*operation_).finish(Deadline::now());
    operation_.reset();  // Into quarantine.
    return {.status = status(), .segment = {}};
  }

 private:
  typed::Link& link_;
  Part part_;
  Remote remote_;
  std::optional<Deadline> deadline_;
  std::optional<typed::Operation<Part>> operation_;
  bool is_done_ = false;
};

/// An operation that was started before.
template <class Part>
class [[nodiscard]] FinishWait : public LinkWait {
 public:
  FinishWait(typed::Operation<Part>&& operation, const std::optional<Deadline>& deadline) noexcept
      : operation_(std::move(operation)), deadline_(deadline) {}
  ~FinishWait() override { leave(); }
  FinishWait(const FinishWait&) = delete;
  FinishWait& operator=(const FinishWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept { return !operation_->is_under_way() || is_refused(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    return await_operation(typed::detail::Inside::started(*operation_), awaiting, deadline_);
  }
  [[nodiscard]] typed::Outcome<Part> await_resume() noexcept {
    if (status() == Status::kOk) return std::move(*operation_).finish(Deadline::now());
    operation_.reset();
    return {.status = status(), .segment = {}};
  }

 private:
  std::optional<typed::Operation<Part>> operation_;
  std::optional<Deadline> deadline_;
};

/// An atomic.
class [[nodiscard]] AtomicWait : public LinkWait {
 public:
  /// A sum, or a swap if `expected` is there.
  struct Change {
    std::uint64_t operand;
    std::optional<std::uint64_t> expected{};
  };
  AtomicWait(typed::Link& link, const typed::RemoteSegment<std::uint64_t>& word, const Change& change,
             const std::optional<Deadline>& deadline) noexcept
      : link_(link), word_(word), change_(change), deadline_(deadline) {}
  ~AtomicWait() override { leave(); }
  AtomicWait(const AtomicWait&) = delete;
  AtomicWait& operator=(const AtomicWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept {
    if (is_refused()) return true;
    is_done_ = typed::detail::Inside::change_now(link_, word_, change_.operand, change_.expected, old_);
    return is_done_ && goes_on();
  }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    if (is_done_) return let_others_go(awaiting), true;
    operation_.emplace(change_.expected ? link_.start_compare_swap(word_, *change_.expected, change_.operand)
                                        : link_.start_fetch_add(word_, change_.operand));
    return await_operation(typed::detail::Inside::started(*operation_), awaiting, deadline_);
  }
  [[nodiscard]] std::expected<std::uint64_t, Status> await_resume() noexcept {
    if (is_done_) return old_;
    if (status() != Status::kOk) return operation_.reset(), std::unexpected(status());
    if (const Status waited = operation_->wait(Deadline::now()); waited != Status::kOk) return std::unexpected(waited);
    return operation_->old();
  }

 private:
  typed::Link& link_;
  typed::RemoteSegment<std::uint64_t> word_;
  Change change_;
  std::optional<Deadline> deadline_;
  std::optional<typed::AtomicOperation> operation_;
  std::uint64_t old_ = 0;
  bool is_done_ = false;
};

/// A message to the peer.
template <class Part>
class [[nodiscard]] SendWait : public LinkWait {
 public:
  SendWait(const typed::Link& link, Part&& part, std::optional<std::uint32_t> immediate,
           const std::optional<Deadline>& deadline) noexcept
      : link_(link), part_(std::move(part)), immediate_(immediate), deadline_(deadline) {}
  ~SendWait() override { leave(); }
  SendWait(const SendWait&) = delete;
  SendWait& operator=(const SendWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept { return is_refused(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    const Outgoing message{.bytes = std::as_bytes(part_.unsafe_span()), .immediate = immediate_};
    if (await_send(link_, message, awaiting, deadline_)) return true;
    if (goes_on()) return false;
    return let_others_go(awaiting), true;
  }
  [[nodiscard]] typed::Outcome<Part> await_resume() noexcept { return {.status = sent(), .segment = std::move(part_)}; }

 private:
  const typed::Link& link_;
  Part part_;
  std::optional<std::uint32_t> immediate_;
  std::optional<Deadline> deadline_;
};

/// A write into the peer's own window, then a message that tells of it.
template <class Part, class Remote>
class [[nodiscard]] WriteAndTellWait : public LinkWait {
 public:
  WriteAndTellWait(typed::Link& link, Part&& part, const Remote& to, std::uint32_t immediate,
                   const std::optional<Deadline>& deadline) noexcept
      : link_(link), part_(std::move(part)), to_(to), immediate_(immediate), deadline_(deadline) {}
  ~WriteAndTellWait() override { leave(); }
  WriteAndTellWait(const WriteAndTellWait&) = delete;
  WriteAndTellWait& operator=(const WriteAndTellWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept { return is_refused(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    const auto offset = typed::detail::Inside::offset_in_window(link_, to_.remote(), part_.size() * kBytes);
    if (!offset) return outcome_.status = offset.error(), false;
    offset_ = *offset;
    bytes_ = part_.size() * kBytes;
    if (!deadline_) deadline_ = typed::detail::Inside::default_deadline(link_);  // For both of its parts together.
    if (typed::detail::Inside::move_now<false>(link_, part_, to_)) {
      outcome_.segment = std::move(part_);
      return tell_peer(awaiting);
    }
    operation_.emplace(link_.start_write(std::move(part_), to_));
    return await_operation(typed::detail::Inside::started(*operation_), awaiting, deadline_) || after_write(awaiting);
  }
  [[nodiscard]] typed::Outcome<Part> await_resume() noexcept {
    if (is_telling_) {
      outcome_.status = sent();
    } else if (operation_ || outcome_.status == Status::kOk) {
      outcome_.status = status();
    }
    // Nothing has begun; or the write was given up, and is in quarantine.
    if (outcome_.segment.empty()) outcome_.segment = std::move(part_);
    operation_.reset();
    return std::move(outcome_);
  }

 private:
  static constexpr std::size_t kBytes =
      sizeof(std::remove_cvref_t<decltype(*std::declval<Part&>().unsafe_span().data())>);
  void go_on() override {
    if (is_telling_ || !after_write(awaiting())) awaiting().resume();
  }
  /// False: it is over.
  [[nodiscard]] bool after_write(std::coroutine_handle<> awaiting) noexcept {
    if (status() != Status::kOk) return false;
    outcome_ = std::move(*operation_).finish(Deadline::now());
    operation_.reset();
    return outcome_.status == Status::kOk && tell_peer(awaiting);
  }
  [[nodiscard]] bool tell_peer(std::coroutine_handle<> awaiting) noexcept {
    is_telling_ = true;
    const Outgoing note{.bytes = {}, .immediate = immediate_, .written_at = offset_, .written_bytes = bytes_};
    return await_send(link_, note, awaiting, deadline_);
  }

  typed::Link& link_;
  Part part_;
  Remote to_;
  std::uint32_t immediate_;
  std::optional<Deadline> deadline_;
  std::optional<typed::Operation<Part>> operation_;
  typed::Outcome<Part> outcome_;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
  bool is_telling_ = false;
};

/// The next message of the peer.
template <typed::Element T>
class [[nodiscard]] ReceiveWait : public LinkWait {
 public:
  ReceiveWait(const typed::Link& link, typed::Segment<T>&& to, const std::optional<Deadline>& deadline) noexcept
      : link_(link), to_(std::move(to)), deadline_(deadline) {}
  ~ReceiveWait() override { leave(); }
  ReceiveWait(const ReceiveWait&) = delete;
  ReceiveWait& operator=(const ReceiveWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept { return is_refused(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    if (await_receive(link_, std::as_writable_bytes(to_.unsafe_span()), awaiting, deadline_)) return true;
    if (goes_on()) return false;
    return let_others_go(awaiting), true;
  }
  [[nodiscard]] Arrived<T> await_resume() noexcept {
    Arrived<T> arrived;
    const auto received = this->received(sizeof(T), arrived.waiting);
    arrived.segment = std::move(to_);
    if (received) {
      arrived.received = *received;
    } else {
      arrived.status = received.error();
    }
    return arrived;
  }

 private:
  const typed::Link& link_;
  typed::Segment<T> to_;
  std::optional<Deadline> deadline_;
};

/// A listener's next client.
class [[nodiscard]] AcceptWait : public Awaitable, public Wait {
 public:
  AcceptWait(rdma::Listener& listener, Deadline deadline) noexcept : listener_(listener), deadline_(deadline) {}
  ~AcceptWait() override { leave(); }
  AcceptWait(const AcceptWait&) = delete;
  AcceptWait& operator=(const AcceptWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept {
    status_ = context().loop->refuses(context().scope);
    return status_ != Status::kOk;
  }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    park(context(), awaiting, deadline_, nullptr);
    const Status begun = typed::detail::Inside::await_client(listener_, *this);
    if (begun == Status::kOk) return true;
    unpark();
    if (begun != Status::kAgain) status_ = begun;
    return false;
  }
  [[nodiscard]] std::expected<std::unique_ptr<rdma::Connection>, Status> await_resume() noexcept {
    if (status_ != Status::kOk) return std::unexpected(status_);
    if (ended() != Status::kOk) return std::unexpected(ended());
    return listener_.accept(Deadline::now());
  }

 private:
  [[nodiscard]] bool withdraw() noexcept override { return typed::detail::Inside::stop_awaiting(listener_, *this); }
  rdma::Listener& listener_;
  Deadline deadline_;
  Status status_ = Status::kOk;
};

template <typed::Element T>
using WriteWait = TransferWait<typed::Segment<T>, typed::RemoteSegment<T>, false>;
template <typed::Element T>
using ConstWriteWait = TransferWait<typed::ConstSegment<T>, typed::RemoteSegment<T>, false>;
template <typed::Element T>
using ReadWait = TransferWait<typed::Segment<T>, typed::RemoteSegment<const T>, true>;

}  // namespace detail

/// The next client of a listener without a handler, as rdma::Listener::accept; the listener outlives the wait. kBusy:
/// another coroutine awaits its clients.
[[nodiscard]] inline detail::AcceptWait accept(rdma::Listener& listener, Deadline deadline) noexcept {
  return {listener, deadline};
}

/// Reads from.size() elements to the front of `to`; see typed::Link::read.
template <typed::Element T>
[[nodiscard]] detail::ReadWait<T> read(typed::Link& link, typed::Segment<T>&& to,
                                       const std::type_identity_t<typed::RemoteSegment<const T>>& from,
                                       std::optional<Deadline> deadline = {}) noexcept {
  return detail::ReadWait<T>(link, std::move(to), from, deadline);
}
/// Writes all of `from` to the front of `to`; see typed::Link::write.
template <typed::Element T>
[[nodiscard]] detail::WriteWait<T> write(typed::Link& link, typed::Segment<T>&& from,
                                         const std::type_identity_t<typed::RemoteSegment<T>>& to,
                                         std::optional<Deadline> deadline = {}) noexcept {
  return detail::WriteWait<T>(link, std::move(from), to, deadline);
}
template <typed::Element T>
[[nodiscard]] detail::ConstWriteWait<T> write(typed::Link& link, typed::ConstSegment<T> from,
                                              const std::type_identity_t<typed::RemoteSegment<T>>& to,
                                              std::optional<Deadline> deadline = {}) noexcept {
  return detail::ConstWriteWait<T>(link, std::move(from), to, deadline);
}
/// The same into the peer's own window (typed::Link::peer_window), which gets a message with `immediate` once the
/// elements are in place. kOutOfRange: `to` is not inside that window, or shorter.
template <typed::Element T>
[[nodiscard]] detail::WriteAndTellWait<typed::Segment<T>, typed::RemoteSegment<T>> write_with_immediate(
    typed::Link& link, typed::Segment<T>&& from, const std::type_identity_t<typed::RemoteSegment<T>>& to,
    std::uint32_t immediate, std::optional<Deadline> deadline = {}) noexcept {
  return {link, std::move(from), to, immediate, deadline};
}
/// Atomics on the first element of `word`: the value before.
template <std::same_as<std::uint64_t> T>
[[nodiscard]] detail::AtomicWait fetch_add(typed::Link& link, const typed::RemoteSegment<T>& word, std::uint64_t delta,
                                           std::optional<Deadline> deadline = {}) noexcept {
  return {link, word, {.operand = delta}, deadline};
}
template <std::same_as<std::uint64_t> T>
[[nodiscard]] detail::AtomicWait compare_swap(typed::Link& link, const typed::RemoteSegment<T>& word,
                                              std::uint64_t expected, std::uint64_t desired,
                                              std::optional<Deadline> deadline = {}) noexcept {
  return {link, word, {.operand = desired, .expected = expected}, deadline};
}
/// Awaits an operation that was started.
template <class Part>
[[nodiscard]] detail::FinishWait<Part> finish(typed::Operation<Part>&& operation,
                                              std::optional<Deadline> deadline = {}) noexcept {
  return {std::move(operation), deadline};
}

/// Sends all of a Segment or ConstSegment; see typed::Link::send.
template <typed::Element T>
[[nodiscard]] detail::SendWait<typed::Segment<T>> send(typed::Link& link, typed::Segment<T>&& from,
                                                       std::optional<Deadline> deadline = {}) noexcept {
  return {link, std::move(from), std::nullopt, deadline};
}
template <typed::Element T>
[[nodiscard]] detail::SendWait<typed::ConstSegment<T>> send(typed::Link& link, typed::ConstSegment<T> from,
                                                            std::optional<Deadline> deadline = {}) noexcept {
  return {link, std::move(from), std::nullopt, deadline};
}
template <typed::Element T>
[[nodiscard]] detail::SendWait<typed::Segment<T>> send_with_immediate(typed::Link& link, typed::Segment<T>&& from,
                                                                      std::uint32_t immediate,
                                                                      std::optional<Deadline> deadline = {}) noexcept {
  return {link, std::move(from), immediate, deadline};
}
/// Takes the next message, to the front of `to`; see typed::Link::receive.
template <typed::Element T>
[[nodiscard]] detail::ReceiveWait<T> receive(typed::Link& link, typed::Segment<T>&& to,
                                             std::optional<Deadline> deadline = {}) noexcept {
  return {link, std::move(to), deadline};
}

}  // namespace verbena::coroutine

#pragma GCC visibility pop
