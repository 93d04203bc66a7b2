#include "link/cm/manager.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/fd.hpp"
#include "link/cm/id.hpp"
#include "link/cm/private_data.hpp"
#include "link/socket.hpp"
#include "link/watches.hpp"
#include "nic/descriptors.hpp"
#include "nic/event_thread.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

namespace verbena::link::cm {

namespace {

/// For calls that have no infinite timeout.
constexpr int kLongestMs = 3'600'000;

int timeout_ms(Deadline deadline) noexcept {
  const int left = deadline.left_ms();
  return left < 0 ? kLongestMs : std::clamp(left, 1, kLongestMs);
}

/// Connection parameters for a queue pair of this side.
rdma_conn_param param_of(const Endpoint& local, std::uint8_t rd_atomic, const PrivateData& data) noexcept {
  const BringUp defaults;
  rdma_conn_param param{};
  param.private_data = data.data.data();
  param.private_data_len = static_cast<std::uint8_t>(data.size);
  param.responder_resources = rd_atomic;
  param.initiator_depth = rd_atomic;
  param.retry_count = defaults.retry_count;
  param.rnr_retry_count = defaults.rnr_retry;
  param.qp_num = local.qp.qp_num;
  return param;
}

ibv_gid gid_of(const sockaddr& address) noexcept {
  ibv_gid gid{};
  if (address.sa_family == AF_INET6) {
    std::memcpy(gid.raw, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, sizeof gid.raw);
  } else if (address.sa_family == AF_INET) {
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  }
  return gid;
}

/// The other side's endpoint from an event's parameters: CM gives its queue pair, the private data the rest.
Result<Endpoint> remote_of(const rdma_cm_event& event, nic::Network network) {
  const rdma_conn_param& param = event.param.conn;
  Endpoint remote;
  remote.nic = nic::Kind::kVerbs;
  remote.qp.gid = gid_of(event.id->route.addr.dst_addr);
  remote.qp.qp_num = param.qp_num;
  remote.qp.mtu = IBV_MTU_4096;  // The route has the path's MTU.
  remote.qp.max_rd_atomic = std::min(param.responder_resources, param.initiator_depth);
  remote.qp.network = network;
  const std::size_t bytes = param.private_data != nullptr ? param.private_data_len : 0;
  VERBENA_TRY(decode_cm_hello({static_cast<const std::byte*>(param.private_data), bytes}, remote));
  return remote;
}

/// The thread that learns of peers that leave, and the ids of established connections.
class Watcher {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Watcher>> start(const CmLibrary& library);
  /// Watches an established id.
  [[nodiscard]] Result<Lifeline> take(Id id);

 private:
  class Watched final : public Lifeline::Watched {
   public:
    Watched(Watcher& watcher, Id id) noexcept : watcher_(watcher), id_(std::move(id)) {}
    ~Watched() override;
    [[nodiscard]] Result<void> enter();
    void watch(nic::Nic& nic, const ibv_qp* qp) noexcept override { watcher_.watches_.watch(id_.get(), nic, qp); }

   private:
    Watcher& watcher_;
    Id id_;
  };

  explicit Watcher(const CmLibrary& library) noexcept : library_(library) {}
  [[nodiscard]] bool take_event() noexcept;

  const CmLibrary& library_;
  EventChannel channel_;
  Watches<const rdma_cm_id*> watches_;
  nic::EventThread thread_;  // Last: reads everything above.
};

Result<std::unique_ptr<Watcher>> Watcher::start(const CmLibrary& library) {
  std::unique_ptr<Watcher> watcher(new Watcher(library));
  VERBENA_ASSIGN(watcher->channel_, EventChannel::open(library));
  VERBENA_TRY(watcher->thread_.start("verbena-cm", watcher->channel_.fd(),
                                     [raw = watcher.get()] { return raw->take_event(); }));
  return watcher;
}

/// Whether an event ends an established connection. A server that has not heard of its client's last message rejects
/// the connection when it leaves.
bool is_end(rdma_cm_event_type event) noexcept {
  return event == RDMA_CM_EVENT_DISCONNECTED || event == RDMA_CM_EVENT_REJECTED ||
         event == RDMA_CM_EVENT_DEVICE_REMOVAL;
}

/// False if the channel is broken: then only the device's own events and keepalives tell of peers.
bool Watcher::take_event() noexcept {
  const Result<Event> event = channel_.poll();
  if (!event) return false;
  if (*event && is_end((*event)->event)) watches_.gone((*event)->id);
  return true;
}

Result<Lifeline> Watcher::take(Id id) {
  auto watched = std::make_unique<Watched>(*this, std::move(id));
  VERBENA_TRY(watched->enter());
  return Lifeline(std::move(watched));
}

/// Enters it into the table before its events can come.
Result<void> Watcher::Watched::enter() {
  watcher_.watches_.enter(id_.get());
  return id_.move_to(watcher_.channel_);
}

Watcher::Watched::~Watched() {
  watcher_.watches_.leave(id_.get());
  // Tells the peer at once. Fails if the peer has gone before.
  (void)watcher_.library_.disconnect(id_.get());
}

/// Fails for a client that is gone; the caller destroys the id in any case.
void reject(const CmLibrary& library, const Id& id, Status status, std::string_view text) noexcept {
  const PrivateData data = encode_cm_reject(status, text);
  (void)library.reject(id.get(), data.data.data(), static_cast<std::uint8_t>(data.size));
}

/// Either end of a handshake.
class CmHandshake final : public Handshake, private Route {
 public:
  CmHandshake(Role role, const CmLibrary& library, Watcher& watcher, Id id, const Endpoint& remote, const char* peer)
      : Handshake(role, remote, kMaxCmAnswerBytes),
        library_(library),
        watcher_(watcher),
        id_(std::move(id)),
        peer_(peer) {}

