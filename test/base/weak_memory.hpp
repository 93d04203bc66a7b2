// A small machine with weakly ordered memory, and a walk through everything that a few short threads can do on it.
//
// There is one memory, and each thread does its steps in any order that nothing forbids: so loads and stores pass each
// other, as on AArch64 (multi-copy atomic: Pulte, Flur, Deacon, French, Sarkar, Sewell, "Simplifying ARM Concurrency",
// POPL 2018). What forbids is C++: acquire, release, sequential consistency and fences, each no stronger than the
// standard has it. So a release does not wait for a later acquire, and a read-modify-write orders by its load what
// follows and by its store what came before. membarrier is the heavy side of an asymmetric fence (Goldblatt, "P1202:
// Asymmetric Thread Fences"): everything before a light fence of another thread comes before it, or everything behind.
//
// Weaker than AArch64: addresses that depend on what was loaded order nothing. Stronger than C++: a store that takes
// place only if a load brought a certain value waits for that load, as on every processor; and stores reach all threads
// at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace verbena::weak {

enum class Order : std::uint8_t { kRelaxed, kAcquire, kRelease, kSeqCst };

inline constexpr std::size_t kPlaces = 4;
inline constexpr std::size_t kRegisters = 4;
inline constexpr std::size_t kMostSteps = 16;

/// What the loads of one thread brought.
using Registers = std::array<std::uint8_t, kRegisters>;
/// Of a store that takes place only if loads brought certain values. It waits for those loads.
struct Condition {
  std::vector<std::uint8_t> of{};  ///< Registers.
  std::function<bool(const Registers&)> holds{};
};

struct Step {
  enum class Kind : std::uint8_t { kLoad, kStore, kFence, kLight, kHeavy };
  Kind kind = Kind::kFence;
  Order order = Order::kRelaxed;
  std::uint8_t place = 0;
  std::uint8_t what = 0;  ///< A load's register, a store's value.
  Condition condition{};

  [[nodiscard]] bool is_load() const noexcept { return kind == Kind::kLoad; }
  [[nodiscard]] bool is_store() const noexcept { return kind == Kind::kStore; }
  [[nodiscard]] bool is_access() const noexcept { return is_load() || is_store(); }
  [[nodiscard]] bool is_fence() const noexcept { return kind == Kind::kFence || kind == Kind::kHeavy; }
  [[nodiscard]] bool acquires() const noexcept { return order == Order::kAcquire || order == Order::kSeqCst; }
  [[nodiscard]] bool releases() const noexcept { return order == Order::kRelease || order == Order::kSeqCst; }
};

/// Whether `first`, which comes before `second` in its thread's program, has to be done before it.
[[nodiscard]] inline bool is_ordered(const Step& first, const Step& second) noexcept {
  if (first.is_access() && second.is_access() && first.place == second.place) return true;
  if (second.is_store() && first.is_load() &&
      std::ranges::find(second.condition.of, first.what) != second.condition.of.end())
    return true;
  if (first.is_load() && first.acquires()) return true;
  if (second.is_store() && second.releases()) return true;
  if (first.is_store() && second.is_load() && first.order == Order::kSeqCst && second.order == Order::kSeqCst)
    return true;
  // A fence is done when what it waits for is. What it holds back waits for the fence.
  if (second.is_fence()) return second.releases() || (second.acquires() && (first.is_load() || first.is_fence()));
  if (first.is_fence()) return first.acquires() || (first.releases() && second.is_store());
  return false;
}

/// A thread's program. An order of kRelaxed is none: a fence of it is not there.
class Program {
 public:
  Program& load(std::uint8_t into, std::uint8_t place, Order order = Order::kRelaxed) {
    return add({.kind = Step::Kind::kLoad, .order = order, .place = place, .what = into});
  }
  Program& store(std::uint8_t place, std::uint8_t value, Order order = Order::kRelaxed, Condition condition = {}) {
    return add(
        {.kind = Step::Kind::kStore, .order = order, .place = place, .what = value, .condition = std::move(condition)});
  }
  /// Sequentially consistent. What it brings is in register `into`.
  Program& exchange(std::uint8_t into, std::uint8_t place, std::uint8_t value) {
    return load(into, place, Order::kSeqCst).store(place, value, Order::kSeqCst);
  }
  Program& fence(Order order) {
    return order == Order::kRelaxed ? *this : add({.kind = Step::Kind::kFence, .order = order});
  }
  Program& light(bool is_there) { return is_there ? add({.kind = Step::Kind::kLight}) : *this; }
  Program& heavy(bool is_there) {
    return is_there ? add({.kind = Step::Kind::kHeavy, .order = Order::kSeqCst}) : *this;
  }
  [[nodiscard]] const std::vector<Step>& steps() const noexcept { return steps_; }

