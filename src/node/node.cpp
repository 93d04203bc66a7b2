#include "node/node.hpp"

#include "base/error.hpp"
#include "base/futex.hpp"
#include "base/limit.hpp"
#include "base/log.hpp"
#include "link/fabric.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace verbena::node {
namespace {

/// For finding the device of an address.
constexpr std::chrono::milliseconds kFabricTimeout{5000};

/// This host's name, which others may resolve.
[[nodiscard]] std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string("localhost");
}

[[nodiscard]] Result<std::unique_ptr<link::Fabric>> open_fabric(const Endpoint& at, link::Role role,
                                                                Deadline deadline) {
  std::vector<uid_t> allowed = at.node ? at.node->options().allowed_uids : at.allowed_uids;
  allowed.push_back(0);  // A process of root could read this process anyway.
  return link::Fabric::open({.transport = at.node ? at.node->options().transport : at.transport,
                             .role = role,
                             .address = at.address,
                             .port = at.port,
                             .allowed_uids = allowed,
                             .key_file = at.key_file,
                             .key_name = at.key_name},
                            deadline);
}

/// The device of a fabric. With a node it must be the node's.
[[nodiscard]] Result<std::shared_ptr<Device>> device_of(const link::Fabric& fabric, const Endpoint& at) {
  VERBENA_ASSIGN(auto device, Device::of(fabric.shared_nic()));
  if (at.node && at.node->shared_device() != device)
    return fail(Status::kBadArgument, "connect", 0,
                "{} is reached over another NIC than the node's {}: use another node", at.address,
                at.node->device().nic().name());
  return device;
}

}  // namespace

// --- node ---------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Node>> Node::open(const NodeOptions& options) {
  constexpr const char* kCall = "node";
  VERBENA_TRY(check_limit(kCall, "shards", options.shards, 1, 256));
  VERBENA_TRY(check_limit(kCall, "connections", options.connections, 1, 65536));
  if (!options.cpus.empty() && options.cpus.size() != options.shards)
    return fail(Status::kBadArgument, kCall, 0, "cpus must name one cpu for each of {} shards, or none; got {}",
                options.shards, options.cpus.size());
  std::shared_ptr<Node> node(new Node(options));
  const Endpoint at{.transport = options.transport, .address = options.address, .allowed_uids = options.allowed_uids};
  VERBENA_ASSIGN(const auto fabric, open_fabric(at, link::Role::kServer, Deadline::after(kFabricTimeout)));
  node->reason_ = fabric->reason();
  VERBENA_ASSIGN(node->device_, Device::of(fabric->shared_nic()));
  for (unsigned i = 0; i < options.shards; ++i) {
    SessionShardOptions shard{.max_connections = options.connections};
    if (!options.cpus.empty()) shard.cpu = options.cpus[i];
    VERBENA_ASSIGN(auto opened, SessionShard::open(node->device_, shard));
    VERBENA_TRY(opened->start());
    node->shards_.push_back(std::move(opened));
  }
  return node;
}

Node::~Node() {
  // Memory that outlives the node's handle may end in a handler: that thread's shard ends with its last user.
  for (const auto& shard : shards_)
    if (!shard->loop().is_owner()) shard->stop();
  if (device_) device_->registrations().remove_all(this);
}

const std::shared_ptr<SessionShard>& Node::next_shard() noexcept {
  return shards_[next_.fetch_add(1, std::memory_order_relaxed) % shards_.size()];
}

Result<const session::RegisteredMemory*> Node::allocate(std::size_t bytes) {
  return device_->registrations().allocate(this, bytes, {.to = nic::Grant::To::kAnyPeer});
}
Result<const session::RegisteredMemory*> Node::add(std::span<std::byte> memory, rdma::Access access) {
  return device_->registrations().add(this, memory, access);
}
Result<void> Node::remove(const session::RegisteredMemory* memory, Deadline deadline) {
  return device_->registrations().remove(this, memory, deadline);
}
Result<void> Node::publish(std::string_view name, const session::Part& part) {
  VERBENA_TRY(device_->registrations().publish(this, name, part));
  for (const auto& shard : shards_) shard->sessions().wake_all();
  return {};
}

// --- clients ------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<session::Session>> connect(const Endpoint& server, const session::Settings& settings,
                                                  const session::Delivery& delivery, session::Events& events,
                                                  bool wants_thread) {
  const Deadline deadline = Deadline::after(settings.connect_timeout);
  VERBENA_ASSIGN(const auto fabric, open_fabric(server, link::Role::kClient, deadline));
  VERBENA_ASSIGN(const std::shared_ptr<Device> device, device_of(*fabric, server));
  std::shared_ptr<SessionShard> shard;
  if (!wants_thread) {
    VERBENA_ASSIGN(shard, SessionShard::open(device, {.driver = session::DrivenBy::kCaller}));
  } else if (server.node) {
    shard = server.node->next_shard();
  } else {
    VERBENA_ASSIGN(shard, Device::client_shard(device));
  }
  auto session = std::make_unique<session::Session>(shard, settings, delivery, events, nullptr, server.node.get());
  VERBENA_TRY(session->dial(*fabric, server.port, deadline));
  log(VERBENA_LOG_INFO, "connected to {}, port {}: {}", fabric->address(), server.port, fabric->reason());
  return session;
}

// --- listeners ----------------------------------------------------------------------------------------------------

