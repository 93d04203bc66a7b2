// Rendezvous of the soft NIC: an abstract Unix socket named by the GID, credentials from the kernel, descriptors over
// SCM_RIGHTS, and the control thread that serves it and watches peers' sockets and pidfds.
#include "nic/soft/soft_nic.hpp"

#include "base/check.hpp"
#include "base/hash.hpp"
#include "host/thread.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace verbena::nic::soft {

namespace {

// Peers that have connected and not greeted: one more pushes the oldest out, of the user who has most of them. Greeted
// ones: bounded by max_qp, and for each user but our own by a quarter of that, and by a quarter of the descriptors that
// a process usually may have.
constexpr std::size_t kMaxUngreeted = 64;
constexpr std::size_t kMaxOfOneStranger = 256;

/// GID = 32 bits of the boot id's hash, 32 bits of pid as a hint for messages, 64 random bits.
struct GidParts {
  std::uint32_t boot;
  std::uint32_t pid;
  std::uint64_t random;
};
[[nodiscard]] GidParts parts_of(const ibv_gid& gid) noexcept {
  GidParts parts{};
  static_assert(sizeof parts == sizeof gid);
  std::memcpy(&parts, &gid, sizeof parts);
  return parts;
}

[[nodiscard]] std::uint32_t boot_hash() noexcept {
  char id[64] = {};
  std::size_t length = 0;
  if (const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)); file) {
    length = static_cast<std::size_t>(std::max<ssize_t>(::read(file.get(), id, sizeof id), 0));
  }
  return static_cast<std::uint32_t>(hash64(std::as_bytes(std::span(id, length))));
}

struct SocketName {
  sockaddr_un address{};
  socklen_t length = 0;
};
/// The abstract name of the NIC with that GID.
[[nodiscard]] SocketName name_of(const ibv_gid& gid) noexcept {
  SocketName name;
  name.address.sun_family = AF_UNIX;
  char* at = name.address.sun_path + 1;  // The leading zero makes it abstract.
  char* const end = name.address.sun_path + sizeof name.address.sun_path;
  at += std::snprintf(at, static_cast<std::size_t>(end - at), "verbena/");
  for (const std::uint8_t byte : gid.raw) at += std::snprintf(at, static_cast<std::size_t>(end - at), "%02x", byte);
  name.length = static_cast<socklen_t>(at - reinterpret_cast<char*>(&name.address));
  return name;
}

[[nodiscard]] Result<PeerProcess> credentials(int socket) {
  ucred who{};
  socklen_t length = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) {
    return fail_system("getsockopt", errno, "asking who the peer is");
  }
  if (who.pid == 0) {
    return fail(
        Status::kOtherNamespace, "getsockopt", 0,
        "the peer runs in a PID namespace that this process cannot see; run both in one, or share it (--pid=host)");
  }
  return PeerProcess{who.pid, who.uid};
}

/// Why nobody answers to a GID of this host: the process is gone, or it lives in another network namespace, which has
/// abstract sockets of its own.
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

}  // namespace

bool SoftNic::allowed(uid_t uid) const noexcept {
  return uid == ::geteuid() || std::find(allowed_uids_.begin(), allowed_uids_.end(), uid) != allowed_uids_.end();
}

std::uint64_t SoftNic::add_source(int fd, std::uint32_t events, Source source) {
  const std::uint64_t id = next_source_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return 0;
  sources_.emplace(id, source);
  return id;
}

void SoftNic::drop_source(std::uint64_t id, int fd) noexcept {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  sources_.erase(id);
}

