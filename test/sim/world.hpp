// The simulated world: a clock that moves only when something happens, a seeded source of all chance, and a queue of
// events in one total order. Nothing here looks at real time, at threads or at addresses, so a seed repeats its run.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::sim {

using Nanoseconds = std::uint64_t;

/// Chance. The numbers are the same on every platform, which those of <random>'s distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}
  [[nodiscard]] std::uint64_t next() noexcept;
  /// 0 to `count` - 1.
  [[nodiscard]] std::uint64_t below(std::uint64_t count) noexcept { return next() % count; }
  /// `least` to `most`, both of them included.
  [[nodiscard]] std::uint64_t between(std::uint64_t least, std::uint64_t most) noexcept {
    return least + below(most - least + 1);
  }
  [[nodiscard]] bool one_in(std::uint64_t count) noexcept { return below(count) == 0; }

 private:
  std::uint64_t state_;
};

class World {
 public:
  /// Time is never 0: to a deadline that would be a time which has passed from the start.
  static constexpr Nanoseconds kBeginning = 1'000'000'000;
  /// Where the story goes, in plain words; null: nobody wants to hear it, and nothing is formatted.
  World(std::uint64_t seed, std::FILE* story) noexcept : random_(seed), story_(story) {}

  [[nodiscard]] Nanoseconds now() const noexcept { return now_; }
  [[nodiscard]] Random& random() noexcept { return random_; }

  /// Makes `event` happen in `delay`. `what` names its kind in the hash. Of two events of one moment the one that was
  /// asked for first happens first.
  void after(Nanoseconds delay, std::string_view what, std::function<void()> event);
  /// The next event happens now. False: none is left.
  bool step();
  /// What a poll takes: the next event happens if it is due within `most`; else time passes by `most`.
  void turn(Nanoseconds most);
  /// Time passes, and nothing is due in it.
  void skip(Nanoseconds time) noexcept { now_ += time; }
  /// Everything that is due within `time` happens, and time passes.
  void run_for(Nanoseconds time);
  /// When the next event is due; `otherwise` where none is left.
  [[nodiscard]] Nanoseconds next_due(Nanoseconds otherwise) const noexcept {
    return queue_.empty() ? otherwise : queue_.front().due;
  }

  /// Facts that belong to the run's identity besides its events: numbers only, and never an address.
  void note(std::initializer_list<std::uint64_t> facts) noexcept;
  /// Of everything that has happened: equal for equal runs.
  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }
  [[nodiscard]] std::uint64_t events() const noexcept { return events_; }

  template <class... Facts>
  void tell(fmt::format_string<Facts...> text, Facts&&... facts) {
    if (story_ == nullptr) return;
    print(fmt::format(text, std::forward<Facts>(facts)...));
  }

 private:
  struct Event {
    std::uint64_t kind = 0;
    std::function<void()> happens;
  };
  /// When an event is due, and its place in `events_due_`: a heap moves these, and events stay where they are.
  struct Due {
    Nanoseconds due = 0;
    std::uint64_t order = 0;
    std::size_t place = 0;
  };
  /// For a heap with the earliest event in front.
  struct Later {
    [[nodiscard]] bool operator()(const Due& one, const Due& other) const noexcept {
      return one.due != other.due ? one.due > other.due : one.order > other.order;
    }
  };
  void print(const std::string& text) const;
  void mix(std::uint64_t fact) noexcept;

  Random random_;
  std::FILE* story_;
  Nanoseconds now_ = kBeginning;
  std::uint64_t asked_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t hash_ = 0x9E3779B97F4A7C15;
  std::vector<Due> queue_;
  std::vector<Event> events_due_;
  std::vector<std::size_t> free_;  ///< Places of `events_due_` that have no event.
};

}  // namespace verbena::sim
