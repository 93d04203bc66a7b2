// A mesh: processes that join through a carrier, do all that lanes can, die, leave and come back.
#include "mesh_parts.hpp"
#include "scenario.hpp"
#include "system.hpp"

#include "base/threads.hpp"
#include "channel/life.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>

namespace verbena::sim {

namespace meshes {
namespace {

constexpr std::array<std::string_view, 7> kStates{"joining", "a call",  "waiting", "gathering",
                                                  "idle",    "leaving", "ended"};
constexpr Nanoseconds kSlackOfJoin = 5 * kMs;
/// A join that fails waits for its goodbyes.
constexpr Nanoseconds kSlackOfFailure =
    2 * static_cast<Nanoseconds>(std::chrono::nanoseconds(channel::Life::kLinger).count()) + 50 * kMs;

class MeshRun final : private Run {
 public:
  explicit MeshRun(const RunOptions& options)
      : Run(options),
        stage_(tasks_, shape_of(network_.world().random()), [this](std::string why) { Run::fail(std::move(why)); }) {}
  RunResult run();

 private:
  [[nodiscard]] std::string state_of(unsigned process) const override;
  void end(unsigned process) override;
  void on_kill(unsigned process) override;
  [[nodiscard]] unsigned other_of(const Fault& fault) const override {
    return meshes::other_of(fault, stage_.processes());
  }
  void come_back(unsigned id);
  void be_process(unsigned id);
  void check_join(const Life& life, const Error& why);
  void serve(Life& life, mesh::Mesh& mesh, std::deque<Driver>& lanes);
  void drive(Life& life, std::span<Driver* const> drivers);
  [[nodiscard]] bool must_leave(unsigned id) const;
  [[nodiscard]] bool is_gathering() const;
  [[nodiscard]] bool are_all_there() const;
  void begin_round();
  void plan_rounds();
  [[nodiscard]] bool have_worked() const;
  void settle();
  void check_memory(const Life& life);

