// What the runs of all scenarios have in common: a world with its processes, faults that happen to them, and an end.
#pragma once

#include "process.hpp"
#include "scenario.hpp"
#include "tasks.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::sim {

inline constexpr Nanoseconds kUs = 1000;
inline constexpr Nanoseconds kMs = 1000 * kUs;
/// Once the faults have stopped everything has to end within this time.
inline constexpr Nanoseconds kLiveness = 60'000 * kMs;

/// Faults of a run with one server and some clients.
[[nodiscard]] std::vector<Fault> draw_faults(Random& random, unsigned clients);
[[nodiscard]] bool is_cut(Fault::Kind kind) noexcept;
/// Time between `begin` and `now` that stops and stalls may have taken from a call. `start` is when faults began.
[[nodiscard]] Nanoseconds lost_since(const std::vector<Fault>& faults, Nanoseconds start, Nanoseconds begin,
                                     Nanoseconds now);

class Run {
 public:
  explicit Run(const RunOptions& options);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

 protected:
  struct Actor {
    Process* process = nullptr;
    std::uint64_t task = 0;
    bool is_killed = false;
    bool is_ended = false;  ///< It was told to end.
    [[nodiscard]] bool is_gone() const noexcept { return is_killed || is_ended; }
  };
  virtual ~Run() = default;
  /// What a process is doing, for who reads of a fault: one of the scenario's states.
  [[nodiscard]] virtual std::string state_of(unsigned process) const = 0;
  /// Tells a process to end in order.
  virtual void end(unsigned process) = 0;
  virtual void on_kill(unsigned /*process*/) {}
  /// Whom a cut parts a process from: the server from its first client, and everybody else from the server.
  [[nodiscard]] virtual unsigned other_of(const Fault& fault) const { return fault.process == 0 ? 1 : 0; }
  [[nodiscard]] World& world() noexcept { return network_.world(); }
  [[nodiscard]] Nanoseconds now() const noexcept { return tasks_.now(); }
  /// The first reason stays.
  void fail(std::string why) {
    if (result_.wrong.empty()) result_.wrong = std::move(why);
  }
  /// Makes a process, the server first, with a task.
  void add_actor(std::string name, const char* task, std::function<void()> body);
  /// A process that comes back, in the place of one that is gone.
  void replace_actor(unsigned process, std::string name, const char* task, std::function<void()> body);
  [[nodiscard]] bool is_idle(const Actor& actor) const { return actor.is_killed || tasks_.is_done(actor.task); }
  [[nodiscard]] bool are_clients_idle() const;
  void plan_faults(std::vector<Fault> faults);
  void later(Nanoseconds delay, std::string_view what, std::function<void()> then);
  /// Lets events happen until `done`: false when it did not come to that.
  template <class Done>
  bool run_until(const Done& done, Nanoseconds most) {
    const Nanoseconds until = world().now() + most;
    while (!done()) {
      if (world().now() > until || world().events() > kMostEvents || !world().step()) return false;
    }
    return true;
  }
  /// Who waits for the end goes on, and nothing more happens from outside.
  void end_actors();
  /// Processes that ended in order have left no task, no open NIC, and no object in a closed one.
  void check_leftovers();
  /// Kills whoever is left, and lets all tasks run to their ends. Nobody watches.
  RunResult wind_down();

  const RunOptions options_;
  Network network_;
  Tasks tasks_;
  RunResult result_;
  std::vector<Actor> actors_;  ///< The server, then the clients.
  bool is_ending_ = false;     ///< Its address is what the server waits for.

 private:
  static constexpr std::uint64_t kMostEvents = 20'000'000;
  void happen(Fault& fault);
  void heal(const Process& from, const Process& to);

  std::vector<Fault> faults_;
};

}  // namespace verbena::sim