Result<void> SoftNic::open_rendezvous() {
  GidParts parts{};
  parts.boot = boot_hash();
  parts.pid = static_cast<std::uint32_t>(::getpid());
  if (::getrandom(&parts.random, sizeof parts.random, 0) != static_cast<ssize_t>(sizeof parts.random)) {
    return fail_system("getrandom", errno, "making the NIC's address");
  }
  std::memcpy(&gid_, &parts, sizeof gid_);

  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return fail_system("epoll_create1", errno, "opening the soft NIC");
  VERBENA_ASSIGN(stop_, make_eventfd());
  VERBENA_ASSIGN(stir_, make_eventfd());
  listener_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) return fail_system("socket", errno, "opening the soft NIC's rendezvous socket");
  const SocketName name = name_of(gid_);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0 ||
      ::listen(listener_.get(), 1024) != 0) {
    return fail_system("bind", errno, "opening the soft NIC's rendezvous socket");
  }
  if (add_source(listener_.get(), EPOLLIN, {Source::Kind::kListener}) == 0 ||
      add_source(stop_.get(), EPOLLIN, {Source::Kind::kStop}) == 0 ||
      add_source(stir_.get(), EPOLLIN, {Source::Kind::kStir}) == 0) {
    return fail_system("epoll_ctl", errno, "opening the soft NIC");
  }
  VERBENA_ASSIGN(control_, host::start_thread("verbena-nic", [this] { control_loop(); }));
  return {};
}

SoftNic::~SoftNic() {
  live_.fetch_sub(1, std::memory_order_relaxed);
  if (control_.joinable()) {
    signal_eventfd(stop_.get());
    control_.join();
  }
  VERBENA_CHECK(qps_.empty());  // A NIC outlives its queue pairs: their owners hold pointers into it.
}

// --- serving peers: the control thread ------------------------------------------------------------------------------

void SoftNic::control_loop() noexcept {
  for (;;) {
    epoll_event event{};
    // Sleeps until a peer comes, goes or asks, or the NIC closes: the stop event is among the sources.
    if (::epoll_wait(epoll_.get(), &event, 1, -1) != 1) continue;
    const std::lock_guard lock(mutex_);
    // A copy: the struct is packed, and a reference to its member would be misaligned.
    const std::uint64_t id = event.data.u64;
    const auto at = sources_.find(id);
    if (at == sources_.end()) continue;  // Dropped by another thread meanwhile.
    const Source source = at->second;
    switch (source.kind) {
      case Source::Kind::kStop: return;
      case Source::Kind::kStir:
        drain_eventfd(stir_.get());
        for (auto& [number, qp] : qps_) {
          if (qp->srq != nullptr) attention(*qp);
        }
        break;
      case Source::Kind::kListener: accept_incoming(); break;
      case Source::Kind::kIncoming: serve(id, incoming_.at(id)); break;
      case Source::Kind::kPeerSocket:
      case Source::Kind::kPeerPidfd: peer_gone(source.gid); break;
    }
  }
}

/// Gives up the oldest connection that has not greeted, of the user who has most of those. False when all have greeted.
bool SoftNic::evict_ungreeted() noexcept {
  auto chosen = incoming_.end();
  std::ptrdiff_t most = 0;
  for (auto at = incoming_.begin(); at != incoming_.end(); ++at) {
    if (at->second.greeted) continue;
    const std::ptrdiff_t same_user = std::count_if(at, incoming_.end(), [&](const auto& other) {
      return !other.second.greeted && other.second.process.uid == at->second.process.uid;
    });
    if (same_user <= most) continue;
    most = same_user;
    chosen = at;
  }
  if (chosen == incoming_.end()) return false;
  drop_source(chosen->first, chosen->second.socket.get());
  incoming_.erase(chosen);
  return true;
}