 private:
  Result<bool> try_answer(const Endpoint& local) override;
  Result<bool> try_finish() override;
  Result<Lifeline> take_lifeline() override { return watcher_.take(std::move(id_)); }
  void send_reject(Status status, std::string_view text) noexcept override;
  void close() noexcept override { id_.reset(); }
  [[nodiscard]] int descriptor() const noexcept override { return id_.channel().fd(); }
  [[nodiscard]] const Route* route() const noexcept override { return this; }
  [[nodiscard]] Error late() const noexcept override;
  Result<int> attributes(ibv_qp_attr& attr) const override;

  const CmLibrary& library_;
  Watcher& watcher_;
  Id id_;
  const std::string peer_;
};

/// After its answer a server only destroys the id, which rejects the connection, too. With rdma_reject the kernel would
/// go on to send the answer, and rdma_destroy_id would wait for the last of its repetitions: 70 s.
void CmHandshake::send_reject(Status status, std::string_view text) noexcept {
  if (!has_met()) cm::reject(library_, id_, status, text);
}

Result<int> CmHandshake::attributes(ibv_qp_attr& attr) const {
  const ibv_qp_state state = attr.qp_state;
  int mask = 0;
  if (library_.init_qp_attr(id_.get(), &attr, &mask) != 0) return refused("rdma_init_qp_attr", errno, peer_.c_str());
  attr.qp_state = state;
  return mask;
}

Result<bool> CmHandshake::try_answer(const Endpoint& local) {
  const PrivateData data = encode_cm_hello(local);
  rdma_conn_param param = param_of(local, std::min(local.qp.max_rd_atomic, remote().qp.max_rd_atomic), data);
  if (library_.accept(id_.get(), &param) != 0) return refused("rdma_accept", errno, peer_.c_str());
  return true;
}

// A client does not wait: the server's answer was the last message.
Result<bool> CmHandshake::try_finish() {
  if (role() == Role::kServer) {
    VERBENA_ASSIGN(const Event event, id_.channel().poll());
    if (!event) return false;
    VERBENA_TRY(check_event(event, RDMA_CM_EVENT_ESTABLISHED, peer_.c_str()));
  } else if (library_.establish(id_.get()) != 0) {
    return refused("rdma_establish", errno, peer_.c_str());
  }
  return true;
}

Error CmHandshake::late() const noexcept {
  return format_error(Status::kTimedOut, "rdma_accept", 0,
                      "{} did not finish the handshake in time: see whether it still runs", peer_);
}

class CmListener final : public Listener {
 public:
  CmListener(const CmLibrary& library, Watcher& watcher, nic::Nic& nic, const ListenerOptions& options, Id id,
             Fd closing, Fd epoll) noexcept
      : library_(library),
        watcher_(watcher),
        nic_(nic),
        name_(options.address, options.port),
        max_pending_(options.max_pending),
        id_(std::move(id)),
        closing_(std::move(closing)),
        epoll_(std::move(epoll)) {}

  std::uint16_t port() const noexcept override { return port_; }
  Result<void> admit() override;
  int fd() const noexcept override { return epoll_.get(); }
  Deadline due() const noexcept override { return Deadline::never(); }
  Result<std::unique_ptr<Handshake>> next(Deadline deadline) override;
  void close() noexcept override { signal_eventfd(closing_.get()); }  // Never drained.
  std::uint64_t dropped() const noexcept override { return dropped_.load(std::memory_order_relaxed); }

 private:
  [[nodiscard]] std::unique_ptr<Handshake> take(Event event);
  [[nodiscard]] Result<void> check(const Id& id, const Result<Endpoint>& remote) const;

