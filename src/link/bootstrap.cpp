// The socket bootstrap: both sides of a handshake, and the listener.
#include "base/check.hpp"
#include "base/error.hpp"
#include "link/link.hpp"
#include "link/socket.hpp"
#include "link/socket_watcher.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <new>
#include <optional>

namespace verbena::link {

namespace {

constexpr const char* kAwaitedHello = "its answer";
constexpr const char* kAwaitedReady = "its READY";

/// What dial says when the answer is not even the beginning of a frame.
Error not_verbena(const char* peer, std::span<const std::byte> got) noexcept {
  char shown[3 * 8 + 1] = "";
  char* end = shown;
  for (const std::byte byte : got.first(std::min<std::size_t>(got.size(), 8))) {
    end = fmt::format_to(end, "{:02x} ", static_cast<unsigned>(byte));
  }
  *end = '\0';
  return format_error(Status::kProtocol, "handshake", 0,
                      "what answered at {} is not a Verbena server (its first bytes are {}): check address and "
                      "port",
                      peer, std::string_view(shown, static_cast<std::size_t>(end - shown) - (end != shown)));
}

Result<Endpoint> read_answer(int fd, const Frame& sent, const Step& step, Deadline deadline) {
  Inbox inbox;
  if (auto received = receive_frame(fd, inbox, step, deadline); !received) {
    const bool foreign = received.error().status() == Status::kProtocol && !version_of(inbox.bytes());
    return std::unexpected(foreign ? not_verbena(step.peer, inbox.bytes()) : received.error());
  }
  if (std::ranges::equal(inbox.bytes(), sent.bytes())) {
    return fail(Status::kProtocol, "handshake", 0,
                "{} sends back what it is sent, so it is not a Verbena server: check address and port", step.peer);
  }
  auto endpoint = decode_hello(inbox.bytes());
  if (!endpoint) return fail(Status::kProtocol, "handshake", 0, "{}: {}", step.peer, endpoint.error().text());
  return endpoint;
}

/// The peer's READY, which must name the generation that its HELLO did.
Result<void> read_ready(int fd, const Endpoint& remote, const Step& step, Deadline deadline) {
  Inbox inbox;
  VERBENA_TRY(receive_frame(fd, inbox, step, deadline));
  const auto generation = decode_ready(inbox.bytes());
  if (!generation) return fail(Status::kProtocol, "handshake", 0, "{}: {}", step.peer, generation.error().text());
  if (*generation != remote.generation) {
    return fail(Status::kProtocol, "handshake", 0, "{} sent the READY of another connection: connect again", step.peer);
  }
  return {};
}

Error no_connection(const char* call) noexcept {
  return format_error(Status::kBadArgument, call, 0,
                      "this handshake has ended or was moved from: each is finished, or rejected, once");
}

/// Both ends of a handshake over a socket.
class SocketHandshake final : public Handshake {
 public:
  SocketHandshake(Fd fd, std::uint64_t generation, const Endpoint& remote, SocketWatcher* watcher,
                  std::size_t max_answer_bytes) noexcept
      : fd_(std::move(fd)),
        generation_(generation),
        remote_(remote),
        watcher_(watcher),
        max_answer_bytes_(max_answer_bytes) {}

  void reject(Status status, std::string_view text) noexcept override { send_reject(fd_.get(), status, text); }
  Result<void> answer(const Endpoint& local, Deadline deadline) override;
  Result<Lifeline> finish(Deadline deadline) override;

