#include "base/cancellation.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/random.hpp"
#include "base/threads.hpp"
#include "host/placement.hpp"
#include "kv/access.hpp"
#include "kv/plan.hpp"
#include "kv/wire.hpp"
#include "kv/worker.hpp"
#include "link/fabric.hpp"
#include "node/acceptor.hpp"
#include "node/device.hpp"

#include <verbena/kv.hpp>

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace verbena::kv {
namespace {

/// For finding an address's device.
constexpr std::chrono::milliseconds kFabricTimeout{5000};

nic::Grant grant_to(const std::optional<std::vector<uid_t>>& users) {
  if (!users) return {.to = nic::Grant::To::kAnyPeer};
  return {.to = nic::Grant::To::kUsers, .users = *users};
}

/// A server's clients: one entry per client, with the workers that it has a channel to. \thread any  \alloc setup
class Clients {
 public:
  /// Allows `limit` clients in all, and `limit_of_a_stranger` for each user other than this process's own.
  Clients(unsigned limit, unsigned limit_of_a_stranger) : limit_(limit), limit_of_a_stranger_(limit_of_a_stranger) {
    clients_.reserve(limit);
  }

  /// Registers a channel of `client` to `worker` that is about to be made; `uid` is its user, if known. Errors: kLimit
  /// (as many clients as allowed), kProtocol (the channel exists already, or the id is another user's).
  [[nodiscard]] Result<void> enter(std::uint64_t client, unsigned worker, std::optional<uid_t> uid) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t bit = std::uint64_t{1} << worker;
    const auto known = clients_.find(client);
    if (known == clients_.end()) VERBENA_TRY(check_room(uid));
    if (known != clients_.end() && known->second.uid != uid)
      return fail(Status::kProtocol, "connect", 0, "another user has a client with this id");
    Entry& entry = clients_[client];
    if ((entry.workers & bit) != 0)
      return fail(Status::kProtocol, "connect", 0, "this client already has a channel to worker {}", worker);
    entry.workers |= bit;
    entry.uid = uid;
    count_.store(clients_.size(), std::memory_order_relaxed);
    return {};
  }

  /// Removes a channel of `client` that ended or was not made. True: it was the client's last.
  bool leave(std::uint64_t client, unsigned worker) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = clients_.find(client);
    if (at == clients_.end()) return false;
    at->second.workers &= ~(std::uint64_t{1} << worker);
    if (at->second.workers != 0) return false;
    clients_.erase(at);
    count_.store(clients_.size(), std::memory_order_relaxed);
    return true;
  }

  /// Takes no lock: workers report it, and must not wait for a thread that makes a connection.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    std::uint64_t workers = 0;  ///< One bit per worker.
    std::optional<uid_t> uid;
  };

  [[nodiscard]] Result<void> check_room(std::optional<uid_t> uid) const {
    if (clients_.size() == limit_)
      return fail(Status::kLimit, "connect", 0,
                  "the server serves {} clients already, its limit: end one, or start it with a higher max_clients",
                  limit_);
    if (!uid || *uid == ::geteuid()) return {};
    const auto count = std::ranges::count_if(clients_, [&](const auto& entry) { return entry.second.uid == uid; });
    if (static_cast<std::size_t>(count) < limit_of_a_stranger_) return {};
    return fail(Status::kLimit, "connect", 0,
                "the server serves {} clients of uid {} already, its limit for one user: end one, or start it with a "
                "higher max_clients_per_user",
                count, *uid);
  }

  const std::size_t limit_;
  const std::size_t limit_of_a_stranger_;
  Mutex mutex_;
  std::unordered_map<std::uint64_t, Entry> clients_;
  std::atomic<std::uint64_t> count_{0};
};

class PollingServer final : public Server, private WorkerHost, private node::Acceptor::Host {
 public:
  PollingServer(const ServerOptions& options, const ServerInternals& internals)
      : options_(options),
        users_(Access::users(options)),
        clients_(options.max_clients, most_of_a_stranger(options)),
        id_(random_word()),
        hash_seed_(random_word()),
        versions_(internals.first_version) {}
  ~PollingServer() override { stop(); }
  static void operator delete(PollingServer* server, std::destroying_delete_t) noexcept {
    delete_unless_forked(server);
  }

  [[nodiscard]] Result<void> start();