 private:
  Program& add(Step step) {
    if (steps_.size() == kMostSteps || step.place >= kPlaces || (step.is_load() && step.what >= kRegisters))
      throw std::length_error("the program is too large for the machine");
    steps_.push_back(std::move(step));
    return *this;
  }
  std::vector<Step> steps_;
};

/// All there is: memory, and of each thread what it has done and what its loads brought.
struct State {
  std::array<std::uint8_t, kPlaces> memory{};
  std::vector<Registers> registers;
  std::vector<std::uint16_t> done;  ///< A bit a step.

  [[nodiscard]] std::string key() const {
    std::string text(memory.begin(), memory.end());
    for (const Registers& one : registers) text.append(one.begin(), one.end());
    for (const std::uint16_t bits : done) {
      text.push_back(static_cast<char>(bits & 0xff));
      text.push_back(static_cast<char>(bits >> 8));
    }
    return text;
  }
};

class Machine {
 public:
  using Bad = std::function<bool(const State&)>;

  Machine(std::vector<Program> threads, std::array<std::uint8_t, kPlaces> memory)
      : threads_(std::move(threads)),
        start_{.memory = memory,
               .registers = std::vector<Registers>(threads_.size()),
               .done = std::vector<std::uint16_t>(threads_.size())} {}

  /// Whether the threads can end in a state that is `bad`.
  [[nodiscard]] bool reaches(const Bad& bad) {
    seen_.clear();
    std::vector<State> open{start_};
    while (!open.empty()) {
      const State state = std::move(open.back());
      open.pop_back();
      if (!seen_.insert(state.key()).second) continue;
      bool is_end = true;
      for (std::size_t thread = 0; thread < threads_.size(); ++thread)
        for (std::size_t step = 0; step < steps(thread).size(); ++step) {
          if (is_done(state, thread, step)) continue;
          is_end = false;
          if (may_do(state, thread, step)) open.push_back(after(state, thread, step));
        }
      if (is_end && bad(state)) return true;
    }
    return false;
  }
  /// Of the last walk.
  [[nodiscard]] std::size_t states() const noexcept { return seen_.size(); }

 private:
  [[nodiscard]] const std::vector<Step>& steps(std::size_t thread) const { return threads_[thread].steps(); }
  [[nodiscard]] static bool is_done(const State& state, std::size_t thread, std::size_t step) noexcept {
    return (state.done[thread] >> step & 1) != 0;
  }

  [[nodiscard]] bool may_do(const State& state, std::size_t thread, std::size_t step) const {
    for (std::size_t before = 0; before < step; ++before)
      if (!is_done(state, thread, before) && is_ordered(steps(thread)[before], steps(thread)[step])) return false;
    if (steps(thread)[step].kind != Step::Kind::kHeavy) return true;
    for (std::size_t other = 0; other < threads_.size(); ++other)
      if (other != thread && is_across_light(state, other)) return false;
    return true;
  }

  /// Whether a thread is on both sides of one of its light fences: it has done something behind it, and not all before.
  [[nodiscard]] bool is_across_light(const State& state, std::size_t thread) const {
    const std::vector<Step>& all = steps(thread);
    for (std::size_t at = 0; at < all.size(); ++at) {
      if (all[at].kind != Step::Kind::kLight) continue;
      bool is_before = false, is_behind = false;
      for (std::size_t step = 0; step < all.size(); ++step) {
        if (!all[step].is_access()) continue;
        if (step < at) is_before = is_before || !is_done(state, thread, step);
        if (step > at) is_behind = is_behind || is_done(state, thread, step);
      }
      if (is_before && is_behind) return true;
    }
    return false;
  }

  [[nodiscard]] State after(State state, std::size_t thread, std::size_t at) const {
    const Step& step = steps(thread)[at];
    Registers& registers = state.registers[thread];
    if (step.is_load()) registers[step.what] = state.memory[step.place];
    if (step.is_store() && (!step.condition.holds || step.condition.holds(registers)))
      state.memory[step.place] = step.what;
    state.done[thread] = static_cast<std::uint16_t>(state.done[thread] | 1U << at);
    return state;
  }

  std::vector<Program> threads_;
  State start_;
  std::unordered_set<std::string> seen_;
};

}  // namespace verbena::weak