void SoftNic::accept_incoming() noexcept {
  Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno != EMFILE && errno != ENFILE) return;
    // No descriptor to accept with: give up one that has not greeted, or the listener would spin.
    if (evict_ungreeted()) return;
    // All descriptors serve peers in good standing: stop listening until one of them goes.
    epoll_event none{};
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), &none);
    listener_paused_ = true;
    return;
  }
  const auto who = credentials(socket.get());
  if (!who) return;
  const auto ungreeted = static_cast<std::size_t>(
      std::count_if(incoming_.begin(), incoming_.end(), [](const auto& entry) { return !entry.second.greeted; }));
  if (ungreeted >= kMaxUngreeted) (void)evict_ungreeted();
  if (who->uid != ::geteuid()) {
    const auto same_user = static_cast<std::size_t>(std::count_if(
        incoming_.begin(), incoming_.end(), [&](const auto& entry) { return entry.second.process.uid == who->uid; }));
    if (same_user >= std::clamp<std::size_t>(limits_.max_qp / 2, 4, kMaxOfOneStranger)) {
      const auto oldest = std::find_if(incoming_.begin(), incoming_.end(), [&](const auto& entry) {
        return !entry.second.greeted && entry.second.process.uid == who->uid;
      });
      if (oldest == incoming_.end()) return;
      drop_source(oldest->first, oldest->second.socket.get());
      incoming_.erase(oldest);
    }
  }
  if (incoming_.size() >= std::size_t{2} * limits_.max_qp) return;
  const int fd = socket.get();
  const std::uint64_t id = add_source(fd, EPOLLIN, {Source::Kind::kIncoming});
  if (id != 0) incoming_.emplace(id, Incoming{std::move(socket), *who, false});
}

void SoftNic::serve(std::uint64_t id, Incoming& incoming) noexcept {
  Request request;
  Fds fds;
  const ssize_t got = receive_message(incoming.socket.get(), std::as_writable_bytes(std::span(&request, 1)), fds);
  if (got < 0 && errno == EAGAIN) return;
  bool keep = false;
  if (got == static_cast<ssize_t>(sizeof request) && request.magic == kMagic && incoming.greeted &&
      (request.type == RequestType::kWake || request.type == RequestType::kServe ||
       request.type == RequestType::kTake)) {
    keep = true;
    const auto at = qps_.find(request.your_qp);
    if (at != qps_.end() && at->second->peer != nullptr && at->second->peer->process.pid == incoming.process.pid) {
      SoftQp& qp = *at->second;
      if (request.type == RequestType::kServe) {
        serve_outside(qp);
      } else if (request.type == RequestType::kTake) {
        receive_for_owner(qp);
      } else if (qp.event) {
        signal_eventfd(qp.event.get());
      }
    }
  } else if (got == static_cast<ssize_t>(sizeof request)) {
    std::array<int, 2> out{-1, -1};
    std::size_t out_count = 0;
    const Reply reply = answer(incoming, request, fds, out, out_count);
    // A peer that does not take its answer at once does not play by the rules.
    keep = send_message(incoming.socket.get(), std::as_bytes(std::span(&reply, 1)), std::span(out.data(), out_count)) &&
           reply.answer != Answer::kNotAllowed && reply.answer != Answer::kVersion && reply.answer != Answer::kBad;
  }
  if (keep) return;
  drop_source(id, incoming.socket.get());
  incoming_.erase(id);
  if (listener_paused_) {
    listener_paused_ = false;
    add_source(listener_.get(), EPOLLIN, {Source::Kind::kListener});
  }
}