  std::uint16_t port() const noexcept override { return port_; }
  const char* address() const noexcept override { return fabric_->address().c_str(); }
  const char* description() const noexcept override { return description_.c_str(); }
  ServerStatistics statistics() const noexcept override;
  ServerStatistics worker_statistics(unsigned worker) const noexcept override;
  verbena::Counters counters() const noexcept override;
  void stop() noexcept override;

 private:
  void add_statistics(StatisticsPart part, ServerStatistics& sum) const noexcept override;
  void session_ended(std::uint64_t client, unsigned worker, bool has_left) noexcept override;
  void see_off(node::Acceptor::Leaver& leaver) noexcept override { acceptor_->see_off(leaver); }

  class Guest;
  [[nodiscard]] Result<std::unique_ptr<node::Acceptor::Guest>> welcome(
      std::unique_ptr<link::Handshake>& handshake) override;
  void refused() noexcept override { clients_refused_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] Result<std::unique_ptr<Session>> serve(std::unique_ptr<link::Handshake>& handshake,
                                                       const wire::ClientHello& hello);
  [[nodiscard]] Result<wire::ClientHello> enter(const link::Handshake& handshake);
  [[nodiscard]] Result<const Permissions*> permissions_of(const link::Handshake& handshake,
                                                          const wire::ClientHello& hello) const;

  [[nodiscard]] Result<void> create_workers();
  void describe();
  [[nodiscard]] wire::ServerHello hello_of(const Worker& worker, const Permissions* permissions) const noexcept;

  const ServerOptions options_;
  const std::vector<uid_t> users_;  ///< Users who may connect, besides the server's own.
  std::optional<Access> access_;    ///< Set once the options are checked.
  Clients clients_;
  const std::uint64_t id_;
  const std::uint64_t hash_seed_;
  std::atomic<std::uint64_t> versions_;
  const std::uint64_t began_ticks_ = ticks_now();  ///< Where the clock of times to live begins.
  std::atomic<std::uint64_t> clients_lost_{0};
  std::atomic<std::uint64_t> clients_refused_{0};
  std::unique_ptr<link::Fabric> fabric_;
  std::shared_ptr<node::Device> device_;
  node::Acceptor* acceptor_ = nullptr;  ///< Set before the first client comes.
  std::optional<std::uint64_t> door_;   ///< The acceptor's name for the listener, while that is open.
  std::uint16_t port_ = 0;
  std::unique_ptr<link::Listener> listener_;  ///< Until the acceptor takes it.
  host::HeldPlacement placement_;             ///< Reserves the workers' cores until they have ended.
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::string> warnings_;  ///< About limits that leave no room for all clients.
  std::string description_;
};

Result<void> PollingServer::start() {
  VERBENA_TRY(check_options(options_));
  access_.emplace(options_);
  VERBENA_ASSIGN(fabric_, link::Fabric::open({.transport = options_.transport,
                                              .role = link::Role::kServer,
                                              .address = options_.address,
                                              .port = options_.port,
                                              .allowed_uids = users_,
                                              .key_file = options_.key_file},
                                             Deadline::after(kFabricTimeout)));
  VERBENA_TRY(check_device(options_, fabric_->nic().limits()));
  VERBENA_TRY(check_capabilities(options_, fabric_->nic()));
  // The port is taken before memory is, which may take seconds. Until all of it is there, clients are refused.
  VERBENA_ASSIGN(listener_, fabric_->listen({.port = options_.port, .is_shut_at_first = true}));
  port_ = listener_->port();
  VERBENA_ASSIGN(device_, node::Device::of(fabric_->shared_nic()));
  VERBENA_TRY(create_workers());
  describe();
  for (auto& worker : workers_) VERBENA_TRY(worker->start());
  VERBENA_ASSIGN(acceptor_, device_->acceptor());
  VERBENA_TRY(listener_->admit());
  VERBENA_ASSIGN(door_, acceptor_->open(std::move(listener_), *this));
  return {};
}

Result<void> PollingServer::create_workers() {
  VERBENA_ASSIGN(const host::Topology topology, host::Topology::read());
  VERBENA_ASSIGN(placement_, host::claim_placement(topology, placement_request(options_, topology, fabric_->nic())));
  const host::Footprint pools = footprint(options_, placement_.plan, fabric_->nic().kind(), fabric_->nic().limits());
  const auto headroom = host::memory_headroom(std::nullopt);
  VERBENA_TRY(check_memory(options_, pools, headroom));
  warnings_.push_back(memory_warning(options_, pools, headroom));
  if (const std::string_view clock = clock_description(); !clock.starts_with("the processor's"))
    warnings_.push_back(fmt::format("the clock is {}", clock));
  for (unsigned i = 0; i < options_.workers; ++i) {
    WorkerOptions worker = worker_options(options_, i, placement_.plan.pollers[i]);
    worker.hash_seed = hash_seed_;
    worker.versions = &versions_;
    worker.begin_ticks = began_ticks_;
    worker.accounts = access_->accounts();
    worker.items_to = grant_to(access_->exported_to());
    worker.cells_to = grant_to(access_->cells_of());
    VERBENA_ASSIGN(auto made, Worker::create(device_, worker, *this));
    workers_.push_back(std::move(made));
  }
  return {};
}

