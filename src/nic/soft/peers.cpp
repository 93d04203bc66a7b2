// Conversations with peers' NICs: connecting to one, greeting it, and asking it for things.
//
// No thread waits for a peer in a system call. Requests wait in queues of the conversation; a few at a time are on the
// socket, and the control thread gives each answer to the oldest of them. A caller with a deadline sleeps on a
// condition variable until an answer comes; a caller without one calls again. A request that nobody waits for any more
// is dropped, but keeps its place if it is on the socket, so that later answers find their requests.
#include "base/cancellation.hpp"
#include "nic/soft/path.hpp"
#include "nic/soft/rendezvous.hpp"

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdio>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace verbena::nic::soft {

namespace {

/// Most requests on one socket. This limits the descriptors in flight to a peer that does not answer, which the kernel
/// counts for each user.
constexpr std::size_t kMostAsked = 16;

/// Why nobody answers to a GID of this host: the process is gone, or is in another network namespace, which has its own
/// abstract sockets.
[[nodiscard]] Error nobody_answers(const ibv_gid& gid) {
  const GidParts parts = parts_of(gid);
  struct stat mine{};
  struct stat theirs{};
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%u/ns/net", parts.pid);
  if (::stat("/proc/self/ns/net", &mine) == 0 && ::stat(path, &theirs) == 0 && mine.st_ino != theirs.st_ino) {
    return format_error(
        Status::kOtherNamespace, "connect", ECONNREFUSED,
        "the peer (pid {}) is on this host but in another network namespace; run both in one, or use an RDMA "
        "device",
        parts.pid);
  }
  return format_error(Status::kPeerLost, "connect", ECONNREFUSED,
                      "no process answers to the peer's address (its pid was {}): it has ended or closed its NIC",
                      parts.pid);
}

/// Why the peer refuses to talk; nothing if it does not.
[[nodiscard]] std::optional<Error> refusal_of(const Peer& peer, const Reply& reply) noexcept {
  if (reply.answer == Answer::kNotAllowed) {
    return format_error(Status::kNotAllowed, "recvmsg", EACCES,
                        "the peer (pid {}, uid {}) does not let uid {} connect; add it to the peer's allow-list",
                        peer.process.pid, peer.process.uid, ::geteuid());
  }
  if (reply.answer == Answer::kVersion) {
    return format_error(Status::kProtocol, "recvmsg", 0,
                        "the peer's soft NIC has layout version {}, this one {}; use one release", reply.version,
                        kLayoutVersion);
  }
  return std::nullopt;
}

/// A descriptor that is readable once the process at the other end of `socket` has ended.
[[nodiscard]] Result<Fd> pidfd_of(int socket, const PeerProcess& process) {
  int pidfd = -1;
  socklen_t length = sizeof pidfd;
  // The kernel's own pidfd for the socket's other end avoids the race with a reused pid; Linux before 6.5 has none.
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) != 0) {
    pidfd = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
  }
  if (pidfd >= 0) return Fd(pidfd);
  if (errno == ESRCH) {
    return fail(Status::kPeerLost, "pidfd_open", ESRCH, "the peer (pid {}) has just ended", process.pid);
  }
  return fail_system("pidfd_open", errno, "watching the peer's process");
}

}  // namespace

Error hung_up(const Peer& peer, int cause) noexcept {
  return format_error(Status::kPeerLost, "recvmsg", cause, "the peer (pid {}) closed its NIC while it was asked",
                      peer.process.pid);
}

std::unexpected<Error> no_answer(const Peer& peer) noexcept {
  if (peer.state == Peer::State::kConnecting) {
    return fail(Status::kTimedOut, "connect", EAGAIN, "the peer's NIC did not take the connection before the deadline");
  }
  return fail(Status::kTimedOut, "recvmsg", ETIMEDOUT, "the peer (pid {}) did not answer before the deadline",
              peer.process.pid);
}

/// Returns the peer of that GID, with one more use counted: a known one, or a new one that it begins to greet.
Result<Peer*> SoftNic::find_peer(const ibv_gid& gid) {
  if (parts_of(gid).boot != parts_of(gid_).boot) {
    return fail(Status::kOtherHost, "connect", 0,
                "the peer is on another host, and the soft NIC connects processes of one host; use an RDMA NIC, or the "
                "kernel's Soft-RoCE (rdma link add)");
  }
  const auto known = std::find_if(peers_.begin(), peers_.end(),
                                  [&](const auto& peer) { return same(peer->gid, gid) && !peer->dead.load(); });
  if (known != peers_.end()) {
    ++(*known)->users;
    return known->get();
  }
  auto fresh = std::make_unique<Peer>();
  fresh->gid = gid;
  fresh->users = 1;
  VERBENA_TRY(connect_to(*fresh));
  peers_.push_back(std::move(fresh));
  return peers_.back().get();
}

