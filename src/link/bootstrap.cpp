// The socket bootstrap: both sides of a handshake, and the listener.
#include "base/check.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "base/threads.hpp"
#include "link/keys.hpp"
#include "link/link.hpp"
#include "link/seal.hpp"
#include "link/socket.hpp"
#include "link/socket_watcher.hpp"
#include "nic/descriptors.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
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

/// The error of dial if the answer is not even the beginning of a frame.
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

/// Both HELLOs, the client's first, which the server attests.
class Transcript {
 public:
  Transcript(std::span<const std::byte> client, std::span<const std::byte> server) noexcept
      : size_(client.size() + server.size()) {
    static_assert(2 * kMaxFrameBytes <= nic::Nic::kMaxAttestedBytes);
    VERBENA_CHECK(size_ <= bytes_.size());
    std::ranges::copy(server, std::ranges::copy(client, bytes_.begin()).out);
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {bytes_.data(), size_}; }

 private:
  std::array<std::byte, 2 * kMaxFrameBytes> bytes_;
  std::size_t size_;
};

/// The error if a frame differs from the one that the peer sent.
std::unexpected<Error> changed_on_the_way(const char* peer) noexcept {
  return fail(Status::kNotAllowed, "handshake", 0,
              "a frame from {} does not have the seal of the key: somebody has changed it on the way", peer);
}

/// Waits for the answer to a frame. An echo, or something that is no frame, gets its own error.
Result<void> receive_answer(int fd, const Frame& sent, Inbox& inbox, const Step& step, Deadline deadline) {
  if (auto received = receive_frame(fd, inbox, step, deadline); !received) {
    const bool foreign = received.error().status() == Status::kProtocol && !version_of(inbox.bytes());
    return std::unexpected(foreign ? not_verbena(step.peer, inbox.bytes()) : received.error());
  }
  if (std::ranges::equal(inbox.bytes(), sent.bytes())) {
    return broken("{} only echoes, so it is not a Verbena server: check address and port", step.peer);
  }
  return {};
}

/// Reads the server's HELLO; leaves its bytes in `inbox`.
Result<Endpoint> read_answer(int fd, const Frame& sent, Inbox& inbox, std::optional<Seal>& seal, const Step& step,
                             Deadline deadline) {
  VERBENA_TRY(receive_answer(fd, sent, inbox, step, deadline));
  auto endpoint = decode_hello(inbox.bytes(), seal ? Cover::kSealed : Cover::kOpen);
  if (!endpoint) return broken("{}: {}", step.peer, endpoint.error().text());
  if (seal && !seal->check(SealedStep::kServerHello, inbox.bytes())) return changed_on_the_way(step.peer);
  return endpoint;
}

/// Makes the server prove that it has the key, before telling it anything but the key's name.
Result<Seal> challenge_server(int fd, const std::shared_ptr<const Key>& key, const Step& step, Deadline deadline) {
  Nonce nonce;
  VERBENA_TRY(fill_random(nonce));
  const Frame claim = encode_key(key->name(), nonce);
  VERBENA_TRY(send_frame(fd, claim, step, deadline));
  Inbox challenge;
  VERBENA_TRY(receive_answer(fd, claim, challenge, step, deadline));
  if (const auto theirs = decode_challenge(challenge.bytes()); !theirs)
    return broken("{}: {}", step.peer, theirs.error().text());
  Seal seal(key, claim.bytes());
  if (seal.check(SealedStep::kChallenge, challenge.bytes())) return seal;
  return fail(Status::kNotAllowed, "handshake", 0,
              "{} did not prove that it has the key {}: it is another server, or has another secret under that name",
              step.peer, key->name());
}

