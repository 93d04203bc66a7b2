#include "fake_cm.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace verbena::link::cm {

namespace {
FakeCm* current = nullptr;
}

struct FakeCm::Event {
  rdma_cm_event base{};
  std::vector<std::byte> data;
  Id* id = nullptr;
};
struct FakeCm::Channel {
  rdma_event_channel base{};
  std::deque<std::unique_ptr<Event>> events;
};
struct FakeCm::Id {
  rdma_cm_id base{};
  Channel* channel = nullptr;
  Id* peer = nullptr;
  std::uint16_t port = 0;
  bool is_asking = false;    ///< Has connected, and was not answered.
  bool is_answered = false;  ///< Has accepted.
  bool is_ready = false;     ///< And has heard that the other side is ready.
};

FakeCm::~FakeCm() { current = nullptr; }

std::size_t FakeCm::live() const {
  const std::lock_guard lock(mutex_);
  return channels_.size() + ids_.size() + taken_.size();
}

bool FakeCm::fails() {
  if (++calls != fail_at) return false;
  errno = fail_errno;
  return true;
}

void FakeCm::post(Id& id, rdma_cm_event_type type, int status, const rdma_conn_param* param, Id* listener) {
  auto event = std::make_unique<Event>();
  event->base.event = type;
  event->base.status = status;
  event->base.id = &id.base;
  event->id = &id;
  if (listener != nullptr) event->base.listen_id = &listener->base;
  if (param != nullptr) {
    const auto* bytes = static_cast<const std::byte*>(param->private_data);
    event->data.assign(bytes, bytes + param->private_data_len);
    // As CM delivers it: the packet's whole field.
    event->data.resize(type == RDMA_CM_EVENT_CONNECT_REQUEST ? 56 : type == RDMA_CM_EVENT_REJECTED ? 148 : 196);
    if (spoils_data && type == RDMA_CM_EVENT_CONNECT_REQUEST) event->data[2] = std::byte{9};
    event->base.param.conn = *param;
    event->base.param.conn.private_data = event->data.data();
    event->base.param.conn.private_data_len = static_cast<std::uint8_t>(event->data.size());
  }
  Channel& channel = listener != nullptr ? *listener->channel : *id.channel;
  const std::uint64_t one = 1;
  channel.events.push_back(std::move(event));
  if (::write(channel.base.fd, &one, sizeof one) != sizeof one) std::abort();
}

/// An end of a connection goes: the other hears of it.
void FakeCm::part(Id& id) {
  if (id.peer == nullptr) return;
  Id& peer = *std::exchange(id.peer, nullptr);
  peer.peer = nullptr;
  if (peer.is_asking || (id.is_answered && !id.is_ready)) {
    post(peer, RDMA_CM_EVENT_REJECTED, 28);
  } else {
    post(peer, RDMA_CM_EVENT_DISCONNECTED);
  }
}

struct FakeCm::Table {
  static FakeCm& fake() { return *current; }
  static Id& of(rdma_cm_id* id) { return *fake().ids_.at(id); }

