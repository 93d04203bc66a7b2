#include "base/error.hpp"
#include "host/placement.hpp"
#include "kv/clients.hpp"
#include "kv/plan.hpp"
#include "kv/random.hpp"
#include "kv/wire.hpp"
#include "kv/worker.hpp"
#include "link/fabric.hpp"

#include <verbena/kv.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace verbena::kv {
namespace {

constexpr std::size_t kMaxWaiting = 256;
constexpr std::chrono::milliseconds kStepTimeout{1000};
/// For finding the device of an address.
constexpr std::chrono::milliseconds kFabricTimeout{5000};

class PollingServer final : public Server, private WorkerHost {
 public:
  PollingServer(const ServerOptions& options, const ServerInternals& internals)
      : options_(options),
        clients_(options.max_clients),
        id_(random_word()),
        hash_seed_(random_word()),
        versions_(internals.first_version) {}
  ~PollingServer() override { stop(); }

  [[nodiscard]] Result<void> start();

  std::uint16_t port() const noexcept override { return listener_->port(); }
  const char* address() const noexcept override { return fabric_->address().c_str(); }
  const char* description() const noexcept override { return description_.data(); }
  ServerStatistics statistics() const noexcept override;
  ServerStatistics worker_statistics(unsigned worker) const noexcept override;
  verbena::Counters counters() const noexcept override;
  void stop() noexcept override;

 private:
  void add_statistics(StatisticsPart part, ServerStatistics& sum) const noexcept override;
  void session_ended(std::uint64_t client, unsigned worker, bool has_left) noexcept override;

  [[nodiscard]] Result<void> create_workers();
  [[nodiscard]] Result<void> start_threads();
  void describe() noexcept;
  void accept_clients() noexcept;
  void shake_hands() noexcept;
  void welcome(link::Incoming& incoming) noexcept;
  [[nodiscard]] Result<void> serve(link::Incoming& incoming, const wire::ClientHello& hello);
  [[nodiscard]] wire::ServerHello hello_of(const Worker& worker) const noexcept;
  void refuse(link::Incoming& incoming, const Error& error) noexcept;

  const ServerOptions options_;
  Clients clients_;
  const std::uint64_t id_;
  const std::uint64_t hash_seed_;
  std::atomic<std::uint64_t> versions_;
  std::atomic<std::uint64_t> clients_lost_{0};
  std::atomic<std::uint64_t> clients_refused_{0};
  std::unique_ptr<link::Fabric> fabric_;
  nic::Pd pd_;
  std::unique_ptr<link::Listener> listener_;
  host::HeldPlacement placement_;  ///< The workers' cores are this server's until they are gone.
  std::vector<std::unique_ptr<Worker>> workers_;
  std::string memory_warning_;
  std::array<char, 2048> description_{};