  const CmLibrary& library_;
  Watcher& watcher_;
  nic::Nic& nic_;
  const HostPort name_;
  const unsigned max_pending_;
  Id id_;
  const Fd closing_;
  const Fd epoll_;  ///< Contains the id's channel and `closing_`.
  const std::uint16_t port_ = ntohs(library_.source_port(id_.get()));
  std::atomic<std::uint64_t> dropped_{0};
};

Result<void> CmListener::admit() {
  if (library_.listen(id_.get(), static_cast<int>(max_pending_)) == 0) return {};
  return refused("rdma_listen", errno, name_.c_str());
}

Result<std::unique_ptr<Handshake>> CmListener::next(Deadline deadline) {
  for (;;) {
    if (is_signalled(closing_.get())) {
      id_.reset();  // RDMA CM refuses requests from here on.
      return fail(Status::kClosed, "Listener::next", 0, "the listener was closed by this process");
    }
    VERBENA_ASSIGN(auto event, id_.channel().poll());
    if (event) {
      if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
        return fail(Status::kDevice, "Listener::next", ENODEV, "the RDMA device that is listened on was removed");
      if (auto handshake = take(std::move(event))) return handshake;
      continue;
    }
    if (deadline.passed()) return std::unexpected(no_client(deadline));
    VERBENA_TRY(wait_for(epoll_.get(), POLLIN, deadline));
  }
}

std::unique_ptr<Handshake> CmListener::take(Event event) {
  // Ignores events of ids that are moving to their own channel.
  if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) return nullptr;
  const auto remote = remote_of(*event, nic::facts_of(nic_)->network);
  rdma_cm_id* const raw = event->id;
  event.reset();
  auto id = Id::adopt(library_, raw);
  if (id) {
    const Result<void> fits = check(*id, remote);
    if (fits) {
      const nic::verbs::GidText host = nic::verbs::gid_text(gid_of((*id)->route.addr.dst_addr));
      return std::make_unique<CmHandshake>(Role::kServer, library_, watcher_, std::move(*id), *remote, host.data());
    }
    reject(library_, *id, fits.error().status(), fits.error().text());
  }
  dropped_.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

Result<void> CmListener::check(const Id& id, const Result<Endpoint>& remote) const {
  const char* const device = id->verbs->device->name;
  if (std::strcmp(device, nic_.name()) != 0)
    return fail(Status::kRejected, "connect", 0,
                "the server serves device {} and the request came to {}: connect to an address of {}", nic_.name(),
                device, nic_.name());
  VERBENA_TRY(remote);
  return check_user_data(*remote, kMaxCmRequestBytes, "dial");
}

/// Resolves an address, after which the id's device is known.
Result<void> resolve_address(const CmLibrary& library, const Id& id, sockaddr& to, const char* peer,
                             Deadline deadline) {
  if (library.resolve_addr(id.get(), &to, timeout_ms(deadline)) != 0) return refused("rdma_resolve_addr", errno, peer);
  VERBENA_TRY(id.channel().expect(RDMA_CM_EVENT_ADDR_RESOLVED, peer, deadline));
  return {};
}

class CmManager final : public Manager {
 public:
  CmManager(const CmLibrary& library, nic::Nic& nic, std::unique_ptr<Watcher> watcher) noexcept
      : library_(library), nic_(nic), watcher_(std::move(watcher)) {}
  Result<std::unique_ptr<Handshake>> dial(const std::string& host, std::uint16_t port, const Endpoint& local,
                                          Deadline deadline) override;
  Result<std::unique_ptr<Listener>> listen(const ListenerOptions& options) override;

 private:
  [[nodiscard]] Result<std::unique_ptr<Handshake>> dial_one(sockaddr& to, const char* peer, const Endpoint& local,
                                                            Deadline deadline);