 private:
  Fd fd_;
  std::uint64_t generation_;  // Ours, as READY repeats it; the client's from the start, the server's from its answer.
  const Endpoint remote_;
  SocketWatcher* const watcher_;
  const std::size_t max_answer_bytes_;
  bool is_server_ = false;
};

Result<void> SocketHandshake::answer(const Endpoint& local, Deadline deadline) {
  VERBENA_TRY(check_local(local, max_answer_bytes_, "Incoming::answer"));
  is_server_ = true;
  generation_ = local.generation;
  const HostPort name = HostPort::of_peer(fd_.get());
  return send_frame(fd_.get(), encode_hello(local), {.peer = name.c_str(), .awaited = kAwaitedReady}, deadline);
}

// The client's READY goes first; the server's answers it.
Result<Lifeline> SocketHandshake::finish(Deadline deadline) {
  const HostPort name = HostPort::of_peer(fd_.get());
  const Step step{.peer = name.c_str(), .awaited = kAwaitedReady};
  if (is_server_) VERBENA_TRY(read_ready(fd_.get(), remote_, step, deadline));
  VERBENA_TRY(send_frame(fd_.get(), encode_ready(generation_), step, deadline));
  if (!is_server_) VERBENA_TRY(read_ready(fd_.get(), remote_, step, deadline));
  return watcher_ != nullptr ? watcher_->take(std::move(fd_)) : Lifeline();
}

}  // namespace

// --- the two ends of a handshake ---------------------------------------------------------------

Result<Lifeline> Dialed::finish(Deadline deadline) {
  const auto handshake = std::exchange(handshake_, nullptr);
  if (!handshake) return std::unexpected(no_connection("Dialed::finish"));
  return handshake->finish(deadline);
}

void Incoming::reject(Status status, std::string_view text) noexcept {
  if (const auto handshake = std::exchange(handshake_, nullptr)) handshake->reject(status, text);
}

Result<void> Incoming::answer(const Endpoint& local, Deadline deadline) {
  if (!handshake_) return std::unexpected(no_connection("Incoming::answer"));
  return handshake_->answer(local, deadline);
}

Result<Lifeline> Incoming::finish(Deadline deadline) {
  const auto handshake = std::exchange(handshake_, nullptr);
  if (!handshake) return std::unexpected(no_connection("Incoming::finish"));
  return handshake->finish(deadline);
}

Result<Dialed> dial(const std::string& host, std::uint16_t port, const Endpoint& local, Deadline deadline,
                    SocketWatcher* watcher) {
  VERBENA_TRY(check_local(local, kMaxPrivateBytes, "dial"));
  VERBENA_ASSIGN(Fd fd, connect_to(host, port, deadline));
  const HostPort name(host, port);
  const Step step{.peer = name.c_str(), .awaited = kAwaitedHello};
  const Frame hello = encode_hello(local);
  VERBENA_TRY(send_frame(fd.get(), hello, step, deadline));
  VERBENA_ASSIGN(const Endpoint remote, read_answer(fd.get(), hello, step, deadline));
  return Dialed(std::make_unique<SocketHandshake>(std::move(fd), local.generation, remote, watcher, std::size_t{0}),
                remote);
}

// --- listener ----------------------------------------------------------------------------------

namespace {

constexpr unsigned kMostPending = 65536;
constexpr int kEventsPerTurn = 32;
/// Sockets accepted before those that are there already are looked at again.
constexpr int kAcceptsPerTurn = 16;
/// Accepting rests this long when there are no descriptors left and none of ours to give back: no
/// event tells when another part of the process closes one.
constexpr std::chrono::milliseconds kAcceptRest{50};
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
// Events that are no slot's.
constexpr std::uint64_t kListenEvent = std::uint64_t{1} << 32;
constexpr std::uint64_t kCloseEvent = std::uint64_t{1} << 33;

/// A socket whose HELLO is not complete. Slots in use form a list from the oldest to the newest,
/// which is also the order of their deadlines; free ones are chained by `next`.
struct Slot {
  Fd fd;
  Deadline deadline = Deadline::now();
  std::uint32_t previous = kNone;
  std::uint32_t next = kNone;
  Inbox inbox;
};

class SocketListener final : public Listener {
 public:
  SocketListener(const ListenerOptions& options, Fd listening, Fd epoll, Fd closing, std::unique_ptr<Slot[]> slots)
      : options_(options),
        listening_(std::move(listening)),
        epoll_(std::move(epoll)),
        closing_(std::move(closing)),
        port_(bound_port(listening_.get())),
        slots_(std::move(slots)),
        free_(0) {
    for (std::uint32_t i = 0; i + 1 < options_.max_pending; ++i) slots_[i].next = i + 1;
  }

  [[nodiscard]] std::uint16_t port() const noexcept override { return port_; }
  [[nodiscard]] std::uint64_t dropped() const noexcept override { return dropped_.load(std::memory_order_relaxed); }
  [[nodiscard]] Result<Incoming> next(Deadline deadline) override;
  void close() noexcept override;

 private:
  using Found = std::optional<Incoming>;

