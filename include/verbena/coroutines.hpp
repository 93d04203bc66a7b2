/// \file
/// Awaitable operations on segments: what typed::Link does, with the coroutine suspended instead of the thread.
/// coroutines_queue_pair.hpp and coroutines_mesh.hpp have those of queue pairs and of the mesh.
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

/// For receives of a link that were started.
template <typed::Element T>
struct Refusal<typed::MessageOutcome<T>> {
  /// Without a segment.
  [[nodiscard]] static typed::MessageOutcome<T> of(Status status) noexcept { return {.status = status}; }
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

/// Waits for an operation that was started on a link, queue pair or lane of a mesh.
class OperationWait : public Awaitable, public Wait {
 protected:
  OperationWait() noexcept = default;
  ~OperationWait() override { leave(); }

  /// Whether nothing may begin; `status` says why.
  [[nodiscard]] bool is_refused() noexcept {
    status_ = context().loop->refuses(context().scope);
    return status_ != Status::kOk;
  }
  [[nodiscard]] bool goes_on() noexcept { return context().loop->goes_on(); }
  void let_others_go(std::coroutine_handle<> awaiting) noexcept { yield(context(), awaiting); }
  /// Whether a coroutine is suspended whose operation is complete already.
  [[nodiscard]] bool lets_others_go(std::coroutine_handle<> awaiting) noexcept {
    if (goes_on()) return false;
    return let_others_go(awaiting), true;
  }

  /// Returns whether it waits.
  [[nodiscard]] bool await_operation(typed::detail::Started& started, std::coroutine_handle<> awaiting,
                                     const std::optional<Deadline>& deadline) noexcept;
  /// Why it could not be awaited, or was not awaited to its end; else kOk.
  [[nodiscard]] Status status() const noexcept { return status_ != Status::kOk ? status_ : ended(); }
  [[nodiscard]] Status refused() const noexcept { return status_; }
  void refuse(Status status) noexcept { status_ = status; }

 private:
  [[nodiscard]] bool withdraw() noexcept override;
  Status status_ = Status::kOk;
  typed::detail::Started* started_;  ///< While it waits for one.
};

/// Waits for a message of a link's.
class MessageWait : public OperationWait {
 protected:
  MessageWait() noexcept = default;
  ~MessageWait() override { leave(); }

  /// Both return whether it waits.
  [[nodiscard]] bool await_send(const typed::Link& link, std::span<const std::byte> bytes,
                                std::optional<std::uint32_t> immediate, std::coroutine_handle<> awaiting,
                                const std::optional<Deadline>& deadline) noexcept;
  [[nodiscard]] bool await_receive(const typed::Link& link, std::span<std::byte> to, std::coroutine_handle<> awaiting,
                                   const std::optional<Deadline>& deadline) noexcept;
  [[nodiscard]] Status sent() noexcept;
  /// The message that was received, in elements; `waiting` with kBufferTooSmall.
  [[nodiscard]] std::expected<typed::Received, Status> received(std::size_t element_bytes,
                                                                std::size_t& waiting) noexcept;

 private:
  struct Sending;
  struct Receiving;
  [[nodiscard]] bool withdraw() noexcept override;
  template <class Kind>
  [[nodiscard]] Kind& call() noexcept;
  /// The link's session; null, and it is refused: there is none.
  [[nodiscard]] session::Session* begin(const typed::Link& link) noexcept;
  template <class Kind>
  [[nodiscard]] bool await_call(const typed::Link& link, std::coroutine_handle<> awaiting,
                                const std::optional<Deadline>& deadline) noexcept;