  const CmLibrary& library_;
  nic::Nic& nic_;
  const std::unique_ptr<Watcher> watcher_;
};

Result<std::unique_ptr<Handshake>> CmManager::dial(const std::string& host, std::uint16_t port, const Endpoint& local,
                                                   Deadline deadline) {
  VERBENA_TRY(check_local(local, kMaxCmRequestBytes, "dial"));
  const HostPort peer(host, port);
  if (port == 0) return fail(Status::kBadArgument, "dial", 0, "nothing can listen at {}: give a port", peer.c_str());
  VERBENA_ASSIGN(const Addresses addresses, resolve(host, port, 0));
  return try_each(addresses, deadline, [&](const addrinfo& to, Deadline share) {
    return dial_one(*to.ai_addr, peer.c_str(), local, share);
  });
}

Result<std::unique_ptr<Handshake>> CmManager::dial_one(sockaddr& to, const char* peer, const Endpoint& local,
                                                       Deadline deadline) {
  VERBENA_ASSIGN(Id id, Id::create(library_));
  VERBENA_TRY(resolve_address(library_, id, to, peer, deadline));
  if (std::strcmp(id->verbs->device->name, nic_.name()) != 0)
    return fail(Status::kBadArgument, "dial", 0,
                "{} is reached by device {} and not by {}: choose that device, or none, or connect in socket mode",
                peer, id->verbs->device->name, nic_.name());
  if (library_.resolve_route(id.get(), timeout_ms(deadline)) != 0) return refused("rdma_resolve_route", errno, peer);
  VERBENA_TRY(id.channel().expect(RDMA_CM_EVENT_ROUTE_RESOLVED, peer, deadline));
  const PrivateData data = encode_cm_hello(local);
  rdma_conn_param param = param_of(local, local.qp.max_rd_atomic, data);
  if (library_.connect(id.get(), &param) != 0) return refused("rdma_connect", errno, peer);
  VERBENA_ASSIGN(const Event event, id.channel().expect(RDMA_CM_EVENT_CONNECT_RESPONSE, peer, deadline));
  const auto remote = remote_of(*event, local.qp.network);
  if (!remote) return fail(remote.error().status(), remote.error().call(), 0, "{}: {}", peer, remote.error().text());
  return std::make_unique<CmHandshake>(Role::kClient, library_, *watcher_, std::move(id), *remote, peer);
}

/// An id bound to an address of this host.
Result<Id> bind_to(const CmLibrary& library, const std::string& address, std::uint16_t port) {
  const HostPort name(address, port);
  VERBENA_ASSIGN(const Addresses addresses, resolve(address.empty() ? "::" : address, port, AI_PASSIVE));
  return try_each(addresses, Deadline::never(), [&](const addrinfo& to, Deadline) -> Result<Id> {
    VERBENA_ASSIGN(Id id, Id::create(library));
    if (library.bind_addr(id.get(), to.ai_addr) != 0) return refused("rdma_bind_addr", errno, name.c_str());
    return id;
  });
}

Result<std::unique_ptr<Listener>> CmManager::listen(const ListenerOptions& options) {
  VERBENA_ASSIGN(Id id, bind_to(library_, options.address, options.port));
  const HostPort name(options.address, options.port);
  // There is no device: the address is the wildcard, or loopback, where nobody could reach it.
  if (id->verbs == nullptr && !is_any(id->route.addr.src_addr)) return refused("rdma_bind_addr", ENODEV, name.c_str());
  if (id->verbs != nullptr && std::strcmp(id->verbs->device->name, nic_.name()) != 0)
    return fail(Status::kBadArgument, "Listener::open", 0,
                "{} is an address of device {} and not of {}: listen on one of its own, or choose that device",
                name.c_str(), id->verbs->device->name, nic_.name());
  VERBENA_ASSIGN(Fd closing, make_eventfd());
  VERBENA_ASSIGN(Fd epoll, nic::make_epoll({closing.get(), id.channel().fd()}, "making a listener"));
  auto listener = std::make_unique<CmListener>(library_, *watcher_, nic_, options, std::move(id), std::move(closing),
                                               std::move(epoll));
  if (!options.is_shut_at_first) VERBENA_TRY(listener->admit());
  return listener;
}

nic::VerbsOptions place_at(const Id& id) {
  nic::VerbsOptions place{.device = id->verbs->device->name, .port = id->port_num, .gid = {}};
  const sockaddr& local = id->route.addr.src_addr;
  if (local.sa_family == AF_INET) place.gid.address = gid_of(local);
  return place;
}

}  // namespace

Result<std::unique_ptr<Manager>> start_with(const CmLibrary& library, nic::Nic& nic) {
  VERBENA_ASSIGN(auto watcher, Watcher::start(library));
  return std::make_unique<CmManager>(library, nic, std::move(watcher));
}

Result<nic::VerbsOptions> place_of(const CmLibrary& library, const std::string& address) {
  VERBENA_ASSIGN(const Id id, bind_to(library, address, 0));
  if (id->verbs != nullptr) return place_at(id);
  return fail(Status::kNotFound, "cm::place_of", 0, "{} is not an address of a single device", address);
}

Result<nic::VerbsOptions> place_towards(const CmLibrary& library, const std::string& host, std::uint16_t port,
                                        Deadline deadline) {
  const HostPort peer(host, port);
  VERBENA_ASSIGN(const Addresses addresses, resolve(host, port, 0));
  return try_each(addresses, deadline, [&](const addrinfo& to, Deadline share) -> Result<nic::VerbsOptions> {
    VERBENA_ASSIGN(const Id id, Id::create(library));
    VERBENA_TRY(resolve_address(library, id, *to.ai_addr, peer.c_str(), share));
    return place_at(id);
  });
}

}  // namespace verbena::link::cm
