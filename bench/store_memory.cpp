// How much of a store's memory holds keys and values: at one size, and at mixes of sizes after a million replacements.
// usage: store_memory [MIB [REPLACEMENTS]]        64 MiB and 1000000 by default
//
// The mixes are Facebook's pools USR and ETC, by the figures of Atikoglu, Xu, Frachtenberg, Jiang and Paleczny,
// "Workload analysis of a large-scale key-value store", SIGMETRICS 2012. USR: keys of 16 or 21 bytes, values of 2. ETC:
// keys by a generalized extreme value distribution, values of up to 14 bytes by a table, longer ones by a generalized
// Pareto distribution. Both are sampled by inversion; the random numbers are the same in every run.
#include "host/arena.hpp"
#include "kv/store.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using verbena::Status;
using verbena::kv::Key;
using verbena::kv::Store;

constexpr std::size_t kMib = std::size_t{1} << 20;

template <class T>
T or_die(verbena::Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "store_memory: {}\n", result.error().text());
  std::exit(EXIT_FAILURE);
}

/// xorshift64 (Marsaglia 2003).
struct Random {
  std::uint64_t state = 88172645463325252U;
  std::uint64_t operator()() noexcept {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  }
  /// Above 0 and below 1.
  double uniform() noexcept { return (static_cast<double>((*this)() >> 12) + 0.5) / static_cast<double>(1ULL << 52); }
};

struct Size {
  std::size_t key = 0;
  std::size_t value = 0;
};

Size usr(Random& random) { return {random() % 2 == 0 ? 16U : 21U, 2}; }

Size etc(Random& random) {
  // Location, scale and shape.
  constexpr double kKeyLocation = 30.7984, kKeyScale = 8.20449, kKeyShape = 0.078688;
  constexpr double kValueScale = 214.476, kValueShape = 0.348238;
  constexpr std::array kShort{0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606,
                              0.00023, 0.00837, 0.00837, 0.08989, 0.00092, 0.00326, 0.01980};
  const double key = kKeyLocation + kKeyScale * (std::pow(-std::log(random.uniform()), -kKeyShape) - 1) / kKeyShape;
  // Memcached's keys end at 250 bytes, and its values at 1 MiB. 12 bytes are what tells ours apart.
  Size size{.key = static_cast<std::size_t>(std::clamp(key, 12.0, 250.0))};
  double left = random.uniform();
  for (std::size_t bytes = 0; bytes < kShort.size(); ++bytes) {
    if (left < kShort[bytes]) return {size.key, bytes};
    left -= kShort[bytes];
  }
  const double value = 15 + kValueScale * (std::pow(random.uniform(), -kValueShape) - 1) / kValueShape;
  size.value = static_cast<std::size_t>(std::min(value, static_cast<double>(kMib)));
  return size;
}

/// A store that is filled and counted.
class Filled {
 public:
  Filled(std::size_t bytes, std::size_t longest) : bytes_(bytes), value_(longest, std::byte{'v'}) {
    const std::size_t items = bytes / 64 + 1;  // Never the limit.
    const std::size_t window = Store::window_bytes(bytes, items);
    arena_ = or_die(verbena::host::Arena::create({.size_bytes = window, .name = "store-memory"}));
    store_ = or_die(Store::create({.window = arena_.bytes().first(window),
                                   .max_items = items,
                                   .max_value_bytes = longest,
                                   .grace_ticks = 1,
                                   .hash_seed = 1,
                                   .versions = &versions_}));
  }

  /// A new item of that size. False: there is no memory.
  bool add(Size size) {
    const Live live{.number = next_, .size = size};
    const Status status = store_->put(key(live), std::span(value_).first(size.value), 0).status;
    if (status == Status::kStoreFull) return false;
    if (status != Status::kOk) {
      fmt::print(stderr, "store_memory: a put failed: {}\n", to_string(status));
      std::exit(EXIT_FAILURE);
    }
    ++next_;
    live_.push_back(live);
    count(live, 1);
    return true;
  }
  void drop_any(Random& random) {
    std::swap(live_[random() % live_.size()], live_.back());
    const Live live = live_.back();
    live_.pop_back();
    if (store_->erase(key(live)).status != Status::kOk) std::abort();
    count(live, ~std::size_t{0});
  }

  [[nodiscard]] std::size_t items() const { return live_.size(); }
  [[nodiscard]] double of_all(std::size_t bytes) const {
    return 100 * static_cast<double>(bytes) / static_cast<double>(bytes_);
  }
  /// Percent of the memory: keys and values; those and the headers of items; blocks of items.
  [[nodiscard]] double payload() const { return of_all(payload_); }
  [[nodiscard]] double with_headers() const { return of_all(payload_ + items() * sizeof(verbena::kv::ItemHeader)); }
  [[nodiscard]] double blocks() const { return of_all(store_->statistics().used_bytes); }