/// A connecting client of a listener.
class Listener::Guest final : public Acceptor::Guest {
 public:
  explicit Guest(std::unique_ptr<session::Session> session) noexcept : session_(std::move(session)) {}
  Result<void> step() override { return session_->accept_step(Deadline::now()); }
  int fd() const noexcept override { return session_->connection()->wait_fd(); }
  short events() const noexcept override { return session_->connection()->wait_events(); }
  void done(const Acceptor::Stay& /*stay*/) noexcept override {
    session_->adopt();
    (void)session_.release();
  }
  // When the listener stops, a client that already counts itself connected is accepted for the length of a goodbye.
  void refuse(const Error& why) noexcept override {
    why.status() == Status::kClosed && session_->accept_for_goodbye() ? done({}) : session_->refuse(why);
  }

 private:
  std::unique_ptr<session::Session> session_;
};

Result<void> Listener::start(const Endpoint& at, const session::Settings& settings, const session::Delivery& delivery,
                             session::Events& events) {
  if (is_running()) return fail(Status::kBusy, "start", 0, "the listener runs already");
  settings_ = settings;
  delivery_ = delivery;
  events_ = &events;
  node_ = at.node;
  VERBENA_ASSIGN(fabric_, open_fabric(at, link::Role::kServer, Deadline::after(kFabricTimeout)));
  VERBENA_ASSIGN(device_, device_of(*fabric_, at));
  VERBENA_ASSIGN(auto link, fabric_->listen({.port = at.port}));
  if (!node_) {
    VERBENA_ASSIGN(auto own, SessionShard::open(device_, {.max_connections = settings.max_connections}));
    VERBENA_TRY(own->start());
    const std::lock_guard lock(mutex_);
    own_ = std::move(own);
  }
  port_ = link->port();
  const auto opened = [&]() -> Result<void> {
    if (settings_.is_window_shared && settings_.window.empty() && settings_.window_bytes != 0) {
      VERBENA_ASSIGN(const session::RegisteredMemory* const shared, allocate(settings_.window_bytes));
      settings_.window = {shared->address, settings_.window_bytes};
    }
    VERBENA_ASSIGN(acceptor_, device_->acceptor());
    VERBENA_ASSIGN(door_, acceptor_->open(std::move(link), *this));
    return {};
  }();
  if (!opened) {
    stop();
    return opened;
  }
  is_running_.store(1, std::memory_order_release);
  log(VERBENA_LOG_INFO, "listening on {}, port {}: {}", fabric_->address(), port_, description());
  return {};
}

void Listener::stop() noexcept {
  if (is_forked()) return;
  // Keeps new clients out first.
  if (acceptor_ != nullptr) {
    std::exchange(acceptor_, nullptr)->close(door_);
    log(VERBENA_LOG_INFO, "the listener on port {} ends", port_);
  }
  std::shared_ptr<SessionShard> stopped;
  {
    const std::lock_guard lock(mutex_);
    stopped = own_;
  }
  if (stopped) stopped->stop();
  {
    // Kept until here, so that a callback is recognized as one.
    const std::lock_guard lock(mutex_);
    own_.reset();
  }
  if (node_) {
    // Says all goodbyes before it waits for one.
    for (const auto& shard : node_->shards()) shard->sessions().leave_all_of(this);
    for (const auto& shard : node_->shards()) shard->sessions().end_all_of(this);
  }
  if (device_) device_->registrations().remove_all(this);
  stopped.reset();  // Sessions that a user keeps keep it alive.
  device_.reset();
  fabric_.reset();
  node_.reset();
  is_running_.store(0, std::memory_order_release);
  wake_waiters(is_running_);
}

void Listener::wait() noexcept { (void)wait_while(is_running_, 1, Deadline::never()); }

bool Listener::is_in_callback() const noexcept {
  if (node_) return std::ranges::any_of(node_->shards(), [](const auto& shard) { return shard->loop().is_owner(); });
  // Another thread may be stopping it.
  const std::lock_guard lock(mutex_);
  return own_ != nullptr && own_->loop().is_owner();
}

std::uint16_t Listener::port() const noexcept { return is_running() ? port_ : std::uint16_t{0}; }

std::string Listener::address_to_dial() const {
  if (!is_running()) return {};
  const std::string& address = fabric_->address();
  return address == "0.0.0.0" || address == "::" ? host_name() : address;
}

std::string Listener::description() const {
  return is_running() ? fmt::format("{}; {}", fabric_->reason(), fabric_->admission()) : std::string();
}

std::shared_ptr<SessionShard> Listener::shard() noexcept {
  if (node_) return node_->next_shard();
  const std::lock_guard lock(mutex_);
  return own_;
}

Result<std::unique_ptr<Acceptor::Guest>> Listener::welcome(std::unique_ptr<link::Handshake>& handshake) {
  auto session = std::make_unique<session::Session>(shard(), settings_, delivery_, *events_, this, node_.get());
  VERBENA_TRY(session->answer(handshake));
  return std::make_unique<Guest>(std::move(session));
}

Result<const session::RegisteredMemory*> Listener::allocate(std::size_t bytes) {
  return device_->registrations().allocate(this, bytes, {.to = nic::Grant::To::kAnyPeer});
}
Result<const session::RegisteredMemory*> Listener::add(std::span<std::byte> memory, rdma::Access access) {
  return device_->registrations().add(this, memory, access);
}
Result<void> Listener::remove(const session::RegisteredMemory* memory, Deadline deadline) {
  return device_->registrations().remove(this, memory, deadline);
}
Result<void> Listener::publish(std::string_view name, const session::Part& part) {
  VERBENA_TRY(device_->registrations().publish(this, name, part));
  if (node_) {
    for (const auto& shard : node_->shards()) shard->sessions().wake_all();
  } else {
    shard()->sessions().wake_all();
  }
  return {};
}

}  // namespace verbena::node
