#include "bare.hpp"

#include <array>
#include <atomic>

namespace verbena::slices {

namespace {

struct alignas(64) Line {
  std::atomic<std::uint64_t> word{0};
};
constexpr std::size_t kLines = 60;
/// A page for each direction, so that no prefetcher fetches one with the other.
struct alignas(4096) Direction {
  std::array<Line, kLines> lines;
};
std::array<Direction, 2> directions;

/// How long a poller waits between two looks.
enum class Pause : std::uint8_t { kNone, kNops, kOne, kFour, kRandom };

void nops() noexcept {
#if defined(__x86_64__)
  for (int i = 0; i < 24; ++i) asm volatile("nop\n\tnop\n\tnop\n\tnop");
#endif
}
void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

template <Pause kPause>
void wait(std::uint32_t& random) noexcept {
  if constexpr (kPause == Pause::kNops) nops();
  if constexpr (kPause == Pause::kOne) pause();
  if constexpr (kPause == Pause::kFour)
    for (int i = 0; i < 4; ++i) pause();
  if constexpr (kPause == Pause::kRandom) {
    random = random * 1664525 + 1013904223;
    for (std::uint32_t n = random >> 29; n != 0; --n)
      asm volatile("nop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop");
  }
}

/// There and back: `kUsed` lines in turn for each direction, or one for both.
template <std::size_t kUsed, bool kIsShared, Pause kPause, bool kBegins>
bool exchange(std::uint64_t count) noexcept {
  static std::uint64_t done = 0;
  auto& out = directions[kBegins || kIsShared ? 0 : 1].lines;
  auto& in = directions[kBegins && !kIsShared ? 1 : 0].lines;
  std::uint32_t random = 1;
  for (std::uint64_t end = done + count; done != end; ++done) {
    // A line that both write holds odd numbers on the way there and even ones on the way back.
    const std::uint64_t there = kIsShared ? 2 * done + 1 : done + 1;
    const std::uint64_t back = kIsShared ? 2 * done + 2 : done + 1;
    const std::uint64_t awaited = kBegins ? back : there;
    auto& to = out[done % kUsed].word;
    auto& from = in[done % kUsed].word;
    if (kBegins) to.store(there, std::memory_order_release);
    while (from.load(std::memory_order_acquire) != awaited) wait<kPause>(random);
    if (!kBegins) to.store(back, std::memory_order_release);
  }
  return true;
}

template <std::size_t kUsed, bool kIsShared, Pause kPause>
constexpr Operation operation(const char* name) noexcept {
  return {.name = name,
          .client = exchange<kUsed, kIsShared, kPause, true>,
          .server = exchange<kUsed, kIsShared, kPause, false>};
}

constexpr std::array kBare = {
    operation<1, true, Pause::kNone>("one line, looks at once"),
    operation<1, true, Pause::kOne>("one line, looks after a pause"),
    operation<1, true, Pause::kFour>("one line, looks after four pauses"),
    operation<1, false, Pause::kNone>("two lines, looks at once"),
    operation<1, false, Pause::kNops>("two lines, looks after 96 nops"),
    operation<1, false, Pause::kOne>("two lines, looks after a pause"),
    operation<1, false, Pause::kFour>("two lines, looks after four pauses"),
    operation<1, false, Pause::kRandom>("two lines, looks at random"),
    operation<kLines, false, Pause::kNone>("ring of 60 lines, looks at once"),
    operation<kLines, false, Pause::kOne>("ring of 60 lines, looks after a pause"),
    operation<kLines, false, Pause::kRandom>("ring of 60 lines, looks at random"),
};

}  // namespace

const Operation& probe() noexcept { return kBare[8]; }
std::span<const Operation> bare_operations() noexcept { return kBare; }

}  // namespace verbena::slices