  [[nodiscard]] Deadline next_event_due(Deadline deadline) const noexcept;
  [[nodiscard]] Result<Found> accept_some() noexcept;
  [[nodiscard]] Found drop_late() noexcept;
  [[nodiscard]] Found look(std::uint32_t index) noexcept;
  [[nodiscard]] Found look_and_drop(std::uint32_t index) noexcept;
  [[nodiscard]] Found take(std::uint32_t index, const Endpoint& remote) noexcept;
  void add(Fd fd) noexcept;
  [[nodiscard]] Fd remove(std::uint32_t index) noexcept;
  void drop(std::uint32_t index) noexcept;
  void rest_accepting() noexcept;
  void resume_accepting() noexcept;
  void count_dropped() noexcept { dropped_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] bool is_closed() const noexcept { return closed_.load(std::memory_order_acquire); }

  const ListenerOptions options_;
  const Fd listening_;
  const Fd epoll_;
  const Fd closing_;
  const std::uint16_t port_;
  const std::unique_ptr<Slot[]> slots_;
  std::uint32_t free_;
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
  bool resting_ = false;
  Deadline rest_until_ = Deadline::now();
  std::atomic<bool> closed_{false};
  std::atomic<std::uint64_t> dropped_{0};
};

Result<Incoming> SocketListener::next(Deadline deadline) {
  for (;;) {
    if (is_closed()) {
      while (oldest_ != kNone) (void)remove(oldest_);
      return fail(Status::kClosed, "Listener::next", 0, "the listener was closed by this process");
    }
    std::array<epoll_event, kEventsPerTurn> events;
    const int count = epoll_wait(epoll_.get(), events.data(), kEventsPerTurn, next_event_due(deadline).left_ms());
    if (count < 0 && errno != EINTR) return fail_system("epoll_wait", errno, "waiting for clients");
    const auto ready = std::span(events).first(static_cast<std::size_t>(std::max(count, 0)));
    // Those that are here come before new ones, which may evict them. Events are level-triggered:
    // what is not looked at in this turn is reported again.
    bool has_new = false;
    for (const epoll_event& event : ready) {
      if (event.data.u64 == kListenEvent) has_new = true;
      if (event.data.u64 >= kListenEvent) continue;
      if (Found found = look(static_cast<std::uint32_t>(event.data.u64))) return std::move(*found);
    }
    if (has_new) {
      VERBENA_ASSIGN(Found found, accept_some());
      if (found) return std::move(*found);
    }
    if (Found found = drop_late()) return std::move(*found);
    if (resting_ && rest_until_.passed()) resume_accepting();
    if (!is_closed() && deadline.passed()) {
      return fail(Status::kTimedOut, "Listener::next", 0, "no client came in time");
    }
  }
}

void SocketListener::close() noexcept {
  closed_.store(true, std::memory_order_release);
  // Connecting is refused from now on, instead of hanging in the backlog. Descriptors stay open
  // until destruction, so this cannot hit somebody else's.
  (void)shutdown(listening_.get(), SHUT_RDWR);
  signal_eventfd(closing_.get());  // Never read: every later wait returns at once as well.
}

Deadline SocketListener::next_event_due(Deadline deadline) const noexcept {
  if (oldest_ != kNone) deadline = earlier(deadline, slots_[oldest_].deadline);
  return resting_ ? earlier(deadline, rest_until_) : deadline;
}

Result<SocketListener::Found> SocketListener::accept_some() noexcept {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK || is_closed()) return Found{};
      if (error == EBADF || error == EINVAL || error == ENOTSOCK)
        return fail_system("accept4", error, "taking a client");
      if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) continue;  // That client's fault.
      if (oldest_ == kNone) {
        rest_accepting();
        return Found{};
      }
      if (Found found = look_and_drop(oldest_)) return found;
      continue;
    }
    Found found;
    if (free_ == kNone) found = look_and_drop(oldest_);
    add(std::move(fd));
    if (found) return found;
  }
  return Found{};
}

SocketListener::Found SocketListener::drop_late() noexcept {
  while (oldest_ != kNone && slots_[oldest_].deadline.passed()) {
    if (Found found = look_and_drop(oldest_)) return found;
  }
  return std::nullopt;
}

