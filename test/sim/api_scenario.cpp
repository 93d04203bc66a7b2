// The blocking API: a server with its listeners, clients that connect, call and leave, and what happens to both.
#include "api_parts.hpp"
#include "scenario.hpp"
#include "system.hpp"

#include <algorithm>
#include <array>

namespace verbena::sim {

namespace {

using api::Client;
using api::Server;
using api::Stage;

constexpr std::array<std::string_view, 7> kStates{"starting", "serving", "stopping", "connecting",
                                                  "a call",   "closing", "ended"};

class ApiRun final : private Run {
 public:
  explicit ApiRun(const RunOptions& options)
      : Run(options),
        stage_(tasks_, api::shape_of(network_.world().random()),
               [this](std::string why) { fail_unless_killed(std::move(why)); }),
        server_(stage_, options.seed) {}
  RunResult run();

 private:
  [[nodiscard]] std::string state_of(unsigned process) const override {
    return std::string(process == 0 ? server_.state() : clients_[process - 1].state());
  }
  void end(unsigned process) override {
    if (process != 0) return clients_[process - 1].leave();
    stage_.is_ending = true;
    tasks_.wake(&stage_.is_ending);
  }
  void on_kill(unsigned process) override { stage_.kill(process); }
  void fail_unless_killed(std::string why) { fail(std::move(why)); }

  Stage stage_;
  Server server_;
  std::deque<Client> clients_;
};

RunResult ApiRun::run() {
  add_actor("server", "server", [this] { server_.run(); });
  for (unsigned i = 0; i < stage_.shape().clients; ++i) {
    clients_.emplace_back(stage_, i, options_.seed);
    add_actor(fmt::format("client {}", i), "client", [this, i] {
      if (stage_.listens_since == 0) (void)tasks_.sleep(&stage_.listens_since, ~Nanoseconds{0});
      clients_[i].run();
    });
  }
  if (!run_until([this] { return stage_.listens_since != 0 || !result_.wrong.empty(); }, kLiveness))
    fail("the listener does not start");
  stage_.set_begin(world().now());
  plan_faults(stage_.shape().faults);
  if (!run_until([this] { return are_clients_idle(); }, kLiveness))
    fail(fmt::format("after all faults still at work: {}", tasks_.unfinished()));
  end_actors();
  end(0);
  if (!actors_[0].is_killed && !run_until([&] { return tasks_.is_done(actors_[0].task); }, kLiveness))
    fail(fmt::format("the server does not end: {}", tasks_.unfinished()));
  if (!actors_[0].is_killed) stage_.check_words();
  // Threads of the library end behind whoever has closed the last of its objects.
  (void)run_until([] { return false; }, 100 * kMs);
  check_leftovers();
  result_.hash = world().hash();
  result_.time = world().now() - World::kBeginning;
  result_.calls = stage_.calls;
  return wind_down();
}

}  // namespace

std::span<const std::string_view> states_of_api() noexcept { return kStates; }

RunResult run_api(const RunOptions& options) {
  RunResult result = ApiRun(options).run();
  forget_descriptors();
  return result;
}

}  // namespace verbena::sim
