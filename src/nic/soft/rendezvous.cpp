// Rendezvous of the soft NIC: an abstract Unix socket named by the GID, credentials from the kernel, descriptors over
// SCM_RIGHTS, and the control thread that serves it and watches peers' sockets and pidfds. peers.cpp has the requests
// of this side.
#include "nic/soft/rendezvous.hpp"

#include "nic/soft/soft_nic.hpp"

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "host/thread.hpp"
#include "nic/descriptors.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ranges>

namespace verbena::nic::soft {

namespace {

// Most peers that have connected and not greeted: one more pushes out the oldest one of the user who has most of them.
// Greeted ones are bounded by max_qp, and for each user but our own by a quarter of that, and by a quarter of the usual
// limit of a process's descriptors.
constexpr std::size_t kMaxUngreeted = 256;
constexpr std::size_t kMaxOfOneStranger = 256;

[[nodiscard]] std::uint32_t boot_hash() noexcept {
  char id[64] = {};
  std::size_t length = 0;
  if (const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)); file) {
    length = static_cast<std::size_t>(std::max<ssize_t>(::read(file.get(), id, sizeof id), 0));
  }
  return static_cast<std::uint32_t>(hash64(std::as_bytes(std::span(id, length))));
}

/// A process in a PID namespace that this one cannot see.
constexpr Asker kUnknown{};

/// Whose share a process uses; nothing for this one.
[[nodiscard]] std::optional<Asker> asker_of(const PeerProcess& process) noexcept {
  if (process.pid == ::getpid()) return std::nullopt;
  return Asker{process.uid, process.uid == ::geteuid() ? process.pid : 0};
}

}  // namespace

GidParts parts_of(const ibv_gid& gid) noexcept {
  GidParts parts{};
  static_assert(sizeof parts == sizeof gid);
  std::memcpy(&parts, &gid, sizeof parts);
  return parts;
}

SocketName name_of(const ibv_gid& gid) noexcept {
  SocketName name;
  name.address.sun_family = AF_UNIX;
  char* at = name.address.sun_path + 1;  // The leading zero makes it abstract.
  char* const end = name.address.sun_path + sizeof name.address.sun_path;
  at += std::snprintf(at, static_cast<std::size_t>(end - at), "verbena/");
  for (const std::uint8_t byte : gid.raw) at += std::snprintf(at, static_cast<std::size_t>(end - at), "%02x", byte);
  name.length = static_cast<socklen_t>(at - reinterpret_cast<char*>(&name.address));
  return name;
}