/// Both ends of a handshake over a socket.
class SocketHandshake final : public Handshake {
 public:
  /// For a client that has the server's answer; its READY repeats its own generation.
  SocketHandshake(Fd fd, const Endpoint& remote, std::uint64_t generation, SocketWatcher* watcher,
                  std::optional<Seal> seal) noexcept
      : Handshake(Role::kClient, remote, 0),
        fd_(std::move(fd)),
        peer_(HostPort::of_peer(fd_.get())),
        watcher_(watcher),
        seal_(std::move(seal)),
        outbox_{.frame = sealed(SealedStep::kClientReady, encode_ready(generation))} {}
  /// For a server that has the client's HELLO.
  SocketHandshake(Fd fd, const Endpoint& remote, const Inbox& hello, std::unique_ptr<nic::Inquiry> inquiry,
                  std::optional<Seal> seal, const ListenerOptions& options) noexcept
      : Handshake(Role::kServer, remote, options.max_answer_bytes, std::move(inquiry)),
        fd_(std::move(fd)),
        peer_(HostPort::of_peer(fd_.get())),
        watcher_(options.watcher),
        nic_(options.nic),
        seal_(std::move(seal)),
        inbox_(hello) {}
  [[nodiscard]] std::string_view key_name() const noexcept override {
    return seal_ ? std::string_view(seal_->key_name()) : std::string_view();
  }

 private:
  Result<bool> try_answer(const Endpoint& local) override;
  Result<bool> try_hear() override { return role() == Role::kServer ? try_take_ready() : true; }
  Result<bool> try_finish() override;
  Result<Lifeline> take_lifeline() override {
    return watcher_ != nullptr ? watcher_->take(std::move(fd_)) : Lifeline();
  }
  void send_reject(Status status, std::string_view text) noexcept override {
    // The peer would take it for the rest of a READY.
    if (outbox_.sent == 0) link::send_reject(fd_.get(), status, text);
  }
  void close() noexcept override {
    fd_.reset();
    attestation_ = {};
  }
  [[nodiscard]] int descriptor() const noexcept override { return fd_.get(); }
  [[nodiscard]] bool has_hung_up() const noexcept override {
    pollfd socket{.fd = fd_.get(), .events = POLLRDHUP, .revents = 0};
    return poll(&socket, 1, 0) > 0;
  }
  [[nodiscard]] Error late() const noexcept override {
    return link::late(events() == POLLOUT ? "send" : "recv", step());
  }

  [[nodiscard]] Step step() const noexcept { return {.peer = peer_.c_str(), .awaited = kAwaitedReady}; }
  [[nodiscard]] Frame sealed(SealedStep step, const Frame& frame) noexcept {
    return seal_ ? seal_->put(step, frame) : frame;
  }
  [[nodiscard]] Result<bool> try_give();
  [[nodiscard]] Result<bool> try_take_ready();

  Fd fd_;
  const HostPort peer_;
  SocketWatcher* const watcher_;
  nic::Nic* const nic_ = nullptr;
  nic::Attestation attestation_;  // A server's attestation of both HELLOs.
  std::optional<Seal> seal_;      // If there is a key.
  Inbox inbox_;                   // The client's HELLO, until it is answered; then the peer's READY.
  Outbox outbox_;                 // The server's HELLO; then READY. Empty until there is one.
};

Result<bool> SocketHandshake::try_give() {
  set_events(POLLOUT);
  return try_send(fd_.get(), outbox_, step());
}

/// Takes the peer's READY, which must have the generation of its HELLO.
Result<bool> SocketHandshake::try_take_ready() {
  set_events(POLLIN);
  VERBENA_ASSIGN(const bool is_whole, try_receive(fd_.get(), inbox_, step()));
  if (!is_whole) return false;
  const auto generation = decode_ready(inbox_.bytes(), seal_ ? Cover::kSealed : Cover::kOpen);
  if (!generation) {
    return broken("{}: {}", peer_.c_str(), generation.error().text());
  }
  const SealedStep theirs = role() == Role::kServer ? SealedStep::kClientReady : SealedStep::kServerReady;
  if (seal_ && !seal_->check(theirs, inbox_.bytes())) return changed_on_the_way(peer_.c_str());
  if (*generation == remote().generation) return true;
  return broken("{} sent the READY of another connection: connect again", peer_.c_str());
}