Reply SoftNic::answer(Incoming& incoming, const Request& request, Fds& fds, std::array<int, 2>& out,
                      std::size_t& out_count) {
  Reply reply;
  reply.gid = gid_;
  if (request.magic != kMagic) {
    reply.answer = Answer::kBad;
    return reply;
  }
  if (request.version != kLayoutVersion) {
    reply.answer = Answer::kVersion;
    return reply;
  }
  if (!allowed(incoming.process.uid)) {
    reply.answer = Answer::kNotAllowed;
    return reply;
  }
  switch (request.type) {
    case RequestType::kHello:
      incoming.greeted = true;
      reply.key_entries = options_.max_mr;
      out[out_count++] = keys_.fd.get();
      if (incoming.process.uid == ::geteuid()) {
        // Peers of this user share the ready set and may write it; others are swept instead.
        reply.size = ready_.mapping.size();
        out[out_count++] = ready_.fd.get();
      }
      return reply;
    case RequestType::kOffer:
      if (!incoming.greeted || fds.count != 1 + std::size_t{request.has_event != 0}) {
        reply.answer = Answer::kBad;
        return reply;
      }
      // The data path writes into it: a pipe would kill with SIGPIPE, a file of a hostile file system would block.
      if (request.has_event != 0 && !is_eventfd(fds.fds[1].get())) {
        reply.answer = Answer::kBad;
        return reply;
      }
      take_offer(incoming, request, fds);
      return reply;
    case RequestType::kServe:
    case RequestType::kTake:
    case RequestType::kWake: break;  // Has no reply, and is not for who has not greeted.
    case RequestType::kMemory: {
      const auto at = memories_.find(request.memory_id);
      if (!incoming.greeted || at == memories_.end()) {
        reply.answer = Answer::kUnknown;
      } else if (!may_have(at->second, incoming.process)) {
        // Does not end the conversation: another arena may well be granted.
        reply.answer = Answer::kNotGranted;
      } else {
        reply.size = at->second.size;
        reply.writable = at->second.share == host::Share::kReadWrite ? 1 : 0;
        out[out_count++] = at->second.fd;
      }
      return reply;
    }
  }
  reply.answer = Answer::kBad;
  return reply;
}

bool SoftNic::may_have(const Memory& memory, const PeerProcess& process) const {
  switch (memory.grant.to) {
    case Grant::To::kNobody: return false;
    case Grant::To::kAnyPeer: return true;
    case Grant::To::kOneGid: break;
  }
  // The grantee is whoever the kernel says listens on that GID's name, which this NIC has connected to.
  return std::any_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
    return same(peer->gid, memory.grant.gid) && !peer->dead.load() && peer->process.pid == process.pid &&
           peer->process.uid == process.uid;
  });
}

void SoftNic::take_offer(const Incoming& incoming, const Request& request, Fds& fds) {
  const auto at = qps_.find(request.your_qp);
  if (at == qps_.end()) return;  // As on a wire: what is sent to a QP that is not there is retried, then given up.
  SoftQp& qp = *at->second;
  // Anyone allowed may offer to any QP; only an offer from the process behind the GID that the QP is told to connect to
  // is ever used. A newer offer of the same process replaces its older one, and beyond that the user with the most
  // offers loses his oldest: strangers cannot push out another user's.
  std::erase_if(qp.offers, [&](const Offer& old) {
    return old.pid == incoming.process.pid && same(old.gid, request.my_gid) && old.qp_num == request.my_qp;
  });
  if (qp.offers.size() >= kMaxOffers) {
    const auto of_user = [&](uid_t uid) {
      return std::count_if(qp.offers.begin(), qp.offers.end(), [&](const Offer& old) { return old.uid == uid; });
    };
    qp.offers.erase(std::max_element(qp.offers.begin(), qp.offers.end(),
                                     [&](const Offer& a, const Offer& b) { return of_user(a.uid) < of_user(b.uid); }));
  }
  Offer offer;
  offer.gid = request.my_gid;
  offer.qp_num = request.my_qp;
  offer.request = request;
  offer.memory = std::move(fds.fds[0]);
  if (request.has_event != 0) {
    offer.event = std::move(fds.fds[1]);
    // It is written from the data path: it must not block, whatever its maker set.
    const int flags = ::fcntl(offer.event.get(), F_GETFL);
    if (flags < 0 || ::fcntl(offer.event.get(), F_SETFL, flags | O_NONBLOCK) != 0) return;
  }
  offer.pid = incoming.process.pid;
  offer.uid = incoming.process.uid;
  qp.offers.push_back(std::move(offer));
  match_offer(qp);
}

void SoftNic::peer_gone(const ibv_gid& gid) noexcept {
  for (const auto& peer : peers_) {
    if (!same(peer->gid, gid) || peer->dead.exchange(true)) continue;
    if (peer->socket_source != 0) drop_source(std::exchange(peer->socket_source, 0), peer->socket.get());
    if (peer->pidfd_source != 0) drop_source(std::exchange(peer->pidfd_source, 0), peer->pidfd.get());
    for (auto& [number, qp] : qps_) {
      if (qp->peer != peer.get()) continue;
      qp->peer_dead.store(true, std::memory_order_release);
      attention(*qp);
    }
  }
}

