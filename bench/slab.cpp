// The slab pool beside malloc and mimalloc, interleaved, in rounds: medians, and ratios (below 1: ours is faster).
// usage: slab [ROUNDS [OPERATIONS]]        11 rounds of 200000 operations by default
// An operation is one allocation, a write to the block, and one free, by one thread, at random among 256 live blocks.
// mimalloc is taken at run time (package libmimalloc-dev): linked in, its library would replace malloc too.
#include "host/arena.hpp"
#include "host/slab_pool.hpp"
#include "programs/environment.hpp"

#include <fmt/core.h>

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

using verbena::host::SlabPool;

constexpr std::size_t kPoolBytes = std::size_t{64} << 20;
constexpr std::size_t kLive = 256;

struct Malloc {
  [[nodiscard]] void* allocate(std::size_t bytes) const noexcept { return std::malloc(bytes); }
  void free(void* block) const noexcept { std::free(block); }
};

struct Mimalloc {
  void* (*take)(std::size_t) = nullptr;
  void (*give)(void*) = nullptr;
  [[nodiscard]] bool open() noexcept {
    void* library = dlopen("libmimalloc.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) library = dlopen("libmimalloc.so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    take = reinterpret_cast<void* (*)(std::size_t)>(dlsym(library, "mi_malloc"));
    give = reinterpret_cast<void (*)(void*)>(dlsym(library, "mi_free"));
    return take != nullptr && give != nullptr;
  }
  [[nodiscard]] void* allocate(std::size_t bytes) const noexcept { return take(bytes); }
  void free(void* block) const noexcept { give(block); }
};

struct Ours {
  SlabPool& pool;
  [[nodiscard]] void* allocate(std::size_t bytes) const noexcept { return pool.at(pool.allocate(bytes)); }
  void free(void* block) const noexcept { (void)pool.free(pool.offset_of(block)); }
};

/// xorshift64 (Marsaglia 2003).
struct Random {
  std::uint64_t state = 88172645463325252U;
  std::uint64_t operator()() noexcept {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  }
};

/// `bytes`, or 1 to 4096 for 0.
std::size_t size_for(std::size_t bytes, Random& random) noexcept { return bytes != 0 ? bytes : 1 + random() % 4096; }

double nanoseconds_since(std::chrono::steady_clock::time_point begin, std::uint64_t operations) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(operations);
}

template <class Allocator>
double measure(const Allocator& of, std::size_t bytes, std::uint64_t operations) {
  Random random;
  std::array<void*, kLive> live;
  for (auto& block : live) block = of.allocate(size_for(bytes, random));
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < operations; ++i) {
    void*& block = live[random() % kLive];
    of.free(block);
    block = of.allocate(size_for(bytes, random));
    *static_cast<volatile std::uint64_t*>(block) = i;
  }
  const double spent = nanoseconds_since(begin, operations);
  for (void* block : live) of.free(block);
  return spent;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// "0.45", or "-" without a peer.
std::string ratio(const std::vector<double>& ours, const std::vector<double>& theirs) {
  if (theirs.empty()) return "-";
  // Of the two in one round: what disturbs a round disturbs both.
  std::vector<double> each(ours.size());
  std::transform(ours.begin(), ours.end(), theirs.begin(), each.begin(), std::divides<>());
  return fmt::format("{:.2f}", median(each));
}

std::string nanoseconds(const std::vector<double>& values) {
  return values.empty() ? "-" : fmt::format("{:.1f}", median(values));
}

struct Row {
  std::vector<double> slab, libc, mi;
};

template <class T>
T or_die(verbena::Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "slab: {}\n", result.error().text());
  std::exit(EXIT_FAILURE);
}

void compare(int rounds, std::uint64_t operations) {
  const auto arena = or_die(verbena::host::Arena::create({.size_bytes = kPoolBytes}));
  SlabPool slab = or_die(SlabPool::create(arena.bytes()));
  Mimalloc mimalloc;
  const bool has_mimalloc = mimalloc.open();
  if (!has_mimalloc) fmt::print("# mimalloc is missing: apt-get install libmimalloc-dev\n");
  fmt::print("# {} rounds of {} operations; lower is better in each column; {} pages; {}\n", rounds, operations,
             to_string(arena.page_report().pages),
             verbena::programs::environment_text(verbena::programs::read_environment()));
  fmt::print("{:>6} {:>8} {:>8} {:>8} {:>11} {:>13}\n", "bytes", "slab ns", "malloc", "mimalloc", "slab/malloc",
             "slab/mimalloc");
  for (const std::size_t bytes : {64U, 256U, 1024U, 4096U, 0U}) {
    Row row;
    for (int round = 0; round < rounds; ++round) {
      row.slab.push_back(measure(Ours{slab}, bytes, operations));
      row.libc.push_back(measure(Malloc{}, bytes, operations));
      if (has_mimalloc) row.mi.push_back(measure(mimalloc, bytes, operations));
    }
    fmt::print("{:>6} {:>8} {:>8} {:>8} {:>11} {:>13}\n", bytes == 0 ? "mixed" : std::to_string(bytes),
               nanoseconds(row.slab), nanoseconds(row.libc), nanoseconds(row.mi), ratio(row.slab, row.libc),
               ratio(row.slab, row.mi));
    std::fflush(stdout);
  }
}

template <class Number>
bool parse(const char* text, Number& number) {
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), number);
  return error == std::errc{} && *end == '\0' && number > 0;
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 11;
  std::uint64_t operations = 200'000;
  if (argc > 3 || (argc > 1 && !parse(argv[1], rounds)) || (argc > 2 && !parse(argv[2], operations))) {
    fmt::print(stderr, "usage: slab [ROUNDS [OPERATIONS]]\n");
    return 2;
  }
  compare(rounds, operations);
}