Result<bool> SocketHandshake::try_answer(const Endpoint& local) {
  if (outbox_.frame.size == 0) {
    outbox_.frame = sealed(SealedStep::kServerHello, encode_hello(local));
    if (nic_ != nullptr) {
      const Transcript transcript(inbox_.bytes(), outbox_.frame.bytes());
      VERBENA_ASSIGN(attestation_, nic::Attestation::make(*nic_, transcript.bytes()));
    }
    inbox_.have = 0;
    inbox_.need = kHeaderBytes;
  }
  VERBENA_ASSIGN(const bool is_sent, try_give());
  if (!is_sent) return false;
  outbox_ = {.frame = sealed(SealedStep::kServerReady, encode_ready(local.generation))};
  set_events(POLLIN);  // For the client's READY.
  return true;
}

// The client's READY goes first; the server's answers it. A step that is done already returns true again.
Result<bool> SocketHandshake::try_finish() {
  const bool is_server = role() == Role::kServer;
  VERBENA_ASSIGN(const bool is_first_done, is_server ? try_take_ready() : try_give());
  if (!is_first_done) return false;
  return is_server ? try_give() : try_take_ready();
}

}  // namespace

Result<std::unique_ptr<Handshake>> dial(const std::string& host, std::uint16_t port, const Endpoint& local,
                                        Deadline deadline, const DialOptions& options) {
  VERBENA_TRY(check_local(local, kMaxPrivateBytes, "dial"));
  VERBENA_ASSIGN(Fd fd, connect_to(host, port, deadline));
  const HostPort name(host, port);
  const Step step{.peer = name.c_str(), .awaited = kAwaitedHello};
  std::optional<Seal> seal;
  if (options.key != nullptr) {
    VERBENA_ASSIGN(seal, challenge_server(fd.get(), options.key, step, deadline));
  }
  const Frame open = encode_hello(local);
  const Frame hello = seal ? seal->put(SealedStep::kClientHello, open) : open;
  nic::Attestation attestation;
  if (options.nic != nullptr) {
    VERBENA_ASSIGN(attestation, nic::Attestation::make(*options.nic, hello.bytes()));
  }
  VERBENA_TRY(send_frame(fd.get(), hello, step, deadline));
  Inbox answer;
  VERBENA_ASSIGN(const Endpoint remote, read_answer(fd.get(), hello, answer, seal, step, deadline));
  if (options.nic != nullptr) {
    VERBENA_TRY(check_kind(*options.nic, remote));
    VERBENA_ASSIGN(const auto inquiry,
                   options.nic->inquire(remote.qp.gid, Transcript(hello.bytes(), answer.bytes()).bytes()));
    if (inquiry != nullptr) VERBENA_TRY(inquiry->answer(deadline));
  }
  return std::make_unique<SocketHandshake>(std::move(fd), remote, local.generation, options.watcher, std::move(seal));
}

// --- listener ----------------------------------------------------------------------------------

namespace {

constexpr unsigned kMostPending = 65536;
constexpr unsigned kFewestPending = 64;
constexpr unsigned kUsualPending = 512;
constexpr int kEventsPerTurn = 32;
/// Most sockets to accept before looking at the existing ones again.
constexpr int kAcceptsPerTurn = 16;
/// A client learns no more than this: the server logs whether it has no such key, or another secret.
std::unexpected<Error> refused_key(std::string_view name) noexcept {
  return fail(Status::kNotAllowed, "connect", 0, "the server refused the key {}", name);
}
/// How long accepting pauses when there are no descriptors left and none of ours to give back: no event tells when
/// another part of the process closes one.
constexpr std::chrono::milliseconds kAcceptRest{50};
constexpr std::chrono::seconds kLogEvery{1};
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
// Events that belong to no slot.
constexpr std::uint64_t kListenEvent = std::uint64_t{1} << 32;
constexpr std::uint64_t kCloseEvent = std::uint64_t{1} << 33;

/// A socket whose HELLO is not complete, or its key not proven. Slots in use form a list from the oldest to the newest,
/// which is also the order of their deadlines; free ones are chained by `next`.
struct Slot {
  Fd fd;
  Deadline deadline = Deadline::now();
  std::uint32_t previous = kNone;
  std::uint32_t next = kNone;
  Inbox inbox;
  std::optional<Seal> seal;  ///< Set once it was challenged.
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
  [[nodiscard]] Result<void> admit() override { return listen_at(listening_, options_.address, SOMAXCONN); }
  [[nodiscard]] int fd() const noexcept override { return epoll_.get(); }
  [[nodiscard]] Deadline due() const noexcept override;
  [[nodiscard]] Result<std::unique_ptr<Handshake>> next(Deadline deadline) override;
  void close() noexcept override;