  std::mutex mutex_;  // Of the handshakes that wait.
  std::condition_variable arrived_;
  std::deque<link::Incoming> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

Result<void> PollingServer::start() {
  VERBENA_TRY(check_options(options_));
  VERBENA_ASSIGN(fabric_, link::Fabric::open({.transport = options_.transport,
                                              .role = link::Role::kServer,
                                              .address = options_.address,
                                              .port = options_.port,
                                              .allowed_uids = options_.allowed_uids},
                                             Deadline::after(kFabricTimeout)));
  VERBENA_TRY(check_device(options_, fabric_->nic().limits()));
  VERBENA_ASSIGN(listener_, fabric_->listen({.port = options_.port}));
  VERBENA_ASSIGN(ibv_pd * pd, fabric_->nic().alloc_pd());
  pd_ = nic::Pd(fabric_->nic(), pd);
  VERBENA_TRY(create_workers());
  describe();
  return start_threads();
}

Result<void> PollingServer::create_workers() {
  VERBENA_ASSIGN(const host::Topology topology, host::Topology::read());
  VERBENA_ASSIGN(placement_, host::claim_placement(topology, placement_request(options_, topology, fabric_->nic())));
  const host::Footprint pools = footprint(options_, placement_.plan, fabric_->nic().kind(), fabric_->nic().limits());
  const auto headroom = host::memory_headroom(std::nullopt);
  VERBENA_TRY(check_memory(options_, pools, headroom));
  memory_warning_ = memory_warning(options_, pools, headroom);
  for (unsigned i = 0; i < options_.workers; ++i) {
    WorkerOptions worker = worker_options(options_, i, placement_.plan.pollers[i]);
    worker.hash_seed = hash_seed_;
    worker.versions = &versions_;
    VERBENA_ASSIGN(auto made, Worker::create(fabric_->nic(), pd_.get(), worker, *this));
    workers_.push_back(std::move(made));
  }
  return {};
}

Result<void> PollingServer::start_threads() {
  for (auto& worker : workers_) VERBENA_TRY(worker->start());
  try {
    threads_.reserve(kHandshakers + 1);
    for (unsigned i = 0; i < kHandshakers; ++i) threads_.emplace_back([this] { shake_hands(); });
    threads_.emplace_back([this] { accept_clients(); });
  } catch (const std::system_error& error) {
    return fail(Status::kLimit, "pthread_create", error.code().value(),
                "the server's threads could not be started: raise the limit on processes (ulimit -u)");
  }
  return {};
}

void PollingServer::describe() noexcept {
  const host::PageReport& pages = workers_.front()->page_report();
  char* const end = description_.data() + description_.size() - 1;
  auto at =
      fmt::format_to_n(description_.data(), description_.size() - 1,
                       "{}; {} MiB of items over {} worker{}, {} of {} KiB{}{}{}; poller cores:", fabric_->reason(),
                       options_.memory_bytes >> 20, options_.workers, options_.workers == 1 ? "" : "s",
                       host::to_string(pages.pages), pages.page_bytes >> 10, pages.reason[0] != '\0' ? " (" : "",
                       pages.reason, pages.reason[0] != '\0' ? ")" : "")
          .out;
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    at = fmt::format_to_n(at, static_cast<std::size_t>(end - at), format, std::forward<Args>(args)...).out;
    at = std::min(at, end);
  };
  for (const auto& worker : workers_) {
    const WorkerOptions& options = worker->options();
    options.cpu ? add(" {}", *options.cpu) : add(" any");
    if (options.node) add(" (node {})", *options.node);
  }
  if (options_.large_put == LargePut::kAdopt)
    add("; large values are {}", can_adopt(fabric_->nic().limits())
                                     ? "adopted: clients are trusted"
                                     : "copied: the device has no memory windows that can be relied on");
  // Why somebody waits by events; the rest is `verbena-info --plan`'s.
  if (!placement_.plan.why_no_core.empty()) add("; {}", placement_.plan.why_no_core);
  if (!memory_warning_.empty()) add("; {}", memory_warning_);
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
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  arrived_.notify_all();
  if (listener_) listener_->close();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (auto& worker : workers_) worker->stop();
}

void PollingServer::session_ended(std::uint64_t client, unsigned worker, bool has_left) noexcept {
  if (clients_.leave(client, worker) && !has_left) clients_lost_.fetch_add(1, std::memory_order_relaxed);
}

// --- bootstrap

void PollingServer::accept_clients() noexcept {
  host::block_signals_in_this_thread();
  host::name_this_thread("verbena-accept");
  for (;;) {
    auto incoming = listener_->next(Deadline::after(std::chrono::seconds{60}));
    if (!incoming) {
      if (incoming.error().status() == Status::kTimedOut) continue;
      return;  // Closed; or the listener's own descriptors are broken, and nobody new can come.
    }
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (waiting_.size() == kMaxWaiting) {
      clients_refused_.fetch_add(1, std::memory_order_relaxed);
      incoming->reject(Status::kLimit, "too many clients connect at the same time: try again");
      continue;
    }
    waiting_.push_back(std::move(*incoming));
    arrived_.notify_one();
  }
}

void PollingServer::shake_hands() noexcept {
  host::block_signals_in_this_thread();
  host::name_this_thread("verbena-hello");
  for (;;) {
    link::Incoming incoming;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      incoming = std::move(waiting_.front());
      waiting_.pop_front();
    }
    welcome(incoming);
  }
}