  Stage stage_;
  std::array<unsigned, kMostProcesses> attempts_{};
  std::array<bool, kMostProcesses> is_away_{};  ///< It is gone, and may come back.
  Nanoseconds faults_end_ = 0;
};

std::string MeshRun::state_of(unsigned process) const {
  const Life* const life = stage_.latest(process);
  if (tasks_.is_done(actors_[process].task)) return "ended";
  if (life == nullptr || life->joined == 0) return "joining";
  if (life->drivers.empty()) return "leaving";
  return std::string(life->drivers.front()->state());
}

void MeshRun::end(unsigned process) {
  is_away_[process] = true;
  Random& random = stage_.random();
  const Nanoseconds away = random.one_in(2) ? random.between(kUs, kMs) : random.between(kMs, 30 * kMs);
  later(away, "back", [this, process] { come_back(process); });
}

void MeshRun::on_kill(unsigned process) {
  if (Life* const life = stage_.latest(process)) life->killed = stage_.now();
  end(process);
}

/// Not in the middle of a gather: who comes back takes part in those that nobody has called.
void MeshRun::come_back(unsigned id) {
  if (!stage_.shape().come_back || stage_.is_ending || !result_.wrong.empty()) return;
  if (!is_idle(actors_[id]) || is_gathering()) return later(kMs, "back", [this, id] { come_back(id); });
  ++result_.restarts;
  is_away_[id] = false;
  replace_actor(id, fmt::format("process {} again", id), "process", [this, id] { be_process(id); });
}

bool MeshRun::must_leave(unsigned id) const {
  return stage_.is_ending || actors_[id].is_ended || tasks_.is_winding_down() || !result_.wrong.empty();
}

// --- a process ----------------------------------------------------------------------------------------------------

void MeshRun::be_process(unsigned id) {
  while (!must_leave(id) && attempts_[id] < kMostLives) {
    Life& life = stage_.add_life(id);
    mesh::Options options = stage_.shape().options;
    options.id = id;
    options.incarnation = ++attempts_[id];
    const Nanoseconds begin = stage_.now();
    std::deque<Driver> lanes;  // The memory of operations that have not ended outlives the mesh.
    auto joined = mesh::Mesh::join(options, make_carrier(stage_));
    const Nanoseconds due = begin + static_cast<Nanoseconds>(std::chrono::nanoseconds(options.join_timeout).count());
    if (stage_.is_quiet && !joined && must_leave(id)) return;
    stage_.check_time(life, "join", begin, due, joined ? kSlackOfJoin : kSlackOfFailure);
    if (joined) return serve(life, **joined, lanes);
    stage_.tell("life {} (process {}) does not join: {}", life.number, id, joined.error().text());
    life.may_leave = std::min(life.may_leave, stage_.now());
    check_join(life, joined.error());
    stage_.sleep(stage_.random().between(kMs, 20 * kMs));
  }
}

void MeshRun::check_join(const Life& life, const Error& why) {
  if (why.status() == Status::kSystem &&
      std::string_view(why.text()).find("the carrier fails") != std::string_view::npos)
    return;
  if (why.status() != Status::kTimedOut)
    return stage_.fail(fmt::format("life {} (process {}) does not join: {}", life.number, life.id, why.text()));
  // The list begins behind the words, and ends before the first reason.
  const std::string_view text = why.text();
  for (const std::string_view words : {"missing: ", "themselves: "}) {
    const std::size_t at = text.find(words);
    if (at == std::string_view::npos) continue;
    const char* next = text.data() + at + words.size();
    for (bool is_more = true; is_more; next += 2) {
      char* after = nullptr;
      const auto id = static_cast<unsigned>(std::strtoul(next, &after, 10));
      if (after == next || id >= stage_.processes() || id == life.id)
        return stage_.fail(fmt::format("the failed join of life {} names nobody: {}", life.number, text));
      is_more = std::string_view(after).starts_with(", ");
      next = after;
    }
    if (stage_.is_undisturbed(life))
      stage_.fail(fmt::format("life {} does not join, and nothing is in its way: {}", life.number, text));
    return;
  }
  stage_.fail(fmt::format("the failed join of life {} names nobody: {}", life.number, text));
}

void MeshRun::serve(Life& life, mesh::Mesh& mesh, std::deque<Driver>& lanes) {
  life.may_leave = 0;
  life.joined = stage_.now();
  life.rounds = stage_.round;
  const auto memory = mesh.allocate(kMemoryBytes);
  if (!memory) return stage_.fail(fmt::format("no memory: {}", memory.error().text()));
  life.memory = *memory;
  fill(life.memory.subspan(kConstantsAt, kSlicesAt - kConstantsAt), life.number);
  if (const auto published = mesh.publish("all", life.memory); !published)
    return stage_.fail(fmt::format("publish: {}", published.error().text()));
  for (unsigned thread = 0; thread < mesh.options().threads; ++thread)
    life.drivers.push_back(&lanes.emplace_back(stage_, life, mesh.lane(thread), options_.seed));
  if (stage_.shape().has_task_per_lane) {
    std::vector<Thread> threads;
    for (std::size_t i = 1; i < lanes.size(); ++i)
      threads.emplace_back(Thread([this, &life, i] { drive(life, std::span(life.drivers).subspan(i, 1)); }));
    drive(life, std::span(life.drivers).first(1));
    for (Thread& thread : threads) thread.join();
  } else {
    drive(life, life.drivers);
  }
  life.drivers.clear();
  check_memory(life);
  life.may_leave = stage_.now();
  life.memory = {};
}

void MeshRun::drive(Life& life, std::span<Driver* const> drivers) {
  while (!must_leave(life.id))
    for (Driver* const driver : drivers) driver->turn();
}

/// Nobody has written where he was not to.
void MeshRun::check_memory(const Life& life) {
  std::uint64_t sum = 0;
  std::memcpy(&sum, life.memory.data(), sizeof sum);
  if (sum < life.adds_done || sum > life.adds_started)
    stage_.fail(fmt::format("life {}: the counter is {}; {} adds have ended, of {}", life.number, sum, life.adds_done,
                            life.adds_started));
  if (!is_filled(life.memory.subspan(kConstantsAt, kSlicesAt - kConstantsAt), life.number))
    stage_.fail(fmt::format("life {}: bytes have changed that nobody writes", life.number));
}

// --- gathers ------------------------------------------------------------------------------------------------------

bool MeshRun::is_gathering() const {
  for (unsigned id = 0; id < stage_.processes(); ++id)
    if (stage_.lives(id) && stage_.latest(id)->rounds != stage_.round) return true;
  return false;
}

bool MeshRun::are_all_there() const {
  for (unsigned id = 0; id < stage_.processes(); ++id)
    if (!stage_.lives(id) || actors_[id].is_gone()) return false;
  return true;
}

void MeshRun::begin_round() {
  ++stage_.round;
  stage_.gathered = 0;
}

void MeshRun::plan_rounds() {
  for (unsigned i = 0; i < stage_.shape().gathers; ++i)
    later(stage_.random().between(kUs, 3 * kMs), "gather", [this] {
      if (!stage_.is_quiet && are_all_there() && !is_gathering()) begin_round();
    });
}

// --- the end ------------------------------------------------------------------------------------------------------

/// Everybody has done its steps, and nothing happens from outside any more.
bool MeshRun::have_worked() const {
  if (!result_.wrong.empty()) return true;
  if (now() < faults_end_ || is_gathering()) return false;
  for (unsigned id = 0; id < stage_.processes(); ++id) {
    if (is_away_[id] && stage_.shape().come_back) return false;
    if (!stage_.lives(id)) {
      if (stage_.shape().come_back && attempts_[id] < kMostLives) return false;
      continue;
    }
    for (const Driver* const driver : stage_.latest(id)->drivers)
      if (!driver->has_worked()) return false;
  }
  return true;
}

void MeshRun::settle() {
  stage_.is_quiet = true;
  const auto each = [this](const auto& look) {
    for (unsigned id = 0; id < stage_.processes(); ++id) {
      if (!stage_.lives(id)) continue;
      for (const Driver* const driver : stage_.latest(id)->drivers)
        if (!look(*driver)) return false;
    }
    return true;
  };
  const auto is_settled = [&] {
    return !result_.wrong.empty() || each([](const Driver& driver) { return driver.is_settled(); });
  };
  if (!run_until(is_settled, kLiveness)) {
    std::string who;
    (void)each([&](const Driver& driver) {
      if (!driver.is_settled()) who += "; " + driver.unsettled();
      return true;
    });
    return fail(fmt::format("after all faults not everything ends, or not everybody is found{}", who));
  }
  std::string missing;
  const auto has_all = [&] {
    return !result_.wrong.empty() || each([&](const Driver& driver) {
      for (unsigned peer = 0; peer < stage_.processes(); ++peer)
        if (stage_.lives(peer))
          if (missing = driver.missing(peer); !missing.empty()) return false;
      return true;
    });
  };
  if (!run_until(has_all, kLiveness)) return fail(std::move(missing));
  if (!are_all_there() || !result_.wrong.empty()) return;
  begin_round();
  if (!run_until([this] { return !result_.wrong.empty() || !is_gathering(); }, kLiveness))
    return fail("the last gather does not end");
}

RunResult MeshRun::run() {
  for (unsigned id = 0; id < stage_.processes(); ++id)
    add_actor(fmt::format("process {}", id), "process", [this, id] { be_process(id); });
  const auto begin_faults = [this] {
    stage_.set_begin(world().now());
    faults_end_ = world().now();
    for (const Fault& fault : stage_.shape().faults)
      faults_end_ = std::max(faults_end_, world().now() + fault.at + fault.time + fault.time / 3);
    plan_faults(stage_.shape().faults);
    // Time goes on until then, also where everybody has given up before.
    later(faults_end_ - world().now(), "end of faults", [] {});
  };
  if (stage_.shape().are_early) begin_faults();
  // With a short deadline and a carrier that fails they may miss each other each time.
  const auto has_given_up = [this] {
    return std::ranges::all_of(std::span(attempts_).first(stage_.processes()),
                               [](unsigned attempts) { return attempts == kMostLives; });
  };
  const auto has_begun = [&] {
    return stage_.shape().are_early || are_all_there() || has_given_up() || !result_.wrong.empty();
  };
  if (!run_until(has_begun, kLiveness)) fail(fmt::format("the processes do not join: {}", tasks_.unfinished()));
  if (!stage_.shape().are_early) begin_faults();
  plan_rounds();
  if (!run_until([this] { return have_worked(); }, kLiveness))
    fail(fmt::format("after all faults still at work: {}", tasks_.unfinished()));
  if (result_.wrong.empty()) settle();
  stage_.is_ending = true;
  end_actors();
  const auto have_ended = [this] {
    return std::ranges::all_of(actors_, [this](const Actor& a) { return is_idle(a); });
  };
  if (!run_until(have_ended, kLiveness)) fail(fmt::format("processes do not end: {}", tasks_.unfinished()));
  // Threads of the library end behind whoever has closed the last of its objects.
  (void)run_until([] { return false; }, 100 * kMs);
  check_leftovers();
  result_.hash = world().hash();
  result_.time = world().now() - World::kBeginning;
  result_.calls = stage_.calls;
  return wind_down();
}

}  // namespace
}  // namespace meshes

std::span<const std::string_view> states_of_mesh() noexcept { return meshes::kStates; }

RunResult run_mesh(const RunOptions& options) {
  RunResult result = meshes::MeshRun(options).run();
  forget_descriptors();
  return result;
}

}  // namespace verbena::sim