 private:
  using Found = std::unique_ptr<Handshake>;

  [[nodiscard]] Result<Found> accept_some() noexcept;
  [[nodiscard]] Found drop_late() noexcept;
  [[nodiscard]] Found look(std::uint32_t index) noexcept;
  [[nodiscard]] Found look_and_drop(std::uint32_t index) noexcept;
  [[nodiscard]] Result<std::optional<Endpoint>> take_frame(Slot& slot) noexcept;
  [[nodiscard]] Result<void> challenge(Slot& slot) noexcept;
  [[nodiscard]] Result<std::unique_ptr<nic::Inquiry>> check(const Endpoint& remote,
                                                            std::span<const std::byte> hello) noexcept;
  [[nodiscard]] Found take(std::uint32_t index, const Endpoint& remote, std::unique_ptr<nic::Inquiry> inquiry) noexcept;
  void add(Fd fd) noexcept;
  [[nodiscard]] Fd remove(std::uint32_t index) noexcept;
  void drop(std::uint32_t index) noexcept;
  void set_accepting(bool accepting) noexcept;
  void count_dropped() noexcept { dropped_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] bool is_closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  /// Logs why a client has not proven a key. Strangers may fail any number of times, so it logs at most one per second.
  template <class... Args>
  void log_refusal(fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (!quiet_until_.passed()) return;
    quiet_until_ = Deadline::after(kLogEvery);
    log(VERBENA_LOG_WARNING, format, std::forward<Args>(args)...);
  }

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
  Deadline quiet_until_ = Deadline::now();
  std::atomic<bool> closed_{false};
  std::atomic<std::uint64_t> dropped_{0};
};

Result<std::unique_ptr<Handshake>> SocketListener::next(Deadline deadline) {
  for (;;) {
    if (is_closed()) {
      while (oldest_ != kNone) (void)remove(oldest_);
      return fail(Status::kClosed, "Listener::next", 0, "the listener was closed by this process");
    }
    std::array<epoll_event, kEventsPerTurn> events;
    const int count = epoll_wait(epoll_.get(), events.data(), kEventsPerTurn, earlier(deadline, due()).left_ms());
    if (count < 0 && errno != EINTR) return fail_system("epoll_wait", errno, "waiting for clients");
    const auto ready = std::span(events).first(static_cast<std::size_t>(std::max(count, 0)));
    // Looks at existing sockets before new ones, which may evict them. Events are level-triggered, so the kernel
    // reports the rest again.
    bool has_new = false;
    for (const epoll_event& event : ready) {
      if (event.data.u64 == kListenEvent) has_new = true;
      if (event.data.u64 >= kListenEvent) continue;
      if (Found found = look(static_cast<std::uint32_t>(event.data.u64))) return found;
    }
    if (has_new) {
      VERBENA_ASSIGN(Found found, accept_some());
      if (found) return found;
    }
    if (Found found = drop_late()) return found;
    if (resting_ && rest_until_.passed()) set_accepting(true);
    if (!is_closed() && deadline.passed()) return std::unexpected(no_client(deadline));
  }
}

void SocketListener::close() noexcept {
  closed_.store(true, std::memory_order_release);
  // From now on the kernel refuses connections, instead of leaving them in the backlog. Descriptors stay open until
  // destruction, so this cannot hit a reused number.
  (void)shutdown(listening_.get(), SHUT_RDWR);
  signal_eventfd(closing_.get());  // Never read: so every later wait returns at once as well.
}

Deadline SocketListener::due() const noexcept {
  const Deadline oldest = oldest_ != kNone ? slots_[oldest_].deadline : Deadline::never();
  return resting_ ? earlier(oldest, rest_until_) : oldest;
}

Result<SocketListener::Found> SocketListener::accept_some() noexcept {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK || is_closed()) return Found{};
      if (error == EBADF || error == EINVAL || error == ENOTSOCK)
        return fail_system("accept4", error, "taking a client");
      if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) continue;  // Only this client's.
      if (oldest_ == kNone) {
        set_accepting(false);
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
  return nullptr;
}