Result<PeerProcess> credentials(int socket) {
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

bool SoftNic::allowed(uid_t uid) const noexcept {
  return uid == ::geteuid() || std::find(allowed_uids_.begin(), allowed_uids_.end(), uid) != allowed_uids_.end();
}

std::uint64_t SoftNic::add_source(int fd, std::uint32_t events, Source source) {
  const std::uint64_t id = sources_.next++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(sources_.epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) return 0;
  sources_.by_id.emplace(id, source);
  return id;
}

/// Watches a source for requests, or leaves it alone: then the kernel tells a hang-up, and that at most once.
void SoftNic::watch_source(std::uint64_t id, int fd, bool wanted) noexcept {
  epoll_event event{};
  event.events = wanted ? EPOLLIN : EPOLLONESHOT;
  event.data.u64 = id;
  ::epoll_ctl(sources_.epoll.get(), EPOLL_CTL_MOD, fd, &event);
}

void SoftNic::pause_listener(bool wanted) noexcept {
  if (std::exchange(listener_.is_paused, wanted) == wanted) return;
  watch_source(listener_.source, listener_.socket.get(), !wanted);
}

void SoftNic::drop_source(std::uint64_t id, int fd) noexcept {
  ::epoll_ctl(sources_.epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  sources_.by_id.erase(id);
}

Result<void> SoftNic::open_rendezvous() {
  GidParts parts{};
  parts.boot = boot_hash();
  parts.pid = static_cast<std::uint32_t>(::getpid());
  std::uint64_t random = 0;
  VERBENA_TRY(fill_random(std::as_writable_bytes(std::span(&random, 1))));
  parts.random = random;
  std::memcpy(&gid_, &parts, sizeof gid_);

  VERBENA_ASSIGN(sources_.epoll, make_epoll({}, "opening the soft NIC"));
  VERBENA_ASSIGN(sources_.stop, make_eventfd());
  VERBENA_ASSIGN(sources_.stir, make_eventfd());
  retry_.timer = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!retry_.timer) return fail_system("timerfd_create", errno, "opening the soft NIC");
  listener_.socket = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_.socket) return fail_system("socket", errno, "opening the soft NIC's rendezvous socket");
  const SocketName name = name_of(gid_);
  if (::bind(listener_.socket.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0 ||
      ::listen(listener_.socket.get(), 1024) != 0) {
    return fail_system("bind", errno, "opening the soft NIC's rendezvous socket");
  }
  listener_.source = add_source(listener_.socket.get(), EPOLLIN, {Source::Kind::kListener});
  if (listener_.source == 0 || add_source(sources_.stop.get(), EPOLLIN, {Source::Kind::kStop}) == 0 ||
      add_source(sources_.stir.get(), EPOLLIN, {Source::Kind::kStir}) == 0 ||
      add_source(retry_.timer.get(), EPOLLIN, {Source::Kind::kRetry}) == 0) {
    return fail_system("epoll_ctl", errno, "opening the soft NIC");
  }
  VERBENA_ASSIGN(control_, host::start_thread("verbena-nic", [this] { control_loop(); }));
  return {};
}

SoftNic::~SoftNic() {
  live_.fetch_sub(1, std::memory_order_relaxed);
  if (control_.joinable()) {
    signal_eventfd(sources_.stop.get());
    control_.join();
  }
  VERBENA_CHECK(qps_.empty());  // A NIC must outlive its queue pairs: their owners hold pointers into it.
}

// --- serving peers: the control thread ------------------------------------------------------------------------------

void SoftNic::control_loop() noexcept {
  for (;;) {
    epoll_event event{};
    // Sleeps until a peer comes, goes or asks, or the NIC closes: the stop event is among the sources.
    if (::epoll_wait(sources_.epoll.get(), &event, 1, -1) != 1) continue;
    const Lock lock(*this);
    // A copy: the struct is packed, and a reference to its member would be misaligned.
    const std::uint64_t id = event.data.u64;
    const auto at = sources_.by_id.find(id);
    if (at == sources_.by_id.end()) continue;  // Dropped by another thread meanwhile.
    const Source source = at->second;
    switch (source.kind) {
      case Source::Kind::kStop: return;
      case Source::Kind::kStir:
        drain_eventfd(sources_.stir.get());
        for (auto& [number, qp] : qps_) {
          if (qp->rq.srq != nullptr) attention(*qp);
        }
        break;
      case Source::Kind::kListener: accept_incoming(); break;
      case Source::Kind::kIncoming: serve(listener_.incoming.find(id)); break;
      case Source::Kind::kRetry: retry(); break;
      case Source::Kind::kPeerSocket:
        if ((event.events & EPOLLOUT) != 0) send_asks(*source.peer);
        if ((event.events & ~std::uint32_t{EPOLLOUT}) != 0) take_answers(*source.peer);
        break;
      case Source::Kind::kPeerPidfd: lose_peer(*source.peer, hung_up(*source.peer, 0)); break;
    }
    if (source.peer != nullptr && source.peer->dead.load()) forget_departed();
  }
}

void SoftNic::drop_incoming(std::map<std::uint64_t, Incoming>::iterator at) noexcept {
  drop_source(at->first, at->second.socket.get());
  listener_.incoming.erase(at);
}

/// Closes the oldest connection that has not greeted, of the user who has most of those. False if all have greeted.
bool SoftNic::evict_ungreeted() noexcept {
  auto chosen = listener_.incoming.end();
  std::ptrdiff_t most = 0;
  for (auto at = listener_.incoming.begin(); at != listener_.incoming.end(); ++at) {
    if (at->second.greeted) continue;
    const std::ptrdiff_t same_user = std::count_if(at, listener_.incoming.end(), [&](const auto& other) {
      return !other.second.greeted && other.second.process.uid == at->second.process.uid;
    });
    if (same_user <= most) continue;
    most = same_user;
    chosen = at;
  }
  if (chosen == listener_.incoming.end()) return false;
  drop_incoming(chosen);
  return true;
}

void SoftNic::accept_incoming() noexcept {
  if (is_late()) return;
  const std::uint64_t before = processor_ticks();
  Fd socket(::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno != EMFILE && errno != ENFILE) return;
    // There is no descriptor to accept with: close one that has not greeted, or the listener would spin.
    if (evict_ungreeted()) return;
    // All descriptors serve well-behaved peers: stop listening until one of them leaves.
    pause_listener(true);
    return;
  }
  const auto who = credentials(socket.get());
  const std::optional<Asker> asker = who ? asker_of(*who) : kUnknown;
  if (who) take_incoming(std::move(socket), *who, asker);
  if (!asker) return;
  const std::uint64_t now = ticks_now();
  listener_.connections.charge(*asker, processor_ticks() - before, now);
  if (!listener_.connections.is_used_up(*asker, now)) return;
  // The kernel does not say who comes next, so all wait; none is lost in the backlog.
  pause_listener(true);
  retry_later(Shares::kPause);
}

