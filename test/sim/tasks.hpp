// Threads of simulated processes as tasks of one thread: one runs at a time, and each place where it may stand is an
// event of the world, so that the seed decides who goes on.
#pragma once

#include "process.hpp"
#include "stacks.hpp"
#include "world.hpp"

#include <boost/context/fiber.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace verbena::sim {

/// Whatever stands between two processes of a run: how long steps take, and how often one takes much longer.
struct Pace {
  Nanoseconds step = 60;  ///< A step takes this long at least, and twice as long at most,
  /// but one in so many, which stands still as by a page fault or another thread on its core; 0: none.
  std::uint64_t stall_one_in = 0;
  Nanoseconds longest_stall = 0;
};

/// How often somebody stands still, all through a run.
struct Holds {
  std::uint64_t one_in = 0;  ///< 0: never.
  Nanoseconds longest = 0;
};

/// The tasks of one simulation, of which there is one at a time. Everything here is deterministic: who waits is found
/// by the order in which he began to, and addresses are only compared.
class Tasks final : private Turns {
 public:
  explicit Tasks(Network& network);
  /// Every task has ended.
  ~Tasks();
  Tasks(const Tasks&) = delete;
  Tasks& operator=(const Tasks&) = delete;

  /// Of the simulation that runs; null: none does.
  [[nodiscard]] static Tasks* current() noexcept { return current_; }
  /// Whether a task runs, and not the simulation around it.
  [[nodiscard]] static bool is_inside() noexcept { return current_ != nullptr && current_->running_ != nullptr; }

  /// Starts a task of a process: its number, for `is_done` and `join`.
  std::uint64_t start(Process& process, std::string name, std::function<void()> body);
  [[nodiscard]] bool is_done(std::uint64_t task) const noexcept { return tasks_[task]->is_done; }
  [[nodiscard]] std::size_t count() const noexcept { return tasks_.size(); }
  [[nodiscard]] World& world() noexcept { return world_; }
  [[nodiscard]] bool are_all_done() const noexcept { return unfinished_ == 0; }
  /// Whether a process has a task that has not ended.
  [[nodiscard]] bool is_any_left(const Process& process) const;
  /// Names of those that have not ended.
  [[nodiscard]] std::string unfinished() const;

  // Of the task that runs.

  [[nodiscard]] std::uint64_t number() const noexcept;
  /// Null at first.
  [[nodiscard]] void*& word() noexcept { return running_->word; }
  [[nodiscard]] Process& process() const noexcept;
  /// What the task's clock shows.
  [[nodiscard]] Nanoseconds now() const noexcept;
  /// Time that the task spends by computing, before others get to see it.
  void spend(Nanoseconds time) noexcept override;
  /// A place where others may go on.
  void pause() override;
  /// The same, between two stores of which others may see the first alone.
  void pause_between_stores();
  /// Waits until somebody wakes `what`: true; or until a time of the world's clock: false.
  bool sleep(const void* what, Nanoseconds until) override;
  void join(std::uint64_t task);

  /// Whoever sleeps on `what` goes on.
  void wake(const void* what) override;

  // Of the simulation around them.

  void set_pace(const Pace& pace) noexcept { pace_ = pace; }
  /// Between two stores that belong together, where others see the first alone; and at any step.
  void set_holds(const Holds& between_stores, const Holds& anywhere) noexcept {
    between_stores_ = between_stores;
    anywhere_ = anywhere;
  }
  /// Stops a process, lets it go on, or kills it: it takes no step any more.
  void stop(Process& process);
  void resume(Process& process);
  void kill(Process& process);
  /// At the end of a run, killed processes run to their ends, to give their memory back: without a NIC, so that nobody
  /// hears of it.
  void wind_down();
  [[nodiscard]] bool is_winding_down() const noexcept { return is_winding_down_; }
  /// An object of the running task's process, null at first; outside of tasks, of nobody's.
  [[nodiscard]] void*& object_of_process(const void* key, void (*remove)(void*));

 private:
  bool is_task() const noexcept override { return running_ != nullptr; }
  struct Task {
    std::uint64_t number = 0;
    std::string name;
    Process* process = nullptr;
    std::function<void()> body;
    Stack stack;
    boost::context::fiber context;
    boost::context::fiber back;
    std::uint64_t ticket = 0;  ///< Counts its waits: an event for an earlier one finds nobody.
    const void* awaits = nullptr;
    void* word = nullptr;
    Nanoseconds spent = 0;
    Nanoseconds busy_until = 0;  ///< What its clock showed when it left.
    bool is_woken = false;
    bool is_held = false;  ///< It would go on, but its process stands still or is dead.
    bool is_done = false;
  };
  struct Object {
    void* object = nullptr;
    void (*remove)(void*) = nullptr;
  };
  [[nodiscard]] Nanoseconds next_step();
  void resume_at(Task& task, Nanoseconds delay);
  void go_on(Task& task);
  void run(Task& task);
  void leave();
  void release(const Process& process);

  static inline Tasks* current_ = nullptr;
  Network& network_;
  World& world_;
  Pace pace_;
  Holds between_stores_;
  Holds anywhere_;
  Task* running_ = nullptr;
  Stack outside_;  ///< Of the simulation around the tasks.
  std::vector<std::unique_ptr<Task>> tasks_;
  std::vector<Task*> sleeping_;  ///< In the order in which they began.
  std::size_t unfinished_ = 0;
  bool is_winding_down_ = false;
  std::map<std::uint32_t, std::vector<std::pair<const void*, std::unique_ptr<Object>>>> objects_;  // By process.
};

}  // namespace verbena::sim