  static rdma_event_channel* create_event_channel() {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return nullptr;
    auto channel = std::make_unique<Channel>();
    channel->base.fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    return &(*f.channels_.insert(std::move(channel)).first)->base;
  }
  static Channel& channel_of(rdma_event_channel* base) {
    for (const auto& channel : fake().channels_)
      if (&channel->base == base) return *channel;
    std::abort();
  }
  static void destroy_event_channel(rdma_event_channel* base) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    const Channel& channel = channel_of(base);
    for (const auto& [raw, id] : f.ids_)
      if (id->channel == &channel) std::abort();  // As the library says: ids go first.
    ::close(base->fd);
    std::erase_if(f.channels_, [&](const auto& one) { return one.get() == &channel; });
  }
  static Id& make(Channel& channel) {
    auto id = std::make_unique<Id>();
    id->channel = &channel;
    id->base.channel = &channel.base;
    rdma_cm_id* raw = &id->base;
    return *(fake().ids_[raw] = std::move(id));
  }
  static int create_id(rdma_event_channel* channel, rdma_cm_id** out) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    *out = &make(channel_of(channel)).base;
    return 0;
  }
  static int destroy_id(rdma_cm_id* raw) {
    FakeCm& f = fake();
    std::unique_lock lock(f.mutex_);
    Id& id = of(raw);
    // The library waits until all events of the id are acknowledged: another thread is about to. One that holds an
    // event itself would wait for ever.
    const auto is_free = [&] {
      return std::ranges::none_of(f.taken_, [&](const auto& one) { return one.second->id == &id; });
    };
    if (!f.acknowledged_.wait_for(lock, std::chrono::seconds{10}, is_free)) std::abort();
    f.part(id);
    if (f.listeners_.contains(id.port) && f.listeners_[id.port] == &id) f.listeners_.erase(id.port);
    for (const auto& channel : f.channels_)
      std::erase_if(channel->events, [&](const auto& event) { return event->id == &id; });
    f.ids_.erase(raw);
    return 0;
  }
  static int migrate_id(rdma_cm_id* raw, rdma_event_channel* to) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    Id& id = of(raw);
    Channel& target = channel_of(to);
    for (auto& event : id.channel->events) {
      if (event == nullptr || event->id != &id) continue;
      const std::uint64_t one = 1;
      target.events.push_back(std::move(event));
      if (::write(target.base.fd, &one, sizeof one) != sizeof one) std::abort();
    }
    std::erase_if(id.channel->events, [](const auto& event) { return event == nullptr; });
    id.channel = &target;
    raw->channel = to;
    return 0;
  }
  static void set_place(Id& id) {
    FakeCm& f = fake();
    // Other threads look at the name of what they have.
    if (f.device != f.device_.name) std::strncpy(f.device_.name, f.device.c_str(), sizeof f.device_.name - 1);
    id.base.verbs = &f.context_;
    id.base.port_num = 1;
    id.base.route.addr.src_sin.sin_family = AF_INET;
    inet_pton(AF_INET, "10.0.0.1", &id.base.route.addr.src_sin.sin_addr);
  }
  static std::uint16_t port_of(const sockaddr* address) {
    return ntohs(address->sa_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(address)->sin6_port
                                                : reinterpret_cast<const sockaddr_in*>(address)->sin_port);
  }
  static int bind_addr(rdma_cm_id* raw, sockaddr* address) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    Id& id = of(raw);
    id.port = port_of(address) != 0 ? port_of(address) : ++f.next_port_;
    if (f.listeners_.contains(id.port)) {
      errno = EADDRINUSE;
      return -1;
    }
    std::memcpy(&id.base.route.addr.src_storage, address,
                address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    // The kernel takes loopback, and ties it to no device.
    const bool is_loopback = address->sa_family == AF_INET &&
                             reinterpret_cast<sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    const bool is_any = address->sa_family == AF_INET6
                            ? IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<sockaddr_in6*>(address)->sin6_addr)
                            : reinterpret_cast<sockaddr_in*>(address)->sin_addr.s_addr == INADDR_ANY;
    if (!is_any && !is_loopback) set_place(id);
    return 0;
  }
  static int listen(rdma_cm_id* raw, int) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    f.listeners_[of(raw).port] = &of(raw);
    return 0;
  }
  static std::uint16_t source_port(rdma_cm_id* raw) {
    const std::lock_guard lock(fake().mutex_);
    return htons(of(raw).port);
  }
  static int resolve_addr(rdma_cm_id* raw, sockaddr* to, int) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    Id& id = of(raw);
    id.port = port_of(to);
    set_place(id);
    std::memcpy(&id.base.route.addr.dst_storage, to,
                to->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    f.post(id, f.at_resolve.value_or(RDMA_CM_EVENT_ADDR_RESOLVED), f.at_resolve_status);
    return 0;
  }
  static int resolve_route(rdma_cm_id* raw, int) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    f.post(of(raw), RDMA_CM_EVENT_ROUTE_RESOLVED);
    return 0;
  }
  static int connect(rdma_cm_id* raw, rdma_conn_param* param) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    Id& id = of(raw);
    if (f.is_silent) return 0;
    if (!f.listeners_.contains(id.port)) {
      f.post(id, RDMA_CM_EVENT_REJECTED, 8);
      return 0;
    }
    Id& listener = *f.listeners_[id.port];
    Id& child = make(*listener.channel);
    set_place(child);
    child.base.route.addr.dst_sin = child.base.route.addr.src_sin;
    id.is_asking = true;
    id.peer = &child;
    child.peer = &id;
    f.post(child, RDMA_CM_EVENT_CONNECT_REQUEST, 0, param, &listener);
    return 0;
  }
  static int accept(rdma_cm_id* raw, rdma_conn_param* param) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    Id& id = of(raw);
    if (id.peer == nullptr) {
      errno = ENOTCONN;
      return -1;
    }
    id.is_answered = true;
    id.peer->is_asking = false;
    f.post(*id.peer, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, param);
    return 0;
  }
  static int establish(rdma_cm_id* raw) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    Id* const peer = of(raw).peer;
    if (peer == nullptr || f.loses_ready) return 0;
    peer->is_ready = true;
    f.post(*peer, RDMA_CM_EVENT_ESTABLISHED);
    return 0;
  }
  static int reject(rdma_cm_id* raw, const void* data, std::uint8_t bytes) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    Id& id = of(raw);
    // The kernel would go on to repeat the answer, and wait for a minute in destroy_id.
    if (id.is_answered && !id.is_ready) std::abort();
    rdma_conn_param param{};
    param.private_data = data;
    param.private_data_len = bytes;
    if (id.peer == nullptr) return 0;
    Id& peer = *std::exchange(id.peer, nullptr);
    peer.peer = nullptr;
    f.post(peer, RDMA_CM_EVENT_REJECTED, 28, &param);
    return 0;
  }
  static int disconnect(rdma_cm_id* raw) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    f.part(of(raw));
    return 0;
  }
  static int init_qp_attr(rdma_cm_id* raw, ibv_qp_attr* attr, int* mask) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails()) return -1;
    (void)of(raw);
    f.states_asked.push_back(attr->qp_state);
    *attr = {};
    attr->port_num = 1;
    attr->dest_qp_num = 77;
    attr->path_mtu = IBV_MTU_1024;
    attr->ah_attr.grh.sgid_index = 3;
    *mask = IBV_QP_STATE;
    return 0;
  }
  static int get_event(rdma_event_channel* base, rdma_cm_event** out) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    std::uint64_t value = 0;
    if (::read(base->fd, &value, sizeof value) != sizeof value) return -1;
    Channel& channel = channel_of(base);
    if (channel.events.empty()) {  // It went with its id.
      errno = EAGAIN;
      return -1;
    }
    auto event = std::move(channel.events.front());
    channel.events.pop_front();
    *out = &event->base;
    f.taken_[&event->base] = std::move(event);
    return 0;
  }
  static int ack_event(rdma_cm_event* event) {
    FakeCm& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.taken_.erase(event) != 1) std::abort();
    f.acknowledged_.notify_all();
    return 0;
  }
};

FakeCm::FakeCm() {
  current = this;
  context_.device = &device_;
  table_ = {
      .create_event_channel = Table::create_event_channel,
      .destroy_event_channel = Table::destroy_event_channel,
      .create_id = Table::create_id,
      .destroy_id = Table::destroy_id,
      .migrate_id = Table::migrate_id,
      .bind_addr = Table::bind_addr,
      .listen = Table::listen,
      .source_port = Table::source_port,
      .resolve_addr = Table::resolve_addr,
      .resolve_route = Table::resolve_route,
      .connect = Table::connect,
      .establish = Table::establish,
      .accept = Table::accept,
      .reject = Table::reject,
      .disconnect = Table::disconnect,
      .init_qp_attr = Table::init_qp_attr,
      .get_event = Table::get_event,
      .ack_event = Table::ack_event,
  };
}

}  // namespace verbena::link::cm