/// Adds a connection, which may cost one that has not greeted its place.
void SoftNic::take_incoming(Fd socket, const PeerProcess& who, const std::optional<Asker>& asker) noexcept {
  const auto count = [this](const auto& is_counted) {
    return static_cast<std::size_t>(std::ranges::count_if(listener_.incoming | std::views::values, is_counted));
  };
  if (count([](const Incoming& one) { return !one.greeted; }) >= kMaxUngreeted) (void)evict_ungreeted();
  if (who.uid != ::geteuid()) {
    const std::size_t same_user = count([&](const Incoming& one) { return one.process.uid == who.uid; });
    if (same_user >= std::clamp<std::size_t>(limits_.max_qp / 2, 4, kMaxOfOneStranger)) {
      const auto oldest = std::ranges::find_if(listener_.incoming, [&](const auto& entry) {
        return !entry.second.greeted && entry.second.process.uid == who.uid;
      });
      if (oldest == listener_.incoming.end()) return;
      drop_incoming(oldest);
    }
  }
  if (listener_.incoming.size() >= std::size_t{2} * limits_.max_qp) return;
  const int fd = socket.get();
  const std::uint64_t id = add_source(fd, EPOLLIN, {Source::Kind::kIncoming});
  if (id != 0) listener_.incoming.emplace(id, Incoming{std::move(socket), who, asker});
}

/// Serves one request, unless the peer has used up its share: then it stays in the socket, which fills, so that the
/// peer itself has to wait, and costs nothing more until resume_incoming.
void SoftNic::serve(std::map<std::uint64_t, Incoming>::iterator at) noexcept {
  if (is_late()) return;              // The kernel reports it again.
  if (at->second.is_put_off) return;  // It has hung up, which resume_incoming finds.
  const std::optional<Asker> asker = at->second.asker;
  if (!asker) {
    (void)serve_now(at);
    return;
  }
  Served served = Served::kInVain;
  const std::uint64_t before = processor_ticks();
  const std::uint64_t now = ticks_now();
  if (listener_.requests.is_used_up(*asker, now)) {
    put_off(at->first, at->second, true);
    retry_later(Shares::kPause);
  } else {
    served = serve_now(at);
    if (served != Served::kGone) ring_if_read(at->second);
  }
  listener_.requests.charge(*asker, processor_ticks() - before, ticks_now(), served == Served::kInVain);
}

void SoftNic::put_off(std::uint64_t id, Incoming& incoming, bool wanted) noexcept {
  incoming.is_put_off = wanted;
  incoming.may_lack_wakes |= wanted;
  watch_source(id, incoming.socket.get(), !wanted);
}

/// Goes on with connections whose peers have a share again. They pay for this, too: a peer may have many of them.
void SoftNic::resume_incoming() noexcept {
  pause_listener(false);
  for (auto& [id, incoming] : listener_.incoming) {
    if (!incoming.is_put_off) continue;
    const std::uint64_t before = processor_ticks();
    const std::uint64_t now = ticks_now();
    if (listener_.requests.is_used_up(*incoming.asker, now)) {
      retry_later(Shares::kPause);
      continue;
    }
    put_off(id, incoming, false);
    listener_.requests.charge(*incoming.asker, processor_ticks() - before, now);
  }
}