// --- asking peers: user threads -------------------------------------------------------------------------------------

Result<Reply> SoftNic::request(Peer& peer, const Request& request, std::span<const int> fds, Fds& received,
                               Deadline deadline) {
  // One at a time on the socket. The lock is held for at most one exchange, which has a deadline.
  const std::lock_guard lock(peer.request_mutex);
  if (peer.dead.load()) return fail(Status::kPeerLost, "sendmsg", 0, "the peer's process is gone");
  const auto lost = [&](int error) -> std::unexpected<Error> {
    return fail(Status::kPeerLost, "recvmsg", error, "the peer (pid {}) closed its NIC while it was asked",
                peer.process.pid);
  };
  if (!send_message(peer.socket.get(), std::as_bytes(std::span(&request, 1)), fds)) {
    if (errno == EPIPE || errno == ECONNRESET) return lost(errno);
    return fail_system("sendmsg", errno, "asking the peer's NIC");
  }
  Reply reply;
  for (;;) {
    if (!wait_readable(peer.socket.get(), deadline)) {
      // An answer that comes later would be taken for the next one's: this conversation is over.
      ::shutdown(peer.socket.get(), SHUT_RDWR);
      return fail(Status::kTimedOut, "recvmsg", ETIMEDOUT, "the peer (pid {}) did not answer before the deadline",
                  peer.process.pid);
    }
    const ssize_t got = receive_message(peer.socket.get(), std::as_writable_bytes(std::span(&reply, 1)), received);
    if (got < 0 && (errno == EAGAIN)) continue;
    if (got == 0) return lost(0);
    if (got < 0) return lost(errno);
    if (got != static_cast<ssize_t>(sizeof reply) || reply.magic != kMagic) {
      return fail(Status::kProtocol, "recvmsg", 0, "the peer answered with something that is not an answer");
    }
    break;
  }
  switch (reply.answer) {
    case Answer::kNotAllowed:
      return fail(Status::kNotAllowed, "recvmsg", EACCES,
                  "the peer (pid {}, uid {}) does not let uid {} connect; add it to the peer's allow-list",
                  peer.process.pid, peer.process.uid, ::geteuid());
    case Answer::kVersion:
      return fail(Status::kProtocol, "recvmsg", 0,
                  "the peer's soft NIC has layout version {}, this one {}; use one release", reply.version,
                  kLayoutVersion);
    default: return reply;
  }
}

