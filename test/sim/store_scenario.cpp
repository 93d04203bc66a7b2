// The whole store: a server with its workers, and clients that do everything a client can; processes stop, die and lose
// each other meanwhile.
#include "process.hpp"
#include "recorder.hpp"
#include "run.hpp"
#include "scenario.hpp"
#include "store_checks.hpp"
#include "store_story.hpp"
#include "system.hpp"
#include "tasks.hpp"

#include "base/check.hpp"

#include <verbena/kv.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace verbena::sim {

using kv::history::Call;
using kv::history::Caller;
using kv::history::Doing;
using kv::history::Journal;
using kv::history::Plan;

namespace {

using namespace std::chrono_literals;

constexpr std::uint16_t kPort = 7470;
constexpr unsigned kCallsAtLast = 40;
/// Of one key at one time: a run that comes to more is not decided, which takes too long.
constexpr std::size_t kMostConfigurations = 3000;
/// Nearly as many as there may be: insertions have to move entries then.
constexpr unsigned kFillingKeys = 1000;

constexpr std::array<std::uint32_t, 5> kSmall{8, 40, 64, 200, 1000};
constexpr std::array<std::uint32_t, 6> kEdges{16, 4095, 4096, 4097, 8192, 20'000};
constexpr std::array<std::uint32_t, 4> kMixed{8, 333, 4096, 12'000};
/// Values that take many pieces.
constexpr std::array<std::uint32_t, 4> kHuge{16, 65'536, 70'000, 131'072};

/// What the seed makes of a run.
struct Shape {
  kv::ServerOptions server;
  kv::ClientOptions client;
  Plan plan;
  unsigned clients = 0;
  std::vector<Fault> faults;
  bool are_early = false;    ///< Faults begin before the server serves.
  std::vector<bool> direct;  ///< Of each client: whether it needs no queue for what is one-sided.
  bool is_filled = false;    ///< The index, and mostly the memory, by another client.
  Holds between_stores;
  Holds anywhere;  ///< Long enough that what a client was told before is no more.
  /// Whether nothing comes between the clients and their server.
  [[nodiscard]] bool is_calm() const { return faults.empty() && anywhere.one_in == 0; }
};

kv::history::Sizes sizes_of(std::uint64_t kind) {
  switch (kind) {
    case 0: return kSmall;
    case 1: return kEdges;
    case 2: return kHuge;
    default: return kMixed;
  }
}

/// The client that fills the memory pushes the others' keys out.
void let_evict(Shape& shape, bool is_huge) {
  shape.server.evict = kv::Evict::kLru;
  shape.plan.may_evict = shape.is_filled = true;
  if (!is_huge) shape.server.memory_bytes = std::size_t{1} << 20;
}

Shape shape_of(Random& random) {
  Shape shape;
  shape.clients = static_cast<unsigned>(random.between(2, 5));
  shape.plan = {.name = "simulated",
                .sizes = sizes_of(random.below(4)),
                .keys = static_cast<unsigned>(random.between(1, 4)),
                .cells = static_cast<unsigned>(random.below(3)),
                .calls = 1000 / shape.clients,
                .gets = static_cast<unsigned>(random.between(20, 80)),
                .timeout = std::chrono::milliseconds(random.between(5, 200)),
                .impatient = static_cast<unsigned>(random.below(8))};
  shape.server.transport.device = "soft";
  shape.server.port = kPort;
  const bool is_huge = shape.plan.sizes.data() == kHuge.data();
  if (is_huge) shape.plan.calls /= 2;
  shape.server.memory_bytes = std::size_t{is_huge ? 8U : 2U} << 20;
  shape.server.workers = static_cast<unsigned>(random.between(1, 2));
  shape.server.max_clients = 16;
  shape.server.depth = static_cast<unsigned>(random.between(4, 16));
  shape.server.max_value_bytes = 131'072;
  shape.server.lease_bytes = 65'536;
  shape.server.max_items = 1024;
  shape.server.checksum_large_values = random.one_in(2);
  shape.server.max_cells = 8;
  shape.server.grace = std::chrono::milliseconds(random.between(1, 5));
  shape.server.pin_workers = false;
  shape.server.spin = 2us;
  shape.client.transport.device = "soft";
  shape.client.port = kPort;
  shape.client.depth = shape.server.depth;
  shape.client.spin = 2us;
  shape.faults = draw_faults(random, shape.clients);
  shape.are_early = random.one_in(4);
  // While the server starts.
  if (shape.are_early && !shape.faults.empty()) shape.faults.front().at %= 400;
  for (unsigned i = 0; i < shape.clients; ++i) shape.direct.push_back(random.one_in(2));
  shape.is_filled = random.one_in(16);
  // Items of many sizes take all of it: they move, and are replaced where they are.
  if (shape.is_filled && !is_huge) shape.server.memory_bytes = std::size_t{1} << 20;
  shape.plan.turn = static_cast<unsigned>(random.below(4));
  if (random.one_in(2))
    shape.between_stores = {.one_in = random.between(3, 30), .longest = random.between(kUs, 300 * kUs)};
  if (random.one_in(4)) {
    const auto grace = static_cast<Nanoseconds>(std::chrono::nanoseconds(shape.server.grace).count());
    shape.anywhere = {.one_in = random.between(200, 2000), .longest = random.between(kUs, 3 * grace)};
  }
  // Readers who meet at one key, and its writer stands still between his stores.
  if (random.one_in(4)) {
    shape.plan.keys = shape.plan.turn = 1;
    shape.plan.gets = 80;
    shape.between_stores = {.one_in = 3, .longest = 300 * kUs};
  }
  if (random.one_in(4)) shape.plan.longest_ttl = std::chrono::milliseconds(random.between(1, 8));
  if (random.one_in(8)) let_evict(shape, is_huge);
  // Whoever stands still is late.
  const auto is_held_up = [](const Fault& fault) {
    return fault.kind == Fault::Kind::kStop || fault.kind == Fault::Kind::kStalls;
  };
  const bool has_holds = shape.between_stores.one_in != 0 || shape.anywhere.one_in != 0;
  if (!has_holds && std::ranges::none_of(shape.faults, is_held_up)) shape.plan.slack = 100us;
  return shape;
}

class StoreRun final : private Run {
 public:
  explicit StoreRun(const RunOptions& options)
      : Run(options), shape_(shape_of(network_.world().random())), journal_(shape_.clients + 1, shape_.plan.calls) {
    if (options_.story != nullptr)
      journal_.set_listener(
          [this](const Call& call, std::string_view what) { world().tell("{}", story_of(call, what)); });
  }

  RunResult run();

 private:
  void serve(unsigned actor);
  void look(Nanoseconds since);
  void call(unsigned client);
  void read_all();
  void serve_again();
  void end(unsigned process) override;
  void fill();
  [[nodiscard]] std::string state_of(unsigned process) const override;
  void judge(const Journal& journal);

  Shape shape_;
  Journal journal_;
  Journal next_journal_{1, kCallsAtLast};  ///< Of the client of the next server.
  std::vector<const Caller*> callers_ = std::vector<const Caller*>(shape_.clients);  ///< Of each client, while it runs.
  const kv::Server* server_ = nullptr;                                               ///< While it serves.
  bool is_serving_ = false;
};

void StoreRun::serve(unsigned actor) {
  auto server = kv::Server::start(shape_.server);
  if (!server && actors_[actor].is_killed) return;
  if (!server) return fail(fmt::format("the server does not start: {}", server.error().text()));
  is_serving_ = true;
  tasks_.wake(&is_serving_);
  server_ = server->get();
  look(world().now());
  while (!is_ending_ && !actors_[actor].is_ended) (void)tasks_.sleep(&is_ending_, ~Nanoseconds{0});
  server_ = nullptr;
}

/// What the server says of itself has to be right at any time. Looks seldom where a run is long.
void StoreRun::look(Nanoseconds since) {
  if (server_ == nullptr) return;
  if (std::string wrong = check_sums(shape_.server, server_->statistics()); !wrong.empty()) fail(std::move(wrong));
  later(kUs + (world().now() - since) / 100, "look", [this, since] { look(since); });
}

void StoreRun::end(unsigned process) {
  if (process == 0) return tasks_.wake(&is_ending_);
  journal_.end_of(process - 1);
}

void StoreRun::call(unsigned client) {
  while (!is_serving_ && !actors_[0].is_gone()) (void)tasks_.sleep(&is_serving_, ~Nanoseconds{0});
  if (!is_serving_) return;
  Caller caller(journal_, client, shape_.plan, shape_.client, options_.seed);
  callers_[client] = &caller;
  const std::string wrong = caller.run();
  callers_[client] = nullptr;
  // Without a server there is nobody to connect to.
  if (!wrong.empty() && !actors_[0].is_gone() && !tasks_.is_winding_down() && !actors_[client + 1].is_killed)
    fail(fmt::format("client {}: {}", client, wrong));
  if (shape_.is_calm() && caller.connections() > 1)
    fail(fmt::format("client {}: its connection breaks for no reason: {}", client, caller.broken().text()));
}

void StoreRun::fill() {
  while (!is_serving_ && !actors_[0].is_gone()) (void)tasks_.sleep(&is_serving_, ~Nanoseconds{0});
  if (!is_serving_) return;
  kv::ClientOptions options = shape_.client;
  options.lookup = kv::Lookup::kOneSided;
  std::string wrong = fill_index(options, kFillingKeys, options_.seed, shape_.server.evict);
  if (!wrong.empty() && !actors_[0].is_gone() && !tasks_.is_winding_down()) fail(std::move(wrong));
}

std::string StoreRun::state_of(unsigned process) const {
  StoreState state = StoreState::kLeaving;
  if (process == 0) {
    const auto calls = [](const Caller* caller) { return caller != nullptr && caller->doing() != Doing::kConnecting; };
    state = !is_serving_                           ? StoreState::kServerStarts
            : is_ending_ || actors_[0].is_ended    ? StoreState::kServerStops
            : std::ranges::any_of(callers_, calls) ? StoreState::kServerServes
                                                   : StoreState::kServerIdles;
  } else if (tasks_.is_done(actors_[process].task)) {
    state = StoreState::kEnded;
  } else if (const Caller* const caller = callers_[process - 1]; caller != nullptr) {
    state = store_state(caller->doing(), journal_.last(process - 1));
  } else if (journal_.last(process - 1) == nullptr) {
    state = StoreState::kConnecting;
  }
  return std::string(states_of_store()[std::to_underlying(state)]);
}

/// What is there in the end is what the last changes have left.
void StoreRun::read_all() {
  Plan plan = shape_.plan;
  plan.gets = 100;
  plan.cells = 0;
  plan.impatient = 0;
  plan.calls = 20;
  add_actor("the last client", "client", [this, plan] {
    if (std::string wrong = Caller(journal_, shape_.clients, plan, shape_.client, options_.seed).run();
        !wrong.empty() && !actors_[0].is_gone())
      fail(fmt::format("the last client: {}", wrong));
    const Leftovers expected{.keys = shape_.plan.keys, .is_filled = shape_.is_filled, .may_be_lost = !shape_.is_calm()};
    if (std::string left = find_leftovers(shape_.client, expected, tasks_); !left.empty() && !actors_[0].is_gone())
      fail(std::move(left));
  });
  if (!run_until([this] { return is_idle(actors_.back()); }, kLiveness)) fail("the last client does not end");
}

/// Where a server was, the next one finds nothing in its way: no port, name or core that the last one still has.
void StoreRun::serve_again() {
  if (!run_until([this] { return is_idle(actors_[0]); }, kLiveness)) return fail("the server does not end");
  ++result_.restarts;
  is_serving_ = false;
  const auto server = static_cast<unsigned>(actors_.size());
  add_actor("the next server", "server", [this, server] { serve(server); });
  Plan plan = shape_.plan;
  plan.calls = kCallsAtLast;
  plan.impatient = 0;
  add_actor("its client", "client", [this, plan] {
    while (!is_serving_) (void)tasks_.sleep(&is_serving_, ~Nanoseconds{0});
    Caller caller(next_journal_, 0, plan, shape_.client, options_.seed + 1);
    if (std::string wrong = caller.run(); !wrong.empty()) fail(fmt::format("the next server's client: {}", wrong));
  });
  if (!run_until([this] { return is_idle(actors_.back()); }, kLiveness)) fail("the next server's client does not end");
  actors_[server].is_ended = true;
  tasks_.wake(&is_ending_);
  if (!run_until([&] { return is_idle(actors_[server]); }, kLiveness)) fail("the next server does not end");
  judge(next_journal_);
}

void StoreRun::judge(const Journal& journal) {
  const auto calls = journal.calls();
  result_.calls += calls.size();
  for (const auto& [key, verdict] : kv::history::check_keys(calls, kMostConfigurations)) {
    result_.overlapping += verdict.overlapping;
    if (!verdict.is_decided) {
      ++result_.undecided;
      continue;
    }
    if (!verdict.is_linearizable()) fail(fmt::format("key {}: {}", key, verdict.why));
  }
}

RunResult StoreRun::run() {
  add_actor("server", "server", [this] { serve(0); });
  for (unsigned i = 0; i < shape_.clients; ++i)
    add_actor(fmt::format("client {}", i), "client", [this, i] { call(i); });
  for (unsigned i = 0; i < shape_.clients; ++i)
    if (shape_.direct[i]) actors_[i + 1].process->work_directly();
  if (shape_.is_filled) add_actor("the client that fills the index", "client", [this] { fill(); });
  if (shape_.are_early) plan_faults(shape_.faults);
  if (!run_until([this] { return is_serving_ || actors_[0].is_gone() || !result_.wrong.empty(); }, kLiveness))
    fail("the server does not come up");
  tasks_.wake(&is_serving_);
  if (!shape_.are_early) plan_faults(shape_.faults);
  tasks_.set_holds(shape_.between_stores, shape_.anywhere);
  if (!run_until([this] { return are_clients_idle(); }, kLiveness))
    fail(fmt::format("after all faults still at work: {}", tasks_.unfinished()));
  if (result_.wrong.empty() && !actors_[0].is_gone()) read_all();
  if (result_.wrong.empty() && actors_[0].is_gone()) serve_again();
  end_actors();
  if (!actors_[0].is_killed && !run_until([&] { return tasks_.is_done(actors_[0].task); }, kLiveness))
    fail(fmt::format("the server does not stop: {}", tasks_.unfinished()));
  if (network_.leaks() != 0) fail(fmt::format("{} NICs were closed with objects in them", network_.leaks()));
  result_.hash = world().hash();
  result_.time = world().now() - World::kBeginning;
  judge(journal_);
  // Nobody watches what follows.
  world().tell("the run is over: everybody is killed, so that all memory is given back");
  journal_.end_all();
  return wind_down();
}

}  // namespace

RunResult run_store(const RunOptions& options) {
  RunResult result = StoreRun(options).run();
  forget_descriptors();
  return result;
}

}  // namespace verbena::sim