/// Takes what the socket has. A whole HELLO leaves the slot as an Incoming; what can never be one
/// is dropped.
SocketListener::Found SocketListener::look(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  if (!slot.fd) return std::nullopt;  // An event of this turn for a slot that was dropped in it.
  const auto arrival = take_arrived(slot.fd.get(), slot.inbox);
  if (arrival && *arrival == Arrival::kPart) return std::nullopt;
  if (arrival && *arrival == Arrival::kWhole) {
    const auto hello = decode_hello(slot.inbox.bytes());
    if (hello) {
      const auto fits = check_user_data(*hello, options_.max_request_bytes, "dial");
      if (fits) return take(index, *hello);
      send_reject(slot.fd.get(), fits.error().status(), fits.error().text());
    }
  }
  const auto version = version_of(slot.inbox.bytes());
  if (version && *version != kProtocolVersion) {
    char text[kMaxRejectText];
    const auto end = fmt::format_to_n(text, sizeof text, "the server speaks version {} of the handshake, the client {}",
                                      kProtocolVersion, *version);
    send_reject(slot.fd.get(), Status::kProtocol, {text, end.out});
  }
  drop(index);
  return std::nullopt;
}

SocketListener::Found SocketListener::take(std::uint32_t index, const Endpoint& remote) noexcept {
  std::unique_ptr<Handshake> handshake(
      new (std::nothrow) SocketHandshake(remove(index), 0, remote, options_.watcher, options_.max_answer_bytes));
  if (handshake) return Incoming(std::move(handshake), remote);
  count_dropped();
  return std::nullopt;
}

/// The end of a socket's time. Its HELLO may have come while nobody was in `next`: then it is no
/// laggard.
SocketListener::Found SocketListener::look_and_drop(std::uint32_t index) noexcept {
  if (Found found = look(index)) return found;
  if (slots_[index].fd) drop(index);
  return std::nullopt;
}

void SocketListener::add(Fd fd) noexcept {
  const std::uint32_t index = free_;
  VERBENA_CHECK(index != kNone);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = index}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) return count_dropped();
  set_no_delay(fd.get());
  Slot& slot = slots_[index];
  free_ = slot.next;
  slot.fd = std::move(fd);
  slot.deadline = Deadline::after(options_.hello_timeout);
  slot.inbox.have = 0;
  slot.inbox.need = kHeaderBytes;
  slot.previous = newest_;
  slot.next = kNone;
  (newest_ == kNone ? oldest_ : slots_[newest_].next) = index;
  newest_ = index;
}

Fd SocketListener::remove(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  (slot.previous == kNone ? oldest_ : slots_[slot.previous].next) = slot.next;
  (slot.next == kNone ? newest_ : slots_[slot.next].previous) = slot.previous;
  slot.next = free_;
  free_ = index;
  VERBENA_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, slot.fd.get(), nullptr) == 0);
  return std::move(slot.fd);
}

void SocketListener::drop(std::uint32_t index) noexcept {
  const Fd closing = remove(index);
  count_dropped();
}

void SocketListener::rest_accepting() noexcept {
  epoll_event event{.events = 0, .data = {.u64 = kListenEvent}};
  VERBENA_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listening_.get(), &event) == 0);
  resting_ = true;
  rest_until_ = Deadline::after(kAcceptRest);
}

void SocketListener::resume_accepting() noexcept {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kListenEvent}};
  VERBENA_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listening_.get(), &event) == 0);
  resting_ = false;
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::open(const ListenerOptions& options) {
  if (options.max_pending == 0 || options.max_pending > kMostPending) {
    return fail(Status::kBadArgument, "Listener::open", 0, "max_pending is {} and must be 1 to {}", options.max_pending,
                kMostPending);
  }
  if (options.hello_timeout <= std::chrono::milliseconds::zero()) {
    return fail(Status::kBadArgument, "Listener::open", 0, "hello_timeout is {} ms and must be at least 1",
                options.hello_timeout.count());
  }
  VERBENA_ASSIGN(Fd listening, listen_on(options.address, options.port, SOMAXCONN));
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return fail_system("epoll_create1", errno, "making a listener");
  VERBENA_ASSIGN(Fd closing, make_eventfd());
  for (const auto& [fd, tag] : {std::pair{listening.get(), kListenEvent}, std::pair{closing.get(), kCloseEvent}}) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
    if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return fail_system("epoll_ctl", errno, "making a listener");
    }
  }
  std::unique_ptr<Slot[]> slots(new (std::nothrow) Slot[options.max_pending]);
  std::unique_ptr<Listener> listener;
  if (slots) {
    listener.reset(new (std::nothrow) SocketListener(options, std::move(listening), std::move(epoll),
                                                     std::move(closing), std::move(slots)));
  }
  if (listener) return listener;
  return fail(Status::kNoMemory, "Listener::open", 0, "no memory for {} pending sockets: lower max_pending",
              options.max_pending);
}

}  // namespace verbena::link