/// Connects and greets, or arranges to try again later.
Result<void> SoftNic::connect_to(Peer& peer) {
  if (is_late()) {
    retry_later();
    return {};
  }
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail_system("socket", errno, "connecting to the peer's NIC");
  const SocketName name = name_of(peer.gid);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0) {
    if (errno == EAGAIN || errno == EINTR) {
      retry_later();
      return {};
    }
    if (errno == ECONNREFUSED) return std::unexpected(nobody_answers(peer.gid));
    return fail_system("connect", errno, "connecting to the peer's NIC");
  }
  VERBENA_ASSIGN(peer.process, credentials(socket.get()));
  if (!allowed(peer.process.uid)) {
    return fail(Status::kNotAllowed, "connect", EACCES,
                "the peer (pid {}) runs as uid {}, which is not on this process's allow-list (option allowed_uids)",
                peer.process.pid, peer.process.uid);
  }
  if (peer.process.pid != ::getpid()) {
    VERBENA_ASSIGN(peer.pidfd, pidfd_of(socket.get(), peer.process));
  }
  peer.socket = std::move(socket);
  peer.socket_source = add_source(peer.socket.get(), EPOLLIN, {Source::Kind::kPeerSocket, &peer});
  if (peer.pidfd) peer.pidfd_source = add_source(peer.pidfd.get(), EPOLLIN, {Source::Kind::kPeerPidfd, &peer});
  if (peer.socket_source == 0 || (peer.pidfd && peer.pidfd_source == 0)) {
    const int cause = errno;
    unwatch(peer);
    return fail_system("epoll_ctl", cause, "watching the peer's process");
  }
  peer.state = Peer::State::kGreeting;
  auto hello = std::make_shared<Ask>();
  hello->request.type = RequestType::kHello;
  hello->request.my_gid = gid_;
  ask(peer, std::move(hello));
  return {};
}

/// Handles the peer's answer to the greeting.
Result<void> SoftNic::introduce(Peer& peer, Ask& hello) {
  if (hello.failure) return std::unexpected(*hello.failure);
  const Reply& reply = hello.reply;
  if (reply.answer != Answer::kOk || hello.received.count < 1 || reply.key_entries < 2 ||
      reply.key_entries > kMaxKeyIndex || !same(reply.gid, peer.gid)) {
    return fail(Status::kProtocol, "recvmsg", 0, "the peer's NIC did not introduce itself properly");
  }
  peer.key_entries = reply.key_entries;
  VERBENA_ASSIGN(peer.imports, LazyTable<Import>::create(reply.key_entries));
  VERBENA_ASSIGN(peer.keys, Mapping::of_peer(hello.received.fds[0].get(), reply.key_entries * sizeof(KeyEntry),
                                             Mapping::Mode::kRead));
  if (peer.is_stranger()) {
    if (!is_kept(hello.received.fds[0].get())) return std::unexpected(punchable(peer));
    peer.key_file = std::move(hello.received.fds[0]);
  }
  if (hello.received.count > 1) {
    if (reply.size == 0 || reply.size > (1U << 24)) {
      return fail(Status::kProtocol, "recvmsg", 0, "impossible ready set");
    }
    VERBENA_ASSIGN(peer.ready, Mapping::of_peer(hello.received.fds[1].get(), reply.size, Mapping::Mode::kReadWrite));
  }
  peer.state = Peer::State::kKnown;
  return {};
}

// --- requests -------------------------------------------------------------------------------------------------------

void SoftNic::ask(Peer& peer, std::shared_ptr<Ask> ask) {
  peer.unsent.push_back(std::move(ask));
  send_asks(peer);
}

/// Sends waiting requests, as far as the socket takes them now.
void SoftNic::send_asks(Peer& peer) noexcept {
  while (!peer.dead.load() && !peer.unsent.empty() && peer.sent.size() < kMostAsked) {
    if (is_late()) return retry_later();
    Ask& next = *peer.unsent.front();
    const auto bytes = std::as_bytes(std::span(&next.request, 1));
    if (send_message(peer.socket.get(), bytes, next.fds.given(), next.attested)) {
      peer.sent.push_back(std::move(peer.unsent.front()));
      peer.unsent.pop_front();
      continue;
    }
    const int cause = errno;
    if (cause == EAGAIN) return await_room(peer, true);
    // Too many descriptors of this user are in flight, over all processes: the kernel takes no more.
    if (cause == ETOOMANYREFS) return retry_later();
    if (cause == EPIPE || cause == ECONNRESET) return lose_peer(peer, hung_up(peer, cause));
    next.failure = system_error("sendmsg", cause, "asking the peer's NIC");
    next.is_over = true;
    peer.unsent.pop_front();
    tell_progress();
  }
  await_room(peer, false);
}

void SoftNic::await_room(Peer& peer, bool wanted) noexcept {
  if (peer.awaits_room == wanted || peer.socket_source == 0) return;
  peer.awaits_room = wanted;
  epoll_event event{};
  event.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = peer.socket_source;
  ::epoll_ctl(sources_.epoll.get(), EPOLL_CTL_MOD, peer.socket.get(), &event);
}