void PollingServer::describe() {
  const host::PageReport& pages = workers_.front()->page_report();
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(description_), format, std::forward<Args>(args)...);
  };
  add("{}; {}; {} MiB of items over {} worker{}, {} of {} KiB{}{}{}; poller cores:", fabric_->reason(),
      fabric_->admission(), options_.memory_bytes >> 20, options_.workers, options_.workers == 1 ? "" : "s",
      host::to_string(pages.pages), pages.page_bytes >> 10, pages.reason[0] != '\0' ? " (" : "", pages.reason,
      pages.reason[0] != '\0' ? ")" : "");
  for (const auto& worker : workers_) {
    const WorkerOptions& options = worker->options();
    options.cpu ? add(" {}", *options.cpu) : add(" any");
    if (options.node) add(" (node {})", *options.node);
  }
  if (!options_.grants.empty()) add("; {} grant{}", options_.grants.size(), options_.grants.size() == 1 ? "" : "s");
  // Says why a worker waits by events; `verbena-info --plan` tells the rest.
  if (!placement_.plan.why_no_core.empty()) add("; {}", placement_.plan.why_no_core);
  warnings_.push_back(
      descriptor_warning(options_, fabric_->nic().capabilities(), host::descriptors(host::Limit::kSoft)));
  for (const std::string& warning : warnings_)
    if (!warning.empty()) add("; {}", warning);
}

verbena::Counters PollingServer::counters() const noexcept {
  verbena::Counters sum;
  for (const auto& worker : workers_) sum += std::as_const(*worker).loop().counters();
  return sum;
}

ServerStatistics PollingServer::statistics() const noexcept {
  ServerStatistics sum;
  for (std::uint64_t part = 0; part < kStatisticsParts; ++part) add_statistics(static_cast<StatisticsPart>(part), sum);
  return sum;
}

ServerStatistics PollingServer::worker_statistics(unsigned worker) const noexcept {
  ServerStatistics sum;
  for (std::uint64_t part = 0; worker < workers_.size() && part < kStatisticsParts; ++part)
    workers_[worker]->add_statistics(static_cast<StatisticsPart>(part), sum);
  return sum;
}

void PollingServer::add_statistics(StatisticsPart part, ServerStatistics& sum) const noexcept {
  for (const auto& worker : workers_) worker->add_statistics(part, sum);
  if (part != StatisticsPart::kTotals) return;
  sum.clients = clients_.count();
  sum.clients_lost = clients_lost_.load(std::memory_order_relaxed);
  sum.clients_refused = clients_refused_.load(std::memory_order_relaxed);
  sum.last_version = versions_.load(std::memory_order_relaxed) - 1;
}

void PollingServer::stop() noexcept {
  if (is_forked()) return;
  const CancellationHeld held;
  if (door_) acceptor_->close(*std::exchange(door_, std::nullopt));
  for (auto& worker : workers_) worker->stop();
  if (acceptor_ != nullptr) acceptor_->settle();
}

void PollingServer::session_ended(std::uint64_t client, unsigned worker, bool has_left) noexcept {
  if (clients_.leave(client, worker) && !has_left) clients_lost_.fetch_add(1, std::memory_order_relaxed);
}

// --- connecting clients

/// The worker knows nothing of the connection until the last step, so a client that stalls or fails delays nobody else.
class PollingServer::Guest final : public node::Acceptor::Guest {
 public:
  Guest(PollingServer& server, const wire::ClientHello& hello, std::unique_ptr<Session> session) noexcept
      : server_(server), hello_(hello), session_(std::move(session)) {}
  ~Guest() override {
    if (session_) server_.clients_.leave(hello_.client, hello_.worker);
  }
  Result<void> step() override { return session_->connection().connect(Deadline::now()); }
  int fd() const noexcept override { return session_->connection().wait_fd(); }
  short events() const noexcept override { return session_->connection().wait_events(); }
  void done(const node::Acceptor::Stay& stay) noexcept override {
    session_->join(stay);
    (void)session_.release();
  }
  void refuse(const Error& why) noexcept override { session_->connection().refuse(why); }