/// Once a peer that was put off has no more requests: makes up for wakes that its full socket did not take.
void SoftNic::ring_if_read(Incoming& incoming) noexcept {
  if (!incoming.may_lack_wakes) return;
  std::byte next{};
  if (::recv(incoming.socket.get(), &next, sizeof next, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN) return;
  incoming.may_lack_wakes = false;
  for (const auto& [number, qp] : qps_) {
    if (qp->path.peer != nullptr && qp->path.peer->process == incoming.process) ring_bells(*qp);
  }
}

Shares::Use SoftNic::use_of(const PeerProcess& process) const {
  const std::lock_guard lock(mutex_);
  const std::optional<Asker> asker = asker_of(process);
  if (!asker) return {};
  Shares::Use use = listener_.requests.use_of(*asker);
  const Shares::Use connecting = listener_.connections.use_of(*asker);
  use.ticks += connecting.ticks;
  use.put_off += connecting.put_off;
  return use;
}

SoftNic::Served SoftNic::serve_now(std::map<std::uint64_t, Incoming>::iterator at) noexcept {
  Incoming& incoming = at->second;
  std::array<std::byte, kMaxRequestBytes> message;
  Request request;
  Fds fds;
  const uid_t user = incoming.process.uid;
  const ssize_t got =
      receive_message(incoming.socket.get(), message, fds, allowed(user) ? std::optional(user) : std::nullopt);
  if (got < 0 && errno == EAGAIN) return Served::kInVain;
  if (got >= static_cast<ssize_t>(sizeof request)) std::memcpy(&request, message.data(), sizeof request);
  if (got == static_cast<ssize_t>(sizeof request) + request.attested_bytes && !is_cut()) {
    const auto attested = std::span(message).subspan(sizeof request, request.attested_bytes);
    const bool is_quiet =
        request.type == RequestType::kWake || request.type == RequestType::kServe || request.type == RequestType::kTake;
    if (is_quiet && attested.empty() && request.magic == kMagic && incoming.greeted) {
      return serve_quietly(incoming, request) ? Served::kDone : Served::kInVain;
    }
    const bool is_again = incoming.greeted && request.type == RequestType::kHello;
    Reply reply;
    Handout out;
    reply.gid = gid_;
    reply.answer = answer(incoming, request, attested, fds, reply, out);
    // A well-behaved peer takes its answer at once.
    if (send_message(incoming.socket.get(), std::as_bytes(std::span(&reply, 1)), out.given()) &&
        reply.answer != Answer::kNotAllowed && reply.answer != Answer::kVersion && reply.answer != Answer::kBad)
      return is_again ? Served::kInVain : Served::kDone;
  }
  drop_incoming(at);
  if (!retry_.is_set) pause_listener(false);  // A peer that connects all the time waits for the timer.
  return Served::kGone;
}

namespace {
/// Whether there is something for which the owner wants to be woken. A message is published before its wake is sent.
[[nodiscard]] bool needs_wake(const SoftQp& qp) noexcept {
  const RemoteQp* const remote = qp.remote.load(std::memory_order_acquire);
  if (remote == nullptr || qp.rq.srq != nullptr) return true;
  const std::uint32_t wanted = qp.own->rare.wake.load(std::memory_order_acquire);
  if ((wanted & Wake::kCredit) != 0) return true;
  return (wanted & (Wake::kMessage | Wake::kSolicited)) != 0 &&
         remote->ring.has(qp.own->consumer.consumed.load(std::memory_order_acquire));
}
}  // namespace

/// Serves a request that has no reply, for a QP whose peer is that process. Returns whether it was good for anything.
bool SoftNic::serve_quietly(const Incoming& incoming, const Request& request) noexcept {
  const auto at = qps_.find(request.your_qp);
  if (at == qps_.end()) return false;
  SoftQp& qp = *at->second;
  if (qp.path.peer == nullptr || qp.path.peer->process.pid != incoming.process.pid) return false;
  if (request.type == RequestType::kServe) return serve_outside(qp);
  if (request.type == RequestType::kTake) return receive_for_owner(qp);
  const bool is_needed = needs_wake(qp);
  if (is_needed) ring_bells(qp);
  return is_needed;
}

Answer SoftNic::answer(Incoming& incoming, const Request& request, std::span<const std::byte> attested, Fds& fds,
                       Reply& reply, Handout& out) {
  if (request.magic != kMagic) return Answer::kBad;
  if (request.version != kLayoutVersion) return Answer::kVersion;
  if (!allowed(incoming.process.uid)) return Answer::kNotAllowed;
  if (!attested.empty() && request.type != RequestType::kConfirm) return Answer::kBad;
  switch (request.type) {
    case RequestType::kHello:
      incoming.greeted = true;
      reply.key_entries = options_.max_mr;
      out.add(keys_.shared.fd.get());
      if (incoming.process.uid == ::geteuid()) {
        // Peers of this user share the ready set and may write it; the owner sweeps over the others instead.
        reply.size = ready_.words.mapping.size();
        out.add(ready_.words.fd.get());
      }
      return Answer::kOk;
    case RequestType::kOffer: {
      if (!incoming.greeted || request.bell_count > kMaxBells || fds.count != 1 + std::size_t{request.bell_count})
        return Answer::kBad;
      // The data path writes to them, so they must be eventfds: a pipe could raise SIGPIPE, a file of a hostile file
      // system could block.
      const auto bells = std::span(fds.fds).subspan(1, request.bell_count);
      if (!std::ranges::all_of(bells, is_eventfd, &Fd::get)) return Answer::kBad;
      take_offer(incoming, request, fds);
      return Answer::kOk;
    }
    case RequestType::kMemory: {
      const auto at = memories_.find(request.memory_id);
      if (!incoming.greeted || at == memories_.end()) return Answer::kUnknown;
      // Does not end the conversation: another arena may well be granted.
      if (!may_have(at->second, incoming.process)) return Answer::kNotGranted;
      reply.size = at->second.size;
      reply.writable = at->second.share == host::Share::kReadWrite ? 1 : 0;
      reply.is_populated = at->second.populate == host::Populate::kAll ? 1 : 0;
      out.add(at->second.fd);
      at->second.give_to(incoming.process);
      return Answer::kOk;
    }
    case RequestType::kConfirm: {
      if (!incoming.greeted) return Answer::kBad;
      return confirm(attested) ? Answer::kOk : Answer::kUnknown;
    }
    case RequestType::kServe:
    case RequestType::kTake:
    case RequestType::kWake: break;  // These have no reply, and need a greeting first.
  }
  return Answer::kBad;
}

void SoftNic::Memory::give_to(const PeerProcess& process) {
  if (given.size() < kMostKnown && !is_given_to(process)) given.push_back(process);
}

bool SoftNic::Memory::is_given_to(const PeerProcess& process) const noexcept {
  return given.size() == kMostKnown || std::ranges::find(given, process) != given.end();
}

bool SoftNic::may_have(const Memory& memory, const PeerProcess& process) const {
  switch (memory.grant.to) {
    case Grant::To::kNobody: return false;
    case Grant::To::kAnyPeer: return true;
    case Grant::To::kUsers: return std::ranges::find(memory.grant.users, process.uid) != memory.grant.users.end();
    case Grant::To::kOneGid: break;
  }
  // The grantee is the process that listens on that GID's name, as the kernel told when this NIC connected to it.
  return std::any_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
    return same(peer->gid, memory.grant.gid) && !peer->dead.load() && peer->process == process;
  });
}