/// Gives answers to their requests. Takes no more than can have been asked; the kernel reports the rest again.
void SoftNic::take_answers(Peer& peer) noexcept {
  for (std::size_t i = 0; i <= kMostAsked && !peer.dead.load(); ++i) {
    if (is_late()) break;
    Reply reply;
    Fds received;
    const ssize_t got =
        receive_message(peer.socket.get(), std::as_writable_bytes(std::span(&reply, 1)), received, peer.process.uid);
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) return lose_peer(peer, hung_up(peer, got == 0 ? 0 : errno));
    if (is_cut()) return lose_peer(peer, hung_up(peer, EBADMSG));
    if (peer.sent.empty()) {
      return lose_peer(peer, format_error(Status::kProtocol, "recvmsg", 0,
                                          "the peer (pid {}) sent an answer that nobody asked for", peer.process.pid));
    }
    const std::shared_ptr<Ask> ask = std::move(peer.sent.front());
    peer.sent.pop_front();
    ask->is_over = true;
    if (got != static_cast<ssize_t>(sizeof reply) || reply.magic != kMagic) {
      ask->failure =
          format_error(Status::kProtocol, "recvmsg", 0, "the peer answered with something that is not an answer");
    } else {
      ask->failure = refusal_of(peer, reply);
      ask->reply = reply;
      ask->received = std::move(received);
    }
    if (ask->request.type != RequestType::kHello) continue;
    if (const Result<void> known = introduce(peer, *ask); !known) return lose_peer(peer, known.error());
  }
  send_asks(peer);
  tell_progress();
}

/// Drops a request that nobody waits for any more. One that is on the socket keeps its place, because its answer may
/// still come.
void SoftNic::drop_ask(Peer& peer, const Ask& ask) noexcept {
  std::erase_if(peer.unsent, [&](const auto& entry) { return entry.get() == &ask; });
}

void SoftNic::retry_later(std::chrono::nanoseconds pause) noexcept {
  if (std::exchange(retry_.is_set, true)) return;
  itimerspec when{};
  when.it_value.tv_nsec = pause.count();
  ::timerfd_settime(retry_.timer.get(), 0, &when, nullptr);
}

void SoftNic::retry() noexcept {
  drain_eventfd(retry_.timer.get());  // A timer is read like an eventfd.
  retry_.is_set = false;
  resume_incoming();
  for (const auto& peer : peers_) {
    if (peer->dead.load()) continue;
    if (peer->state != Peer::State::kConnecting) {
      send_asks(*peer);
    } else if (const Result<void> connected = connect_to(*peer); !connected) {
      lose_peer(*peer, connected.error());
    }
  }
}

// --- waiting --------------------------------------------------------------------------------------------------------

void SoftNic::notify_progress(int eventfd) noexcept {
  const std::lock_guard lock(mutex_);
  progress_.eventfd = eventfd;
}

void SoftNic::tell_progress() noexcept {
  progress_.told.notify_all();
  if (progress_.eventfd >= 0) signal_eventfd(progress_.eventfd);
}

/// Sleeps until any answer has come. False when the deadline passes.
bool SoftNic::await_answer(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  if (deadline.passed()) return false;
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours{1};  // A longer time may not fit the clock.
  const CancellationHeld held;
  (void)progress_.told.wait_for(lock, std::min(deadline.left(), kLongest));
  return true;
}

// --- ends -----------------------------------------------------------------------------------------------------------

void SoftNic::unwatch(Peer& peer) noexcept {
  if (peer.socket_source != 0) drop_source(std::exchange(peer.socket_source, 0), peer.socket.get());
  if (peer.pidfd_source != 0) drop_source(std::exchange(peer.pidfd_source, 0), peer.pidfd.get());
}

/// The peer is gone, or does not keep to the protocol: fails all its requests, and the QPs that lead there.
void SoftNic::lose_peer(Peer& peer, const Error& why) noexcept {
  if (peer.dead.exchange(true)) return;
  peer.failure = why;
  unwatch(peer);
  for (auto* queue : {&peer.sent, &peer.unsent}) {
    for (const auto& ask : *queue) {
      ask->is_over = true;
      ask->failure = why;
    }
    queue->clear();
  }
  for (auto& [number, qp] : qps_) {
    if (qp->path.peer != &peer) continue;
    qp->failing.peer_dead.store(true, std::memory_order_release);
    attention(*qp);
  }
  tell_progress();
}

/// The last release closes the conversation.
void SoftNic::release_peer(Peer* peer) noexcept {
  if (--peer->users != 0) return;
  unwatch(*peer);
  const auto at = std::ranges::find(peers_, peer, &std::unique_ptr<Peer>::get);
  free_later(gone_.ended.peers, std::move(*at));
  peers_.erase(at);
}

}  // namespace verbena::nic::soft
