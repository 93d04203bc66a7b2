#include "run.hpp"

#include "addresses.hpp"
#include "system.hpp"

#include <algorithm>
#include <cstdlib>

namespace verbena::sim {

std::vector<Fault> draw_faults(Random& random, unsigned clients) {
  std::vector<Fault> faults;
  const std::uint64_t count = random.one_in(4) ? 0 : random.between(1, 8);
  // Singly, and in bursts: the next one comes soon, or much later.
  Nanoseconds at = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    at += random.one_in(2) ? random.between(0, 20 * kUs) : random.between(0, 2 * kMs);
    Fault fault{.kind = static_cast<Fault::Kind>(random.below(Fault::kKinds)),
                .process = static_cast<unsigned>(random.below(clients + 1)),
                .at = at,
                .time = random.one_in(4) ? random.between(kMs, 40 * kMs) : random.between(kUs, kMs)};
    // A burst that begins with an end meets processes that are leaving.
    if (i != 0 && faults.back().kind == Fault::Kind::kEnd && !random.one_in(3)) {
      at = fault.at = faults.back().at + random.between(0, 20 * kUs);
      fault.process = faults.back().process;
    }
    // A run without a server has little to say: that one goes seldom.
    const bool is_last = fault.kind == Fault::Kind::kKill || fault.kind == Fault::Kind::kEnd;
    if (is_last && fault.process == 0 && !random.one_in(4)) fault.kind = Fault::Kind::kStop;
    faults.push_back(fault);
  }
  return faults;
}

bool is_cut(Fault::Kind kind) noexcept {
  return kind == Fault::Kind::kCutTo || kind == Fault::Kind::kCutFrom || kind == Fault::Kind::kCutBoth;
}

Nanoseconds lost_since(const std::vector<Fault>& faults, Nanoseconds start, Nanoseconds begin, Nanoseconds now) {
  Nanoseconds lost = 0;
  for (const Fault& fault : faults) {
    if (fault.kind != Fault::Kind::kStop && fault.kind != Fault::Kind::kStalls) continue;
    // The last stall may begin when the others end.
    const Nanoseconds from = std::max(begin, start + fault.at);
    const Nanoseconds to = std::min(now, start + fault.at + fault.time + fault.time / 3);
    if (to > from) lost += to - from;
  }
  return lost;
}

Run::Run(const RunOptions& options)
    : options_(options),
      network_({.seed = options.seed, .story = options.story, .mutant = Mutant::kNone, .polls_pass_time = false}),
      tasks_(network_) {
  restart_addresses();
}

void Run::add_actor(std::string name, const char* task, std::function<void()> body) {
  Process& process = network_.add_process(std::move(name));
  actors_.push_back({.process = &process, .task = tasks_.start(process, task, std::move(body))});
}

void Run::replace_actor(unsigned process, std::string name, const char* task, std::function<void()> body) {
  add_actor(std::move(name), task, std::move(body));
  actors_[process] = actors_.back();
  actors_.pop_back();
}

bool Run::are_clients_idle() const {
  return std::all_of(actors_.begin() + 1, actors_.end(), [this](const Actor& actor) { return is_idle(actor); });
}

void Run::later(Nanoseconds delay, std::string_view what, std::function<void()> then) {
  world().after(delay, what, std::move(then));
}

void Run::plan_faults(std::vector<Fault> faults) {
  faults_ = std::move(faults);
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    if (options_.on_fault) options_.on_fault(i, faults_[i]);
    if (std::ranges::find(options_.without, i) != options_.without.end()) continue;
    later(faults_[i].at, "fault", [this, i] {
      happen(faults_[i]);
      if (options_.on_fault) options_.on_fault(i, faults_[i]);
    });
  }
}

void Run::heal(const Process& from, const Process& to) {
  network_.heal(from, to);
  look_at_descriptors();
}

void Run::happen(Fault& fault) {
  Actor& actor = actors_[fault.process];
  Process& process = *actor.process;
  if (is_ending_ || process.state() != Process::State::kRunning) return;
  // What has ended, or was told to, is not there to be hit; the machine and the network are.
  const bool is_global = fault.kind == Fault::Kind::kStalls || fault.kind == Fault::Kind::kLosses;
  if (!is_global && (is_idle(actor) || (fault.kind == Fault::Kind::kEnd && actor.is_ended))) return;
  fault.state = state_of(fault.process);
  world().note({static_cast<std::uint64_t>(fault.kind), fault.process});
  world().tell("fault: {}", to_text(fault));
  Process& other = *actors_[other_of(fault)].process;
  switch (fault.kind) {
    case Fault::Kind::kKill:
      actor.is_killed = true;
      tasks_.kill(process);
      on_kill(fault.process);
      return;
    case Fault::Kind::kStop:
      tasks_.stop(process);
      return later(fault.time, "resume", [this, &process] {
        if (process.state() == Process::State::kStopped) tasks_.resume(process);
      });
    case Fault::Kind::kCutTo:
      network_.cut(process, other);
      return later(fault.time, "heal", [this, &process, &other] { heal(process, other); });
    case Fault::Kind::kCutFrom:
      network_.cut(other, process);
      return later(fault.time, "heal", [this, &process, &other] { heal(other, process); });
    case Fault::Kind::kCutBoth:
      network_.cut_both_ways(process, other);
      return later(fault.time, "heal", [this, &process, &other] {
        heal(process, other);
        heal(other, process);
      });
    case Fault::Kind::kStalls:
      tasks_.set_pace({.stall_one_in = 50, .longest_stall = fault.time / 4 + 1});
      return later(fault.time, "heal", [this] { tasks_.set_pace({}); });
    case Fault::Kind::kLosses: network_.lose(20); return later(fault.time, "heal", [this] { network_.lose(0); });
    case Fault::Kind::kEnd: actor.is_ended = true; return end(fault.process);
  }
}

void Run::end_actors() {
  is_ending_ = true;
  tasks_.wake(&is_ending_);
}

void Run::check_leftovers() {
  for (const Actor& actor : actors_) {
    if (actor.is_killed) continue;
    if (tasks_.is_any_left(*actor.process)) fail(fmt::format("tasks are left: {}", tasks_.unfinished()));
    if (actor.process->has_nics()) fail(fmt::format("{} has ended, and its NIC is open", actor.process->name()));
  }
  if (network_.leaks() != 0) fail(fmt::format("{} NICs were closed with objects in them", network_.leaks()));
}

RunResult Run::wind_down() {
  for (Actor& actor : actors_)
    if (actor.process->state() != Process::State::kDead) tasks_.kill(*actor.process);
  tasks_.wind_down();
  if (!run_until([this] { return tasks_.are_all_done(); }, 3600 * kLiveness)) {
    fmt::print(stderr, "seed {}: {}; killed processes do not end: {}\n", options_.seed, result_.wrong,
               tasks_.unfinished());
    std::abort();
  }
  result_.events = world().events();
  result_.faults = faults_;
  return std::move(result_);
}

}  // namespace verbena::sim