/// The known bell of that number, or from now on this duplicate of it. Null for another user's bell: that user could
/// fill it and make it block, or drain its rings.
std::shared_ptr<const Fd> SoftNic::keep_bell(Incoming& incoming, std::uint32_t number, Fd duplicate) {
  if (incoming.process.uid != ::geteuid()) return nullptr;
  if (const auto known = incoming.bells.find(number); known != incoming.bells.end()) {
    if (auto bell = known->second.lock()) return bell;
  }
  // The data path writes to it: it must not block, whatever flags its maker has set.
  if (!set_non_blocking(duplicate.get(), "taking a peer's bell")) return nullptr;
  std::erase_if(incoming.bells, [](const auto& entry) { return entry.second.expired(); });
  auto bell = std::make_shared<const Fd>(std::move(duplicate));
  incoming.bells.insert_or_assign(number, bell);
  return bell;
}

void SoftNic::take_offer(Incoming& incoming, const Request& request, Fds& fds) {
  const auto at = qps_.find(request.your_qp);
  if (at == qps_.end()) return;  // As on a wire: the sender retries a request to a missing QP, then gives up.
  SoftQp& qp = *at->second;
  if (qp.remote.load() != nullptr) return;  // Connected: it takes no further offer before it is reset.
  // Anyone allowed may offer to any QP; the QP uses only an offer from the process behind the GID that it is told to
  // connect to. A newer offer of the same process replaces its older one; beyond the limit, the user with the most
  // offers loses the oldest: strangers cannot push out another user's.
  std::vector<Offer>& offers = qp.path.offers;
  std::erase_if(offers, [&](const Offer& old) {
    return old.process.pid == incoming.process.pid && same(old.request.my_gid, request.my_gid) &&
           old.request.my_qp == request.my_qp;
  });
  if (offers.size() >= kMaxOffers) {
    const auto of_user = [&](uid_t uid) {
      return std::count_if(offers.begin(), offers.end(), [&](const Offer& old) { return old.process.uid == uid; });
    };
    offers.erase(std::max_element(offers.begin(), offers.end(), [&](const Offer& a, const Offer& b) {
      return of_user(a.process.uid) < of_user(b.process.uid);
    }));
  }
  Offer offer{.request = request, .memory = std::move(fds.fds[0]), .bells = {}, .process = incoming.process};
  for (std::size_t i = 0; i < request.bell_count; ++i) {
    offer.bells[i] = keep_bell(incoming, request.bells[i], std::move(fds.fds[1 + i]));
  }
  offers.push_back(std::move(offer));
  match_offer(qp);
}

}  // namespace verbena::nic::soft