 private:
  struct Live {
    std::uint64_t number;
    Size size;
  };

  Key key(const Live& live) {
    key_.fill('k');
    std::to_chars(key_.data(), key_.data() + 12, live.number);
    return std::as_bytes(std::span(key_).first(live.size.key));
  }
  void count(const Live& live, std::size_t sign) { payload_ += sign * (live.size.key + live.size.value); }

  std::size_t bytes_;
  std::vector<std::byte> value_;
  std::atomic<std::uint64_t> versions_{1};
  verbena::host::Arena arena_;
  std::unique_ptr<Store> store_;
  std::vector<Live> live_;
  std::array<char, 256> key_{};
  std::uint64_t next_ = 0;
  std::size_t payload_ = 0;
};

void print_row(const std::string& what, const Filled& store, double worst) {
  fmt::print("{:>22} {:>9} {:>12.1f} {:>12.1f} {:>8.1f} {:>8.1f}\n", what, store.items(), store.payload(),
             store.with_headers(), store.blocks(), worst);
  std::fflush(stdout);
}

void one_size(std::size_t bytes, std::size_t value) {
  Filled store(bytes, value);
  while (store.add({.key = 16, .value = value})) {}
  print_row(fmt::format("{} B", value), store, store.blocks());
}

/// Fills the store, and then each new item takes the place of as many others, by chance, as it needs. `draw` has the
/// share of the replacements that are done. The last column is the least of a hundred readings, each of a full store.
template <class Draw>
void mix(const char* name, std::size_t bytes, std::uint64_t replacements, Draw&& draw) {
  Filled store(bytes, kMib);
  Random random;
  while (store.add(draw(random, 0.0))) {}
  double worst = 100;
  for (std::uint64_t done = 0; done < replacements; ++done) {
    const Size size = draw(random, static_cast<double>(done) / static_cast<double>(replacements));
    store.drop_any(random);
    while (!store.add(size)) store.drop_any(random);
    // Until one is refused it is not full.
    if (done % std::max<std::uint64_t>(replacements / 100, 1) == 0) {
      while (store.add(draw(random, static_cast<double>(done) / static_cast<double>(replacements)))) {}
      worst = std::min(worst, store.blocks());
    }
  }
  while (store.add(draw(random, 1.0))) {}
  print_row(name, store, worst);
}

template <class Number>
bool parse(const char* text, Number& number) {
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), number);
  return error == std::errc{} && *end == '\0' && number > 0;
}

void measure(std::size_t bytes, std::uint64_t replacements) {
  fmt::print("# {} MiB, keys of 16 B; percent of the memory\n", bytes / kMib);
  fmt::print("{:>22} {:>9} {:>12} {:>12} {:>8} {:>8}\n", "values", "items", "keys, values", "and headers", "blocks",
             "worst");
  fmt::print("{:>22} {:>9} {:>12} {:>12} {:>8} {:>8}\n", "better:", "higher", "higher", "higher", "higher", "higher");
  for (const std::size_t value :
       {64U, 100U, 200U, 300U, 500U, 1000U, 2000U, 4000U, 4096U, 5000U, 10'000U, 20'000U, 50'000U, 70'000U, 200'000U})
    one_size(bytes, value);
  for (const std::size_t part : {64U, 32U, 16U, 8U, 5U, 4U}) one_size(bytes, bytes / part - 4096);
  fmt::print("# mixes, after {} replacements\n", replacements);
  mix("USR", bytes, replacements, [](Random& random, double) { return usr(random); });
  mix("ETC", bytes, replacements, [](Random& random, double) { return etc(random); });
  mix("USR to ETC", bytes, replacements,
      [](Random& random, double done) { return random.uniform() < done ? etc(random) : usr(random); });
  mix("ETC to USR", bytes, replacements,
      [](Random& random, double done) { return random.uniform() < done ? usr(random) : etc(random); });
  mix("ETC, USR, ETC at once", bytes, replacements,
      [](Random& random, double done) { return done > 0.33 && done < 0.67 ? usr(random) : etc(random); });
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t mib = 64;
  std::uint64_t replacements = 1'000'000;
  if (argc > 3 || (argc > 1 && !parse(argv[1], mib)) || (argc > 2 && !parse(argv[2], replacements))) {
    fmt::print(stderr, "usage: store_memory [MIB [REPLACEMENTS]]\n");
    return 2;
  }
  measure(mib * kMib, replacements);
  return 0;
}
