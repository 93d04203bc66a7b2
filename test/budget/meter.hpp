// Brackets what one side of an operation does, and counts it: its instructions, by callgrind, or the cache lines of
// shared memory that it touches, by faults.
#pragma once

#include "lines.hpp"

#include <valgrind/callgrind.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>

namespace verbena::budget {

enum class Side : std::uint8_t { kNone, kClient, kServer };

/// \thread the one that drives both sides
class Meter {
 public:
  enum class Counts : std::uint8_t { kInstructions, kLines };
  Meter(Counts counts, std::uint64_t operations) noexcept : operations_(operations), counts_(counts) {}

  /// Runs the operation: the client begins it; then the server takes a turn and the client finishes, which is true once
  /// the operation has ended, until it has. Counts the client in one series and the server in another, so that a count
  /// is of one side alone.
  template <class Begin, class Turn, class Finish>
  [[nodiscard]] bool rounds(Begin&& begin, Turn&& turn, Finish&& finish) {
    for (std::uint64_t i = 0; i < kWarmUp; ++i)
      if (!round(begin, turn, finish)) return false;
    for (const Side side : {Side::kClient, Side::kServer}) {
      open(side);
      for (std::uint64_t i = 0; i < operations_; ++i) {
        if (!round(begin, turn, finish)) return false;
        end_operation();
      }
      close();
    }
    return true;
  }
  /// Runs an operation that the server has no part in.
  template <class Call>
  [[nodiscard]] bool alone(Call&& call) {
    return series([&call](std::uint64_t count) {
      for (std::uint64_t i = 0; i < count; ++i)
        if (!call()) return false;
      return true;
    });
  }
  /// Runs `many(count)`, which carries out so many operations that the server has no part in. Lines are counted one
  /// operation at a time.
  template <class Many>
  [[nodiscard]] bool series(Many&& many) {
    if (!many(kWarmUp)) return false;
    open(Side::kClient);
    const std::uint64_t each = counts_ == Counts::kInstructions ? operations_ : 1;
    for (std::uint64_t done = 0; done < operations_; done += each) {
      if (!of(Side::kClient, [&] { return many(each); })) return false;
      end_operation();
    }
    close();
    return true;
  }

 private:
  // Enough for every ring and queue to have wrapped around.
  static constexpr std::uint64_t kWarmUp = 1024;
  // A poll may find nothing but the end of something earlier.
  static constexpr int kMostTurns = 8;

  template <class Begin, class Turn, class Finish>
  [[nodiscard]] bool round(Begin& begin, Turn& turn, Finish& finish) {
    if (!of(Side::kClient, begin)) return false;
    for (int turns = 0; turns < kMostTurns; ++turns) {
      (void)of(Side::kServer, [&turn] { return turn(), true; });
      if (of(Side::kClient, finish)) return true;
    }
    return false;
  }
  template <class Part>
  [[nodiscard]] bool of(Side side, Part&& part) {
    if (side != side_) return part();
    ++brackets_;
    if (counts_ == Counts::kLines) {
      lines::begin();
      const bool is_well = part();
      lines::end();
      return is_well;
    }
    CALLGRIND_TOGGLE_COLLECT;
    const bool is_well = part();
    CALLGRIND_TOGGLE_COLLECT;
    return is_well;
  }
  void open(Side side) {
    side_ = side;
    brackets_ = 0;
    if (counts_ == Counts::kLines) lines::open();
  }
  void end_operation() noexcept {
    if (counts_ == Counts::kLines) lines::end_operation();
  }
  /// Tells the counts of the series. callgrind writes its own into a file, and begins again at 0.
  void close() {
    const char* const side = side_ == Side::kClient ? "client" : "server";
    side_ = Side::kNone;
    std::printf("%s operations %llu brackets %llu", side, static_cast<unsigned long long>(operations_),
                static_cast<unsigned long long>(brackets_));
    if (counts_ == Counts::kLines) {
      const lines::Touched touched = lines::close();
      std::printf(" read %llu written %llu", static_cast<unsigned long long>(touched.read),
                  static_cast<unsigned long long>(touched.written));
    } else {
      CALLGRIND_DUMP_STATS_AT(side);
    }
    std::printf("\n");
  }

  const std::uint64_t operations_;
  std::uint64_t brackets_ = 0;
  const Counts counts_;
  Side side_ = Side::kNone;
};

}  // namespace verbena::budget