/// Asks a client that names a key to prove it, after proving that this side has it. Logs the reason of a refusal; the
/// client learns only the name.
Result<void> SocketListener::challenge(Slot& slot) noexcept {
  if (slot.seal) return broken("a KEY came twice");
  VERBENA_ASSIGN(const KeyClaim claim, decode_key(slot.inbox.bytes()));
  if (options_.keys == nullptr)
    return fail(Status::kNotAllowed, "connect", 0,
                "the server asks for no key, and has none: connect without key_file, or start it with one");
  const HostPort peer = HostPort::of_peer(slot.fd.get());
  auto key = options_.keys->find(claim.name());
  if (key == nullptr) {
    log_refusal("{} names the key {}, which is not in {}: add it there, and start the server again", peer.c_str(),
                claim.name(), options_.keys->path());
    return refused_key(claim.name());
  }
  Nonce nonce;
  VERBENA_TRY(fill_random(nonce));
  slot.seal.emplace(std::move(key), slot.inbox.bytes());
  Outbox outbox{.frame = slot.seal->put(SealedStep::kChallenge, encode_challenge(nonce))};
  VERBENA_ASSIGN(const bool is_sent, try_send(slot.fd.get(), outbox, {.peer = peer.c_str(), .awaited = kAwaitedHello}));
  // A new socket has room for these first bytes, unless the kernel is short of memory.
  if (!is_sent) return fail(Status::kNoMemory, "connect", 0, "no room for a challenge");
  slot.inbox.have = 0;
  slot.inbox.need = kHeaderBytes;
  return {};
}

/// Returns the HELLO in the slot's frame, checked by its seal if this listener has keys; nothing if more frames must
/// come. kProtocol: no client of this release sends such a frame.
Result<std::optional<Endpoint>> SocketListener::take_frame(Slot& slot) noexcept {
  VERBENA_ASSIGN(const FrameType type, decode_type(slot.inbox.bytes()));
  if (type == FrameType::kKey) {
    VERBENA_TRY(challenge(slot));
    return std::nullopt;
  }
  if (options_.keys != nullptr && !slot.seal)
    return fail(Status::kNotAllowed, "connect", 0, "the server asks for a key: connect with key_file");
  VERBENA_ASSIGN(const Endpoint hello, decode_hello(slot.inbox.bytes(), slot.seal ? Cover::kSealed : Cover::kOpen));
  if (!slot.seal || slot.seal->check(SealedStep::kClientHello, slot.inbox.bytes())) return hello;
  log_refusal("{} did not prove that it has the key {}: it does not have it, or somebody has changed its HELLO",
              HostPort::of_peer(slot.fd.get()).c_str(), slot.seal->key_name());
  return refused_key(slot.seal->key_name());
}

/// Takes the bytes that the socket has. Turns a whole HELLO into a handshake, and frees the slot; drops a socket that
/// can never have one.
SocketListener::Found SocketListener::look(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  if (!slot.fd) return nullptr;  // The slot was dropped earlier in this turn.
  const auto arrival = take_arrived(slot.fd.get(), slot.inbox);
  if (arrival && *arrival == Arrival::kPart) return nullptr;
  if (arrival && *arrival == Arrival::kWhole) {
    const auto hello = take_frame(slot);
    if (hello && !*hello) return nullptr;  // It was challenged.
    if (hello) {
      auto inquiry = check(**hello, slot.inbox.bytes());
      if (inquiry) return take(index, **hello, std::move(*inquiry));
      send_reject(slot.fd.get(), inquiry.error().status(), inquiry.error().text());
    } else if (hello.error().status() != Status::kProtocol) {
      send_reject(slot.fd.get(), hello.error().status(), hello.error().text());
    }
  } else if (arrival && slot.seal) {
    log_refusal("{} left when it was challenged to prove the key {}: it may have another secret",
                HostPort::of_peer(slot.fd.get()).c_str(), slot.seal->key_name());
  }
  const auto version = version_of(slot.inbox.bytes());
  if (version && *version != kProtocolVersion) {
    char text[kMaxRejectText];
    const auto end = fmt::format_to_n(text, sizeof text, "the server speaks version {} of the handshake, the client {}",
                                      kProtocolVersion, *version);
    send_reject(slot.fd.get(), Status::kProtocol, {text, end.out});
  }
  drop(index);
  return nullptr;
}

