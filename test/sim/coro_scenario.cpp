// Coroutines over links and clients of a store: whoever awaits something gives it up at any point, and has his memory
// for himself then.
#include "coro_parts.hpp"
#include "system.hpp"

#include <algorithm>
#include <deque>
#include <expected>

namespace verbena::sim {

namespace coro {

using namespace std::chrono_literals;

Shape shape_of(Random& random) {
  Shape shape;
  shape.clients = static_cast<unsigned>(random.between(1, 3));
  shape.rounds = 24 / shape.clients;
  kv::ServerOptions& server = shape.store_server;
  server.transport.device = "soft";
  server.port = kStorePort;
  server.allowed_uids = {0};  // As for listeners: a simulated process has one NIC, and this belongs to it.
  server.memory_bytes = std::size_t{8} << 20;
  server.workers = static_cast<unsigned>(random.between(1, 2));
  server.max_clients = 16;
  server.depth = static_cast<unsigned>(random.between(1, 8));
  server.max_value_bytes = 131'072;
  server.lease_bytes = 65'536;
  server.max_items = 1024;
  server.max_cells = 8;
  server.grace = std::chrono::milliseconds(random.between(1, 5));
  server.pin_workers = false;
  server.spin = 2us;
  kv::ClientOptions& client = shape.store_client;
  client.transport.device = "soft";
  client.port = kStorePort;
  client.depth = server.depth;
  client.spin = 2us;
  client.timeout = std::chrono::milliseconds(random.between(5, 100));
  client.connect_timeout = 200ms;
  rdma::Options& link = shape.link;
  link.transport.device = "soft";
  link.port = kLinkPort;
  link.window_bytes = (kHands + 1) * kWords * sizeof(std::uint64_t);
  link.inbox_bytes = 65'536;
  link.timeout = client.timeout;
  link.connect_timeout = 200ms;
  shape.faults = draw_faults(random, shape.clients);
  for (unsigned i = 0; i < shape.clients; ++i) shape.direct.push_back(random.one_in(2));
  return shape;
}

// --- the server ---------------------------------------------------------------------------------------------------

void Server::run() {
  auto store = kv::Server::start(stage_.shape().store_server);
  rdma::Options options = stage_.shape().link;
  options.handler = this;
  options.receive = rdma::Receive::kHandler;
  auto listener = rdma::Listener::start(options);
  if (!store || !listener) return stage_.fail("the server does not start");
  state_ = "serving";
  stage_.is_serving = true;
  stage_.tasks().wake(&stage_.is_serving);
  while (!stage_.is_ending) (void)stage_.tasks().sleep(&stage_.is_ending, ~Nanoseconds{0});
  state_ = "stopping";
  (*listener)->stop();
  (*store)->stop();
}

/// An echo that finds no room is lost.
void Server::on_message(rdma::Connection& connection, const rdma::Message& message) noexcept {
  (void)connection.send(message.data, Deadline::now());
}

namespace {

constexpr std::array<std::string_view, 8> kStates{"starting", "serving",  "stopping", "connecting",
                                                  "awaiting", "settling", "closing",  "ended"};

class CoroutineRun final : private Run {
 public:
  explicit CoroutineRun(const RunOptions& options)
      : Run(options),
        stage_(tasks_, shape_of(network_.world().random()), [this](std::string why) { Run::fail(std::move(why)); }),
        server_(stage_) {}
  RunResult run();

 private:
  [[nodiscard]] std::string state_of(unsigned process) const override {
    return std::string(process == 0 ? server_.state() : clients_[process - 1].state());
  }
  void end(unsigned process) override;
  void on_kill(unsigned process) override {
    if (process == 0) stage_.is_server_gone = true;
  }
  void look_at_cell();
  [[nodiscard]] std::expected<std::uint64_t, std::string> value_of_cell() const;

  Stage stage_;
  Server server_;
  std::deque<Client> clients_;
};

void CoroutineRun::end(unsigned process) {
  if (process != 0) return clients_[process - 1].leave();
  stage_.is_server_gone = stage_.is_ending = true;
  tasks_.wake(&stage_.is_ending);
}

/// Additions of which somebody knows are in it, and no others than were begun. Faults may be at work still.
void CoroutineRun::look_at_cell() {
  add_actor("the last client", "client", [this] {
    std::string why;
    for (int attempt = 0; attempt < 20; ++attempt) {
      const std::expected<std::uint64_t, std::string> value = value_of_cell();
      if (!value) {
        why = value.error();
        continue;
      }
      if (*value < stage_.sum.sure || *value > stage_.sum.begun)
        stage_.fail(fmt::format("the cell has {} in the end: {} were added for sure, {} at most", *value,
                                stage_.sum.sure, stage_.sum.begun));
      return;
    }
    if (!stage_.is_server_gone) stage_.fail(fmt::format("the last client: {}", why));
  });
  if (!run_until([this] { return is_idle(actors_.back()); }, kLiveness)) fail("the last client does not end");
}

std::expected<std::uint64_t, std::string> CoroutineRun::value_of_cell() const {
  kv::ClientOptions options = stage_.shape().store_client;
  options.timeout = options.connect_timeout = std::chrono::seconds{2};
  auto client = kv::Client::connect(options);
  if (!client) return std::unexpected(client.error().text());
  const std::string name = "cell";
  const auto cell = (*client)->open_cell(std::as_bytes(std::span(name)), 0);
  if (!cell) return std::unexpected(cell.error().text());
  std::uint64_t value = 0;
  if ((*client)->read(*cell, value) != Status::kOk) return std::unexpected(error_detail());
  return value;
}

RunResult CoroutineRun::run() {
  add_actor("server", "server", [this] { server_.run(); });
  for (unsigned i = 0; i < stage_.shape().clients; ++i) {
    clients_.emplace_back(stage_, i, options_.seed);
    add_actor(fmt::format("client {}", i), "client", [this, i] {
      while (!stage_.is_serving && !stage_.is_server_gone) (void)tasks_.sleep(&stage_.is_serving, ~Nanoseconds{0});
      clients_[i].run();
    });
    if (stage_.shape().direct[i]) actors_.back().process->work_directly();
  }
  if (!run_until([this] { return stage_.is_serving || !result_.wrong.empty(); }, kLiveness))
    fail("the server does not come up");
  plan_faults(stage_.shape().faults);
  if (!run_until([this] { return are_clients_idle(); }, kLiveness))
    fail(fmt::format("after all faults still at work: {}", tasks_.unfinished()));
  if (result_.wrong.empty() && !stage_.is_server_gone) look_at_cell();
  end_actors();
  end(0);
  if (!actors_[0].is_killed && !run_until([&] { return tasks_.is_done(actors_[0].task); }, kLiveness))
    fail(fmt::format("the server does not end: {}", tasks_.unfinished()));
  // Threads of the library end behind whoever has closed the last of its objects.
  (void)run_until([] { return false; }, 100 * kMs);
  check_leftovers();
  result_.hash = world().hash();
  result_.time = world().now() - World::kBeginning;
  result_.calls = stage_.calls;
  return wind_down();
}

}  // namespace
}  // namespace coro

std::span<const std::string_view> states_of_coroutines() noexcept { return coro::kStates; }

RunResult run_coroutines(const RunOptions& options) {
  RunResult result = coro::CoroutineRun(options).run();
  forget_descriptors();
  return result;
}

}  // namespace verbena::sim
