#include "tasks.hpp"

#include "system.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <utility>

namespace verbena::sim {

Tasks::Tasks(Network& network) : network_(network), world_(network.world()) {
  VERBENA_CHECK(current_ == nullptr);
  current_ = this;
  network_.set_turns(this);
}

Tasks::~Tasks() {
  VERBENA_CHECK(are_all_done());
  for (auto& [process, objects] : objects_)
    for (auto& [key, held] : objects) held->remove(held->object);
  network_.set_turns(nullptr);
  current_ = nullptr;
}

std::uint64_t Tasks::start(Process& process, std::string name, std::function<void()> body) {
  auto made = std::make_unique<Task>();
  Task* const task = made.get();
  task->number = tasks_.size();
  task->name = std::move(name);
  task->process = &process;
  task->body = std::move(body);
  task->context =
      boost::context::fiber(std::allocator_arg, StackMaker(task->stack), [this, task](boost::context::fiber&& back) {
        after_switch(task->stack, &outside_);
        task->back = std::move(back);
        run(*task);
        // Not with null, which frees what Boost.Context still has on the stack of its own function.
        before_switch(&task->stack, outside_);
        return std::move(task->back);
      });
  tasks_.push_back(std::move(made));
  ++unfinished_;
  world_.tell("{} starts the task {}", process.name(), task->name);
  resume_at(*task, next_step());
  return task->number;
}

void Tasks::run(Task& task) {
  task.body();
  task.body = nullptr;
  task.is_done = true;
  --unfinished_;
  world_.tell("{} ends the task {}", task.process->name(), task.name);
  wake(&task);
}

bool Tasks::is_any_left(const Process& process) const {
  return std::ranges::any_of(tasks_, [&](const auto& task) { return task->process == &process && !task->is_done; });
}

std::string Tasks::unfinished() const {
  std::string names;
  for (const auto& task : tasks_)
    if (!task->is_done)
      names += fmt::format("{}{} of {}", names.empty() ? "" : ", ", task->name, task->process->name());
  return names;
}

std::uint64_t Tasks::number() const noexcept { return running_->number; }
Process& Tasks::process() const noexcept { return *running_->process; }
Nanoseconds Tasks::now() const noexcept { return world_.now() + (running_ != nullptr ? running_->spent : 0); }
void Tasks::spend(Nanoseconds time) noexcept { running_->spent += time; }

Nanoseconds Tasks::next_step() {
  Random& random = world_.random();
  if (pace_.stall_one_in != 0 && random.one_in(pace_.stall_one_in)) return random.between(1, pace_.longest_stall);
  if (anywhere_.one_in != 0 && random.one_in(anywhere_.one_in)) return random.between(1, anywhere_.longest);
  return random.between(pace_.step, 2 * pace_.step);
}

void Tasks::resume_at(Task& task, Nanoseconds delay) {
  world_.after(delay, "step", [this, raw = &task, ticket = task.ticket] {
    if (raw->ticket == ticket) go_on(*raw);
  });
}

void Tasks::go_on(Task& task) {
  const Process::State state = task.process->state();
  if (state == Process::State::kStopped || (state == Process::State::kDead && !is_winding_down_)) {
    task.is_held = true;
    return;
  }
  if (task.awaits != nullptr) std::erase(sleeping_, &task);
  task.awaits = nullptr;
  task.is_held = false;
  ++task.ticket;
  // Whoever wakes it may do so before the time that it has spent is over: its clock does not go back.
  task.spent = task.busy_until > world_.now() ? task.busy_until - world_.now() : 0;
  world_.note({task.number});
  VERBENA_CHECK(running_ == nullptr);
  running_ = &task;
  before_switch(&outside_, task.stack);
  task.context = std::move(task.context).resume();
  after_switch(outside_, nullptr);
  running_ = nullptr;
}

/// Back to the world, until somebody calls `go_on`.
void Tasks::leave() {
  Task& task = *running_;
  task.busy_until = now();
  before_switch(&task.stack, outside_);
  task.back = std::move(task.back).resume();
  after_switch(task.stack, &outside_);
}

void Tasks::pause() {
  Task& task = *running_;
  const Nanoseconds delay = std::exchange(task.spent, 0) + next_step();
  // Nobody comes in between: time passes, and that is all.
  if (world_.next_due(~Nanoseconds{0}) > world_.now() + delay) return world_.skip(delay);
  resume_at(task, delay);
  leave();
}

void Tasks::pause_between_stores() {
  Random& random = world_.random();
  if (between_stores_.one_in != 0 && random.one_in(between_stores_.one_in))
    spend(random.between(1, between_stores_.longest));
  pause();
}

bool Tasks::sleep(const void* what, Nanoseconds until) {
  Task& task = *running_;
  task.awaits = what;
  task.is_woken = false;
  sleeping_.push_back(&task);
  if (until != ~Nanoseconds{0}) resume_at(task, until > now() ? until - world_.now() : task.spent);
  leave();
  return task.is_woken;
}

void Tasks::wake(const void* what) {
  for (Task* task : sleeping_) {
    if (task->awaits != what || task->is_woken) continue;
    task->is_woken = true;
    resume_at(*task, next_step());
  }
}

void Tasks::join(std::uint64_t task) {
  while (!tasks_[task]->is_done) (void)sleep(tasks_[task].get(), ~Nanoseconds{0});
}

void Tasks::stop(Process& process) { process.stop(); }

void Tasks::release(const Process& process) {
  for (const auto& task : tasks_)
    if (task->process == &process && std::exchange(task->is_held, false)) resume_at(*task, next_step());
}

void Tasks::resume(Process& process) {
  process.resume();
  release(process);
}

void Tasks::kill(Process& process) {
  process.kill();
  end_descriptors_of(process);
}

void Tasks::wind_down() {
  is_winding_down_ = true;
  pace_ = {};
  set_holds({}, {});
  for (const auto& task : tasks_)
    if (task->process->state() == Process::State::kDead && std::exchange(task->is_held, false))
      resume_at(*task, next_step());
}

void*& Tasks::object_of_process(const void* key, void (*remove)(void*)) {
  auto& objects = objects_[running_ != nullptr ? running_->process->number() : 0];
  for (auto& [known, held] : objects)
    if (known == key) return held->object;
  objects.emplace_back(key, std::make_unique<Object>(Object{.object = nullptr, .remove = remove}));
  return objects.back().second->object;
}

}  // namespace verbena::sim