/// Checks whether to accept the client, and asks its NIC.
Result<std::unique_ptr<nic::Inquiry>> SocketListener::check(const Endpoint& remote,
                                                            std::span<const std::byte> hello) noexcept {
  VERBENA_TRY(check_user_data(remote, options_.max_request_bytes, "dial"));
  if (options_.nic == nullptr) return nullptr;
  VERBENA_TRY(check_kind(*options_.nic, remote));
  try {
    return options_.nic->inquire(remote.qp.gid, hello);
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, "dial", 0, "the server has no memory for another connection");
  }
}

SocketListener::Found SocketListener::take(std::uint32_t index, const Endpoint& remote,
                                           std::unique_ptr<nic::Inquiry> inquiry) noexcept {
  const Inbox& hello = slots_[index].inbox;  // Still valid after the slot is free.
  std::optional<Seal> seal = std::move(slots_[index].seal);
  Found handshake(new (std::nothrow)
                      SocketHandshake(remove(index), remote, hello, std::move(inquiry), std::move(seal), options_));
  if (!handshake) count_dropped();
  return handshake;
}

/// Ends a socket whose time is over, unless its HELLO has come while no thread was in `next`.
SocketListener::Found SocketListener::look_and_drop(std::uint32_t index) noexcept {
  if (Found found = look(index)) return found;
  if (slots_[index].fd) drop(index);
  return nullptr;
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
  slot.seal.reset();
  free_ = index;
  VERBENA_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, slot.fd.get(), nullptr) == 0);
  return std::move(slot.fd);
}

void SocketListener::drop(std::uint32_t index) noexcept {
  remove(index).reset();
  count_dropped();
  // A flood of noise would keep this thread's processor for a whole slice from one that serves clients.
  constexpr std::uint64_t kDropsAtATime = 8;
  if (dropped() % kDropsAtATime == 0) yield_thread();
}

/// Pauses or resumes accepting. A pause ends by itself after kAcceptRest.
void SocketListener::set_accepting(bool accepting) noexcept {
  epoll_event event{.events = accepting ? std::uint32_t{EPOLLIN} : 0, .data = {.u64 = kListenEvent}};
  VERBENA_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listening_.get(), &event) == 0);
  resting_ = !accepting;
  rest_until_ = Deadline::after(kAcceptRest);
}

}  // namespace

unsigned usual_pending() noexcept {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kFewestPending;
  return static_cast<unsigned>(std::clamp<rlim_t>(descriptors.rlim_cur / 4, kFewestPending, kUsualPending));
}

Result<std::unique_ptr<Listener>> Listener::open(const ListenerOptions& options) {
  if (options.max_pending == 0 || options.max_pending > kMostPending) {
    return fail(Status::kBadArgument, "Listener::open", 0, "max_pending is {} and must be 1 to {}", options.max_pending,
                kMostPending);
  }
  if (options.hello_timeout <= std::chrono::milliseconds::zero()) {
    return fail(Status::kBadArgument, "Listener::open", 0, "hello_timeout is {} ms and must be at least 1",
                options.hello_timeout.count());
  }
  VERBENA_ASSIGN(Fd listening, bind_to(options.address, options.port));
  if (!options.is_shut_at_first) VERBENA_TRY(listen_at(listening, options.address, SOMAXCONN));
  VERBENA_ASSIGN(Fd epoll, nic::make_epoll({}, "making a listener"));
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
