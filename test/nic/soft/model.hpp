// A small model checker for up to three threads over memory with store buffers (total store order, as x86 has it).
//
// The code under test runs unchanged on fibers; each atomic access gives up control, stores wait in a buffer of their
// thread until the scheduler lets the oldest out, and a depth-first search walks every order of steps and flushes,
// re-running from the start for each. States seen before (memory, buffers, what each thread has read) are not walked
// again, which keeps small scenarios exhaustive within a second.
#pragma once

#include <ucontext.h>

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace verbena::nic::soft::model {

class Model;
inline Model* current = nullptr;

class Model {
 public:
  static constexpr std::size_t kThreads = 3;

  /// Walks all interleavings of the programs that `setup` makes anew for each run. Returns the first violation's
  /// text, or an empty string; `runs` counts executions.
  struct Scenario {
    std::function<void()> reset;                      ///< Fresh shared memory.
    std::array<std::function<void()>, kThreads> run;  ///< The threads; none is empty but the last ones.
    std::function<std::string()> finished;            ///< Checked when all have ended.
    /// Memory that they share, part of the state.
    std::vector<std::pair<const void*, std::size_t>> memory;
  };
  std::string walk(Scenario& scenario) {
    std::vector<int> path;
    seen_.clear();
    runs = 0;
    for (;;) {
      std::string violation = execute(scenario, path);
      ++runs;
      if (!violation.empty()) return violation;
      // The next path: the last choice that has another alternative.
      while (!path.empty() && path.back() + 1 >= alternatives_[path.size() - 1]) path.pop_back();
      if (path.empty()) return {};
      ++path.back();
      if (runs > kMaxRuns) return "the scenario is too large to walk: " + std::to_string(runs) + " runs";
    }
  }
  std::uint64_t runs = 0;

  // --- called by the code under test, inside a fiber ---------------------------------------------------------------
  void store(void* at, const void* from, std::size_t bytes) {
    Entry entry;
    entry.at = static_cast<std::byte*>(at);
    entry.count = bytes;
    std::memcpy(entry.bytes.data(), from, bytes);
    threads_[running_].buffer.push_back(entry);
  }
  void load(void* to, const void* at, std::size_t bytes) {
    std::memcpy(to, at, bytes);
    const auto* begin = static_cast<const std::byte*>(at);
    for (const Entry& entry : threads_[running_].buffer) {  // Own stores are seen at once, oldest first.
      for (std::size_t i = 0; i < entry.count; ++i) {
        const std::byte* byte = entry.at + i;
        if (byte >= begin && byte < begin + bytes) static_cast<std::byte*>(to)[byte - begin] = entry.bytes[i];
      }
    }
  }
  /// A scheduling point; `read` becomes part of what the thread knows.
  void step() {
    learn(kStepMark);  // Where the thread is in its program is part of the state.
    swapcontext(&threads_[running_].context, &scheduler_);
  }
  void learn(std::uint64_t value) { mix(threads_[running_].history, value); }
  /// Nothing to do until memory changes: the thread is not run before.
  void wait_for_change() {
    threads_[running_].waiting = true;
    step();
  }
  /// membarrier: every thread's buffer drains.
  void barrier_all() {
    for (Thread& thread : threads_) {
      while (!thread.buffer.empty()) flush_one(thread);
    }
  }
  /// An event outside memory: who waits looks again.
  void signal() {
    for (Thread& thread : threads_) thread.waiting = false;
  }
  void fail(std::string text) {
    if (violation_.empty()) violation_ = std::move(text);
  }

 private:
  static constexpr std::uint64_t kMaxRuns = 4'000'000;
  static constexpr std::uint64_t kStepMark = 0x57EB;
  static constexpr std::size_t kStackBytes = 64 * 1024;

  struct Entry {
    std::byte* at = nullptr;
    std::size_t count = 0;
    std::array<std::byte, 16> bytes{};  // No access of the ring's is wider.
  };
  struct Thread {
    ucontext_t context{};
    std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
    std::deque<Entry> buffer;
    std::function<void()>* program = nullptr;
    std::uint64_t history = 0;
    bool ended = false;
    bool waiting = false;
  };

  static void mix(std::uint64_t& hash, std::uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  void flush_one(Thread& thread) {
    const Entry& entry = thread.buffer.front();
    std::memcpy(entry.at, entry.bytes.data(), entry.count);
    thread.buffer.pop_front();
    signal();
  }
  static void enter() {
    Thread& self = current->threads_[current->running_];
    (*self.program)();
    self.ended = true;
    current->step();
  }
  void start(Thread& thread, std::function<void()>& program) {
    thread.buffer.clear();
    thread.program = &program;
    thread.history = 0;
    thread.ended = !program;
    thread.waiting = false;
    if (thread.ended) return;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, &Model::enter, 0);
  }
  std::uint64_t state(const Scenario& scenario) const {
    std::uint64_t hash = 1;
    for (const auto& [at, bytes] : scenario.memory) mix(hash, XXH3_64bits(at, bytes));
    for (const Thread& thread : threads_) {
      mix(hash, thread.history);
      mix(hash, thread.ended ? 2U : thread.waiting ? 1U : 0U);
      for (const Entry& entry : thread.buffer) {
        mix(hash, reinterpret_cast<std::uintptr_t>(entry.at));
        mix(hash, XXH3_64bits(entry.bytes.data(), entry.count));
      }
    }
    return hash;
  }

  /// Follows `path` as far as it goes, then extends it with first choices to the end.
  std::string execute(Scenario& scenario, std::vector<int>& path) {
    current = this;
    violation_.clear();
    scenario.reset();
    for (std::size_t i = 0; i < kThreads; ++i) start(threads_[i], scenario.run[i]);
    alternatives_.resize(path.size());
    for (std::size_t depth = 0;; ++depth) {
      // Choices: the first kThreads run a thread, the others let one store of a thread out.
      std::array<std::size_t, 2 * kThreads> choices{};
      int count = 0;
      for (std::size_t i = 0; i < kThreads; ++i) {
        if (!threads_[i].ended && !threads_[i].waiting) choices[static_cast<std::size_t>(count++)] = i;
      }
      for (std::size_t i = 0; i < kThreads; ++i) {
        if (!threads_[i].buffer.empty()) choices[static_cast<std::size_t>(count++)] = kThreads + i;
      }
      if (count == 0) {
        if (std::ranges::all_of(threads_, &Thread::ended)) return scenario.finished();
        return "stuck: a thread waits for something that never comes";
      }
      std::size_t chosen = 0;
      if (depth < path.size()) {
        alternatives_[depth] = count;
        chosen = choices[static_cast<std::size_t>(path[depth])];
      } else {
        if (!seen_.insert(state(scenario)).second) return {};  // Walked before from here.
        path.push_back(0);
        alternatives_.push_back(count);
        chosen = choices[0];
      }
      if (chosen >= kThreads) {
        flush_one(threads_[chosen - kThreads]);
      } else {
        running_ = chosen;
        swapcontext(&scheduler_, &threads_[chosen].context);
      }
      if (!violation_.empty()) return violation_;
    }
  }

  std::array<Thread, kThreads> threads_;
  ucontext_t scheduler_{};
  std::size_t running_ = 0;
  std::vector<int> alternatives_;
  std::unordered_set<std::uint64_t> seen_;
  std::string violation_;
};

/// The memory policy that the ring is instantiated with.
struct ModelMemory {
  template <class T>
  class Atomic {
   public:
    [[nodiscard]] T load(std::memory_order) const {
      current->step();
      T value;
      current->load(&value, &value_, sizeof value);
      current->learn(static_cast<std::uint64_t>(value));
      return value;
    }
    void store(T value, std::memory_order) {
      current->step();
      current->store(&value_, &value, sizeof value);
    }

   private:
    T value_{};
  };
  static void prefetch_for_write(const void*) noexcept {}  // Says nothing about values.
  static void copy(void* to, const void* from, std::size_t bytes) {
    // Private memory of either side passes through the same path: a store that nobody else looks at, or a load.
    std::array<std::byte, 64> words{};
    current->load(words.data(), from, bytes);
    if (is_shared(to)) {
      current->store(to, words.data(), bytes);
    } else {
      std::memcpy(to, words.data(), bytes);
    }
  }
  static std::uint64_t load_word(const std::byte* at) {
    std::uint64_t value = 0;
    copy(&value, at, sizeof value);
    return value;
  }
  static inline std::byte* shared_begin = nullptr;
  static inline std::byte* shared_end = nullptr;
  static bool is_shared(const void* at) {
    const auto* byte = static_cast<const std::byte*>(at);
    return byte >= shared_begin && byte < shared_end;
  }
};

}  // namespace verbena::nic::soft::model