 private:
  PollingServer& server_;
  const wire::ClientHello hello_;
  std::unique_ptr<Session> session_;
};

Result<wire::ClientHello> PollingServer::enter(const link::Handshake& handshake) {
  VERBENA_ASSIGN(const auto data, channel::Connection::user_data_of(handshake.remote()));
  const auto hello = wire::decode_client_hello(data);
  if (!hello || hello->worker >= options_.workers)
    return fail(Status::kProtocol, "connect", 0, "this is not a client of a key-value store of protocol version {}",
                wire::kVersion);
  VERBENA_TRY(permissions_of(handshake, *hello));
  VERBENA_TRY(clients_.enter(hello->client, hello->worker, handshake.uid()));
  return *hello;
}

// Decides by the user whom the NICs have confirmed; from the client's own words it takes only the promise.
Result<const Permissions*> PollingServer::permissions_of(const link::Handshake& handshake,
                                                         const wire::ClientHello& hello) const {
  return access_->find(handshake.uid(), (hello.flags & wire::kReadOnly) != 0);
}

Result<std::unique_ptr<Session>> PollingServer::serve(std::unique_ptr<link::Handshake>& handshake,
                                                      const wire::ClientHello& hello) {
  Worker& worker = *workers_[hello.worker];
  VERBENA_ASSIGN(const Permissions* const permissions, permissions_of(*handshake, hello));
  auto session = std::make_unique<Session>(worker, hello.client, permissions);
  VERBENA_TRY(session->open());
  VERBENA_TRY(session->connection().answer(std::move(handshake), wire::bytes_of(hello_of(worker, permissions))));
  const wire::ClientHello::Source& source = hello.source;
  if (source.memory_id != 0 && device_->nic().capabilities().maps_windows)
    session->connection().needs_window({.address = source.address,
                                        .rkey = source.rkey,
                                        .access = IBV_ACCESS_REMOTE_READ,
                                        .memory_id = source.memory_id});
  return session;
}

Result<std::unique_ptr<node::Acceptor::Guest>> PollingServer::welcome(std::unique_ptr<link::Handshake>& handshake) {
  VERBENA_ASSIGN(const wire::ClientHello hello, enter(*handshake));
  auto session = [&]() -> Result<std::unique_ptr<Session>> {
    try {
      return serve(handshake, hello);
    } catch (const std::bad_alloc&) {
      return fail(Status::kNoMemory, "connect", 0, "the server has no memory for another client");
    }
  }();
  if (session) return std::make_unique<Guest>(*this, hello, std::move(*session));
  clients_.leave(hello.client, hello.worker);
  return std::unexpected(session.error());
}

wire::ServerHello PollingServer::hello_of(const Worker& worker, const Permissions* permissions) const noexcept {
  wire::ServerHello hello{.workers = static_cast<std::uint16_t>(options_.workers),
                          .server = id_,
                          .depth = options_.depth,
                          .max_key_bytes = kMaxKeyBytes,
                          .max_value_bytes = max_value_of(options_),
                          .grace_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(options_.grace).count()),
                          .hash_seed = hash_seed_};
  if (permissions != nullptr && !permissions->is_exported) {
    hello.flags = wire::kByMessage;
    return hello;
  }
  if (access_->has_limited_writers()) hello.flags = wire::kGuarded;
  const nic::Window& window = worker.window();
  hello.window_address = window.address;
  hello.window_length = window.length;
  hello.window_memory = window.memory_id;
  hello.window_rkey = window.rkey;
  hello.window_access = window.access;
  hello.index_buckets = worker.index_buckets();
  const nic::Window marks = worker.marks();
  hello.marks_address = marks.address;
  hello.marks_memory = marks.memory_id;
  hello.marks_rkey = marks.rkey;
  return hello;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options) { return start_server(options, {}); }

Result<std::unique_ptr<Server>> start_server(const ServerOptions& options, const ServerInternals& internals) {
  VERBENA_TRY(check_process());
  const CancellationHeld held;
  try {
    auto server = std::make_unique<PollingServer>(options, internals);
    VERBENA_TRY(server->start());
    return server;
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, "Server::start", 0, "no memory for the server's own tables: lower its limits");
  }
}

}  // namespace verbena::kv