  // While it waits:
  session::Session* session_;
  const std::byte* window_;  ///< This side's.
  bool is_send_ = false;
  alignas(8) std::array<std::byte, 152> call_;
};

/// What the operation's `finish` returns, with the segment.
template <class Operation>
using ResultOf = decltype(std::declval<Operation>().finish(Deadline::now()));

/// Takes the end of an operation that was awaited. What is under way still goes into quarantine.
template <class Operation>
[[nodiscard]] ResultOf<Operation> end_of(std::optional<Operation>& operation, Status status) noexcept {
  if (status == Status::kOk) return std::move(*operation).finish(Deadline::now());
  operation.reset();
  return {.status = status};
}

/// An operation that was started before.
template <class Operation>
class [[nodiscard]] FinishWait : public OperationWait {
 public:
  FinishWait(Operation&& operation, const std::optional<Deadline>& deadline) noexcept
      : operation_(std::move(operation)), deadline_(deadline) {}
  ~FinishWait() override { leave(); }
  FinishWait(const FinishWait&) = delete;
  FinishWait& operator=(const FinishWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept { return !operation_->is_under_way() || is_refused(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    return await_operation(typed::detail::Inside::started(*operation_), awaiting, deadline_);
  }
  [[nodiscard]] ResultOf<Operation> await_resume() noexcept { return end_of(operation_, status()); }

 private:
  std::optional<Operation> operation_;
  std::optional<Deadline> deadline_;
};

/// An operation that `Start` starts with the segment when it is awaited; or carries out at once, past the queues, by
/// its `now`, if it has one.
template <class Part, class Start>
class [[nodiscard]] StartWait : public OperationWait {
 public:
  StartWait(Part&& part, const Start& start, const std::optional<Deadline>& deadline) noexcept
      : part_(std::move(part)), start_(start), deadline_(deadline) {}
  ~StartWait() override { leave(); }
  StartWait(const StartWait&) = delete;
  StartWait& operator=(const StartWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept {
    if (is_refused()) [[unlikely]]
      return true;
    if constexpr (requires { start_.now(part_); }) {
      is_done_ = start_.now(part_);
      return is_done_ && goes_on();
    }
    return false;
  }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    if (is_done_) return let_others_go(awaiting), true;
    operation_.emplace(start_(std::move(part_)));
    if (operation_->is_under_way() && !operation_->poll())
      return await_operation(typed::detail::Inside::started(*operation_), awaiting, deadline_);
    return lets_others_go(awaiting);
  }
  [[nodiscard]] auto await_resume() noexcept {
    if (!is_done_ && operation_) return end_of(operation_, status());
    ResultOf<Operation> back{.status = is_done_ ? Status::kOk : status()};
    back.segment = std::move(part_);
    return back;
  }

 private:
  using Operation = std::invoke_result_t<Start&, Part&&>;
  Part part_;
  Start start_;
  std::optional<Deadline> deadline_;
  std::optional<Operation> operation_;
  bool is_done_ = false;
};

template <class Part, class Start>
[[nodiscard]] StartWait<Part, Start> start_wait(Part&& part, const Start& start,
                                                const std::optional<Deadline>& deadline) noexcept {
  static_assert(!std::is_reference_v<Part>);
  return {std::move(part), start, deadline};
}

/// The same for an atomic, whose `now` gives the value before.
template <class Start>
class [[nodiscard]] AtomicWait : public OperationWait {
 public:
  AtomicWait(const Start& start, const std::optional<Deadline>& deadline) noexcept
      : start_(start), deadline_(deadline) {}
  ~AtomicWait() override { leave(); }
  AtomicWait(const AtomicWait&) = delete;
  AtomicWait& operator=(const AtomicWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept {
    if (is_refused()) return true;
    if constexpr (requires { start_.now(old_); }) {
      is_done_ = start_.now(old_);
      return is_done_ && goes_on();
    }
    return false;
  }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    if (is_done_) return let_others_go(awaiting), true;
    operation_.emplace(start_());
    if (operation_->is_under_way() && !operation_->poll())
      return await_operation(typed::detail::Inside::started(*operation_), awaiting, deadline_);
    return lets_others_go(awaiting);
  }
  [[nodiscard]] std::expected<std::uint64_t, Status> await_resume() noexcept {
    if (is_done_) return old_;
    if (status() != Status::kOk) return operation_.reset(), std::unexpected(status());
    (void)operation_->poll();
    return operation_->old();
  }

 private:
  Start start_;
  std::optional<Deadline> deadline_;
  std::optional<typed::AtomicOperation> operation_;
  std::uint64_t old_ = 0;
  bool is_done_ = false;
};

template <class Start>
[[nodiscard]] AtomicWait<Start> start_atomic(const Start& start, const std::optional<Deadline>& deadline) noexcept {
  return {start, deadline};
}

/// A link's read or write.
template <class Part, class Remote, bool kIsRead>
struct LinkTransfer {
  typed::Link* link;
  Remote remote;
  [[nodiscard]] bool now(const Part& part) noexcept {
    return typed::detail::Inside::move_now<kIsRead>(*link, part, remote);
  }
  [[nodiscard]] typed::Operation<Part> operator()(Part&& part) noexcept {
    if constexpr (kIsRead) {
      return link->start_read(std::move(part), remote);
    } else {
      return link->start_write(std::move(part), remote);
    }
  }
};

/// A link's atomic: a sum, or a swap if `expected` is there.
struct LinkAtomic {
  typed::Link* link;
  typed::RemoteSegment<std::uint64_t> word;
  std::uint64_t operand;
  std::optional<std::uint64_t> expected{};
  [[nodiscard]] bool now(std::uint64_t& old) noexcept {
    return typed::detail::Inside::change_now(*link, word, operand, expected, old);
  }
  [[nodiscard]] typed::AtomicOperation operator()() noexcept {
    return expected ? link->start_compare_swap(word, *expected, operand) : link->start_fetch_add(word, operand);
  }
};

/// A message to the peer.
template <class Part>
class [[nodiscard]] SendWait : public MessageWait {
 public:
  SendWait(const typed::Link& link, Part&& part, std::optional<std::uint32_t> immediate,
           const std::optional<Deadline>& deadline) noexcept
      : link_(link), part_(std::move(part)), immediate_(immediate), deadline_(deadline) {}
  ~SendWait() override { leave(); }
  SendWait(const SendWait&) = delete;
  SendWait& operator=(const SendWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept { return is_refused(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    return await_send(link_, std::as_bytes(part_.unsafe_span()), immediate_, awaiting, deadline_) ||
           lets_others_go(awaiting);
  }
  [[nodiscard]] typed::Outcome<Part> await_resume() noexcept { return {.status = sent(), .segment = std::move(part_)}; }

 private:
  const typed::Link& link_;
  Part part_;
  std::optional<std::uint32_t> immediate_;
  std::optional<Deadline> deadline_;
};

/// The next message of the peer.
template <typed::Element T>
class [[nodiscard]] ReceiveWait : public MessageWait {
 public:
  ReceiveWait(const typed::Link& link, typed::Segment<T>&& to, const std::optional<Deadline>& deadline) noexcept
      : link_(link), to_(std::move(to)), deadline_(deadline) {}
  ~ReceiveWait() override { leave(); }
  ReceiveWait(const ReceiveWait&) = delete;
  ReceiveWait& operator=(const ReceiveWait&) = delete;

  [[nodiscard]] bool await_ready() noexcept { return is_refused(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    return await_receive(link_, std::as_writable_bytes(to_.unsafe_span()), awaiting, deadline_) ||
           lets_others_go(awaiting);
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
using ReadWait = StartWait<typed::Segment<T>, LinkTransfer<typed::Segment<T>, typed::RemoteSegment<const T>, true>>;
template <class Part, typed::Element T>
using WriteWait = StartWait<Part, LinkTransfer<Part, typed::RemoteSegment<T>, false>>;

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
  return detail::ReadWait<T>(std::move(to), {&link, from}, deadline);
}
/// Writes all of `from` to the front of `to`; see typed::Link::write.
template <typed::Element T>
[[nodiscard]] detail::WriteWait<typed::Segment<T>, T> write(typed::Link& link, typed::Segment<T>&& from,
                                                            const std::type_identity_t<typed::RemoteSegment<T>>& to,
                                                            std::optional<Deadline> deadline = {}) noexcept {
  return detail::WriteWait<typed::Segment<T>, T>(std::move(from), {&link, to}, deadline);
}
/// The same of a ConstSegment.
template <typed::Element T>
[[nodiscard]] detail::WriteWait<typed::ConstSegment<T>, T> write(
    typed::Link& link, typed::ConstSegment<T> from, const std::type_identity_t<typed::RemoteSegment<T>>& to,
    std::optional<Deadline> deadline = {}) noexcept {
  return detail::WriteWait<typed::ConstSegment<T>, T>(std::move(from), {&link, to}, deadline);
}
/// The same into the peer's own window; see typed::Link::start_write_with_immediate.
template <typed::Element T>
[[nodiscard]] auto write_with_immediate(typed::Link& link, typed::Segment<T>&& from,
                                        const std::type_identity_t<typed::RemoteSegment<T>>& to,
                                        std::uint32_t immediate, std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from),
      [&link, to, immediate](typed::Segment<T>&& part) {
        return link.start_write_with_immediate(std::move(part), to, immediate);
      },
      deadline);
}
/// The same of a ConstSegment.
template <typed::Element T>
[[nodiscard]] auto write_with_immediate(typed::Link& link, typed::ConstSegment<T> from,
                                        const std::type_identity_t<typed::RemoteSegment<T>>& to,
                                        std::uint32_t immediate, std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from),
      [&link, to, immediate](typed::ConstSegment<T>&& part) {
        return link.start_write_with_immediate(std::move(part), to, immediate);
      },
      deadline);
}
/// Adds `delta` to the first element of `word`: the value before.
template <std::same_as<std::uint64_t> T>
[[nodiscard]] detail::AtomicWait<detail::LinkAtomic> fetch_add(typed::Link& link, const typed::RemoteSegment<T>& word,
                                                               std::uint64_t delta,
                                                               std::optional<Deadline> deadline = {}) noexcept {
  return {{.link = &link, .word = word, .operand = delta}, deadline};
}
/// Sets the first element of `word` to `desired` if it is `expected`: the value before.
template <std::same_as<std::uint64_t> T>
[[nodiscard]] detail::AtomicWait<detail::LinkAtomic> compare_swap(typed::Link& link,
                                                                  const typed::RemoteSegment<T>& word,
                                                                  std::uint64_t expected, std::uint64_t desired,
                                                                  std::optional<Deadline> deadline = {}) noexcept {
  return {{.link = &link, .word = word, .operand = desired, .expected = expected}, deadline};
}
/// Awaits an operation that was started, on a link, queue pair or lane of a mesh.
template <class Part>
[[nodiscard]] detail::FinishWait<typed::Operation<Part>> finish(typed::Operation<Part>&& operation,
                                                                std::optional<Deadline> deadline = {}) noexcept {
  return {std::move(operation), deadline};
}
/// A receive that is given up takes no message; see typed::MessageOperation.
template <typed::Element T>
[[nodiscard]] detail::FinishWait<typed::MessageOperation<T>> finish(typed::MessageOperation<T>&& operation,
                                                                    std::optional<Deadline> deadline = {}) noexcept {
  return {std::move(operation), deadline};
}

/// Sends all of `from`; see typed::Link::send.
template <typed::Element T>
[[nodiscard]] detail::SendWait<typed::Segment<T>> send(typed::Link& link, typed::Segment<T>&& from,
                                                       std::optional<Deadline> deadline = {}) noexcept {
  return {link, std::move(from), std::nullopt, deadline};
}
/// The same of a ConstSegment.
template <typed::Element T>
[[nodiscard]] detail::SendWait<typed::ConstSegment<T>> send(typed::Link& link, typed::ConstSegment<T> from,
                                                            std::optional<Deadline> deadline = {}) noexcept {
  return {link, std::move(from), std::nullopt, deadline};
}
/// Sends all of `from`, with a number for the receiver.
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