Result<Peer*> SoftNic::connect_peer(const ibv_gid& gid, Deadline deadline) {
  if (parts_of(gid).boot != parts_of(gid_).boot) {
    return fail(Status::kOtherHost, "connect", 0,
                "the peer is on another host, and the soft NIC connects processes of one host; use an RDMA NIC, or the "
                "kernel's Soft-RoCE (rdma link add)");
  }
  const auto find = [&]() -> Peer* {
    for (const auto& peer : peers_) {
      if (same(peer->gid, gid) && !peer->dead.load()) return peer.get();
    }
    return nullptr;
  };
  {
    const std::lock_guard lock(mutex_);
    if (Peer* peer = find(); peer != nullptr) {
      ++peer->users;
      return peer;
    }
  }
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return fail_system("socket", errno, "connecting to the peer's NIC");
  // A Unix connect blocks only while the listener's backlog is full; the send timeout bounds that.
  const auto left = std::max<std::int64_t>(std::min<std::int64_t>(deadline.left().count(), 3'600'000'000'000), 1000);
  const timeval timeout{left / 1'000'000'000, left % 1'000'000'000 / 1000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  const SocketName name = name_of(gid);
  int connected = -1;
  do {
    connected = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length);
  } while (connected != 0 && errno == EINTR && !deadline.passed());
  if (connected != 0) {
    if (errno == ECONNREFUSED) return std::unexpected(nobody_answers(gid));
    if (errno == EAGAIN) {
      return fail(Status::kTimedOut, "connect", EAGAIN,
                  "the peer's NIC did not take the connection before the deadline");
    }
    return fail_system("connect", errno, "connecting to the peer's NIC");
  }
  VERBENA_ASSIGN(const PeerProcess process, credentials(socket.get()));
  if (!allowed(process.uid)) {
    return fail(
        Status::kNotAllowed, "connect", EACCES,
        "the peer (pid {}) runs as uid {}, which is not on this process's allow-list (SoftOptions::allowed_uids)",
        process.pid, process.uid);
  }
  auto fresh = std::make_unique<Peer>();
  fresh->gid = gid;
  fresh->process = process;
  fresh->socket = std::move(socket);
  if (process.pid != ::getpid()) {
    int pidfd = -1;
    socklen_t length = sizeof pidfd;
    // The kernel's own pidfd for the socket's other end has no race with a reused pid; before Linux 6.5 there is none.
    if (::getsockopt(fresh->socket.get(), SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) != 0) {
      pidfd = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
    }
    if (pidfd < 0) {
      if (errno == ESRCH)
        return fail(Status::kPeerLost, "pidfd_open", ESRCH, "the peer (pid {}) has just ended", process.pid);
      return fail_system("pidfd_open", errno, "watching the peer's process");
    }
    fresh->pidfd = Fd(pidfd);
  }
  Request hello;
  hello.type = RequestType::kHello;
  hello.my_gid = gid_;
  Fds received;
  VERBENA_ASSIGN(const Reply reply, request(*fresh, hello, {}, received, deadline));
  if (reply.answer != Answer::kOk || received.count < 1 || reply.key_entries < 2 || reply.key_entries > kMaxKeyIndex ||
      !same(reply.gid, gid)) {
    return fail(Status::kProtocol, "recvmsg", 0, "the peer's NIC did not introduce itself properly");
  }
  fresh->key_entries = reply.key_entries;
  VERBENA_ASSIGN(fresh->imports, LazyTable<Import>::create(reply.key_entries));
  VERBENA_ASSIGN(fresh->keys,
                 Mapping::of_peer(received.fds[0].get(), reply.key_entries * sizeof(KeyEntry), Mapping::Mode::kRead));
  if (received.count > 1) {
    if (reply.size == 0 || reply.size > (1U << 24))
      return fail(Status::kProtocol, "recvmsg", 0, "impossible ready set");
    VERBENA_ASSIGN(fresh->ready, Mapping::of_peer(received.fds[1].get(), reply.size, Mapping::Mode::kReadWrite));
  }
  const std::lock_guard lock(mutex_);
  if (Peer* peer = find(); peer != nullptr) {  // Another thread connected meanwhile.
    ++peer->users;
    return peer;
  }
  Peer* peer = fresh.get();
  peer->socket_source = add_source(peer->socket.get(), EPOLLRDHUP, {Source::Kind::kPeerSocket, gid});
  if (peer->pidfd) peer->pidfd_source = add_source(peer->pidfd.get(), EPOLLIN, {Source::Kind::kPeerPidfd, gid});
  if (peer->socket_source == 0 || (peer->pidfd && peer->pidfd_source == 0)) {
    if (peer->socket_source != 0) drop_source(peer->socket_source, peer->socket.get());
    return fail_system("epoll_ctl", errno, "watching the peer's process");
  }
  peer->users = 1;
  peers_.push_back(std::move(fresh));
  return peer;
}

/// Under the mutex. The last user's going closes the conversation.
void SoftNic::release_peer(Peer* peer) noexcept {
  if (--peer->users != 0) return;
  if (peer->socket_source != 0) drop_source(peer->socket_source, peer->socket.get());
  if (peer->pidfd_source != 0) drop_source(peer->pidfd_source, peer->pidfd.get());
  std::erase_if(peers_, [&](const auto& entry) { return entry.get() == peer; });
}

}  // namespace verbena::nic::soft