void PollingServer::refuse(link::Incoming& incoming, const Error& error) noexcept {
  clients_refused_.fetch_add(1, std::memory_order_relaxed);
  incoming.reject(error.status(), error.text());
}

void PollingServer::welcome(link::Incoming& incoming) noexcept {
  const auto data = message::Channel::user_data_of(incoming.remote());
  if (!data) return refuse(incoming, data.error());
  const auto hello = wire::decode_client_hello(*data);
  if (!hello || hello->worker >= options_.workers)
    return refuse(incoming,
                  format_error(Status::kProtocol, "connect", 0,
                               "this is no client of a key-value store of protocol version {}", wire::kVersion));
  if (auto entered = clients_.enter(hello->client, hello->worker); !entered) return refuse(incoming, entered.error());
  const auto served = [&]() -> Result<void> {
    try {
      return serve(incoming, *hello);
    } catch (const std::bad_alloc&) {
      return fail(Status::kNoMemory, "connect", 0, "the server has no memory for another client");
    }
  }();
  if (served) return;
  clients_.leave(hello->client, hello->worker);
  refuse(incoming, served.error());
}

// Until the last step nothing of the channel is known to the worker, so a peer that stalls or fails costs nobody else.
Result<void> PollingServer::serve(link::Incoming& incoming, const wire::ClientHello& hello) {
  Worker& worker = *workers_[hello.worker];
  auto session = std::make_unique<Session>(worker, hello.client, worker.options().session_depth());
  VERBENA_TRY(session->open_leases(fabric_->nic(), pd_.get()));
  VERBENA_ASSIGN(auto channel, message::Channel::create(worker.loop(), pd_.get(), worker.options().channel, *session));
  const wire::ServerHello answer = hello_of(worker);
  VERBENA_ASSIGN(const link::Endpoint local, channel->local_endpoint(wire::bytes_of(answer)));
  VERBENA_TRY(channel->connect(local, incoming.remote(), Deadline::after(kStepTimeout), incoming.how()));
  VERBENA_TRY(incoming.answer(local, Deadline::after(kStepTimeout)));
  VERBENA_ASSIGN(link::Lifeline lifeline, incoming.finish(Deadline::after(kStepTimeout)));
  channel->keep(std::move(lifeline));
  session->set_channel(std::move(channel));
  worker.adopt(std::move(session));
  return {};
}

wire::ServerHello PollingServer::hello_of(const Worker& worker) const noexcept {
  const nic::Window& window = worker.window();
  return {.workers = static_cast<std::uint16_t>(options_.workers),
          .server = id_,
          .depth = options_.depth,
          .max_key_bytes = kMaxKeyBytes,
          .max_value_bytes = options_.max_value_bytes,
          .grace_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(options_.grace).count()),
          .window_address = window.address,
          .window_length = window.length,
          .window_memory = window.memory_id,
          .window_rkey = window.rkey,
          .window_access = window.access,
          .hash_seed = hash_seed_,
          .index_buckets = worker.index_buckets()};
}

}  // namespace

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options) { return start_server(options, {}); }

Result<std::unique_ptr<Server>> start_server(const ServerOptions& options, const ServerInternals& internals) {
  try {
    auto server = std::make_unique<PollingServer>(options, internals);
    VERBENA_TRY(server->start());
    return server;
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, "Server::start", 0, "no memory for the server's own tables: lower its limits");
  }
}

}  // namespace verbena::kv
