// bench: rounds of random puts and gets between measurements of the bare cache-line ping-pong.
#include "base/text.hpp"
#include "programs/bench_keys.hpp"
#include "programs/bench_result.hpp"
#include "programs/files.hpp"
#include "programs/interrupt.hpp"
#include "programs/pipeline.hpp"
#include "programs/progress.hpp"
#include "programs/sweep.hpp"

#include "base/ticks.hpp"
#include "host/placement.hpp"

#include <fmt/core.h>

#include <sched.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace verbena::programs {
namespace {

constexpr std::size_t kMemcpyFrom = std::size_t{64} << 10;  // Below this, a copy is not what takes the time.
constexpr std::chrono::milliseconds kYardstickSpan{30};
constexpr std::chrono::milliseconds kDrawEvery{100};
/// Size of an entry in the server's index.
constexpr double kEntryBytes = 8;

/// How many keys `digits` hexadecimal digits can distinguish.
std::size_t distinct_keys(std::size_t digits) noexcept {
  return digits >= BenchKeys::kDigits ? std::numeric_limits<std::size_t>::max() : std::size_t{1} << (4 * digits);
}

std::size_t default_keys(const BenchArguments& arguments) noexcept {
  constexpr std::size_t kUsual = 10'000, kFewest = 16, kMostBytes = std::size_t{64} << 20;
  const std::size_t by_memory = kMostBytes / std::max<std::size_t>(arguments.value_bytes, 1);
  return std::min(std::clamp(by_memory, kFewest, kUsual), distinct_keys(arguments.key_bytes));
}

/// Pins the calling thread to one cpu while this object lives.
class Pinned {
 public:
  explicit Pinned(unsigned cpu) noexcept {
    saved_ = ::sched_getaffinity(0, sizeof before_, &before_) == 0 && host::pin_this_thread(cpu).has_value();
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() {
    if (saved_) ::sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_{};
  bool saved_ = false;
};

class Bench {
 public:
  using Slot = Pipeline::Slot;

  Bench(kv::Client& client, const ConnectArguments& where, const BenchArguments& arguments)
      : client_(client),
        pipeline_(client, std::max(arguments.depth, arguments.batch), std::max<std::size_t>(arguments.value_bytes, 1),
                  where.options.timeout + kExtraPatience),
        keys_(arguments.key_bytes) {
    result_.arguments = arguments;
    result_.wait = where.options.wait;
    result_.endpoint = endpoint(where.options.address, where.options.port);
    result_.server = client.description();
    result_.environment = read_environment();
    choose_cpus();
    const std::size_t most = std::max(arguments.batch, arguments.clock_every);
    for (std::size_t i = 0; i < most; ++i) names_.append(keys_.blank());
    make_value();
    if (arguments.batch > 1) make_batch();
  }

  /// False: the keys could not be stored, or the connection broke. Whatever happens, the keys are erased in the end.
  bool run() {
    const bool is_filled = result_.arguments.no_fill || fill();
    if (is_filled) measure();
    bar_.clear();
    result_.lookups = client_.lookups();
    if (!result_.arguments.no_erase) empty();
    return is_filled && !pipeline_.broken();
  }

  [[nodiscard]] const BenchResult& result() const noexcept { return result_; }

 private:
  /// Writes key `index` into the memory of slot `slot`, which is below batch or clock_every.
  [[nodiscard]] kv::Key key(std::size_t index, std::size_t slot = 0) noexcept {
    keys_.write(index, names_.data() + slot * result_.arguments.key_bytes);
    return name(slot);
  }
  [[nodiscard]] kv::Key name(std::size_t slot) const noexcept {
    const std::size_t bytes = result_.arguments.key_bytes;
    return bytes_of_text(names_).subspan(slot * bytes, bytes);
  }

  /// The server's first worker runs on the core that a plan gives it, unless others had claimed that: the ping-pong
  /// runs from there to another core.
  void choose_cpus() {
    const std::vector<unsigned> cpus = allowed_cpus();
    own_cpu_ = cpus.front();
    server_cpu_ = cpus.back();
    const auto topology = host::Topology::read();
    if (!topology) return;
    const auto plan = host::plan_placement(*topology, {});
    if (plan && plan->pollers[0].core && plan->pollers[0].core->cpu != own_cpu_)
      server_cpu_ = plan->pollers[0].core->cpu;
  }

  /// In registered memory if there is any, which large values in flight need.
  void make_value() {
    const std::size_t bytes = result_.arguments.value_bytes;
    std::span<std::byte> memory = client_.allocate(std::max<std::size_t>(bytes, 1));
    if (memory.empty()) {
      plain_value_.resize(bytes);
      memory = plain_value_;
    }
    std::ranges::fill(memory, std::byte{'v'});
    value_ = memory.first(bytes);
  }

  void make_batch() {
    for (std::size_t i = 0; i < result_.arguments.batch; ++i) {
      batch_gets_.push_back({.key = name(i), .out = pipeline_.take()->buffer, .outcome = {}});
      batch_puts_.push_back({.key = name(i), .value = value_, .outcome = {}});
    }
  }

  void measure() {
    double line_before = measure_line_once();
    const unsigned rounds = result_.arguments.rounds;
    for (unsigned round = 0; round < rounds && !pipeline_.broken(); ++round) {
      BenchRound figures = run_round(round);
      if (InterruptWatch::is_asked_to_stop()) return;
      measure_memory(figures);
      const double line_after = measure_line_once();
      figures.line_ns = (line_before + line_after) / 2;
      line_before = line_after;
      result_.rounds.push_back(figures);
    }
  }

  bool fill() {
    const auto before = client_.server_statistics(Deadline::after(kExtraPatience));
    const std::size_t keys = result_.arguments.keys;
    for (filled_ = 0; filled_ < keys && !InterruptWatch::is_asked_to_stop(); ++filled_) {
      if (bar_.due())
        bar_.draw(static_cast<double>(filled_) / static_cast<double>(keys),
                  fmt::format("storing {} of {} keys", filled_ + 1, keys));
      const kv::Outcome outcome = client_.put(key(filled_), value_);
      if (outcome.status == Status::kOk) continue;
      bar_.clear();
      complain("cannot store the keys of the bench: {}", explain(outcome, client_.connection_error()));
      return false;
    }
    const auto after = client_.server_statistics(Deadline::after(kExtraPatience));
    if (before && after) result_.item_bytes = bytes_of_an_item(*before, *after);
    return true;
  }

  /// Includes its part of the index as if that were full. 0 if other keys came or went meanwhile, or some already
  /// existed.
  [[nodiscard]] double bytes_of_an_item(const kv::ServerStatistics& before,
                                        const kv::ServerStatistics& after) const noexcept {
    const std::size_t keys = result_.arguments.keys;
    if (after.items - before.items != keys || after.used_bytes < before.used_bytes || after.max_items == 0) return 0;
    const double index = kEntryBytes * static_cast<double>(after.index_entries) / static_cast<double>(after.max_items);
    return static_cast<double>(after.used_bytes - before.used_bytes) / static_cast<double>(keys) + index;
  }

  /// Removes the bench's keys: those that it stored, or those of the bench before it.
  void empty() noexcept {
    const std::size_t keys = result_.arguments.no_fill ? result_.arguments.keys : filled_;
    for (std::size_t i = 0; i < keys && !pipeline_.broken(); ++i) {
      if (damage_of(client_.erase(key(i)).status) >= Damage::kConnection) pipeline_.set_broken();
    }
  }

  double measure_line_once() {
    const auto line = measure_line(own_cpu_, server_cpu_, kYardstickSpan);
    if (!line) {
      result_.line_problem = line.error().text();
      return 0;
    }
    result_.line = *line;
    return line->one_way_ns;
  }

  void measure_memory(BenchRound& figures) const {
    const BenchArguments& a = result_.arguments;
    if (a.value_bytes < kMemcpyFrom) return;
    constexpr std::size_t kMost = std::size_t{64} << 20;
    const Pinned pinned(own_cpu_);
    const std::size_t many = std::max<std::size_t>(2, kMost / a.value_bytes);
    figures.memcpy_cached = measure_memcpy(a.value_bytes, {}, kYardstickSpan);
    figures.memcpy_memory = measure_memcpy(a.value_bytes, {.sources = many, .targets = many}, kYardstickSpan);
    figures.memcpy_get = measure_memcpy(a.value_bytes, {.sources = a.keys}, kYardstickSpan);
    figures.memcpy_put = measure_memcpy(a.value_bytes, {.targets = a.keys}, kYardstickSpan);
  }

  /// Whether the round goes on at time `now`; draws the bar now and then, if there is one.
  [[nodiscard]] bool goes_on(std::uint64_t now, std::uint64_t done) {
    if (now >= draw_ticks_) [[unlikely]] {
      draw_ticks_ = bar_.is_shown() ? now + ticks_in(kDrawEvery) : std::numeric_limits<std::uint64_t>::max();
      const double by_time = static_cast<double>(now - round_.begin) / static_cast<double>(round_.end - round_.begin);
      const double by_count = static_cast<double>(done) / static_cast<double>(round_.count);
      bar_.draw((round_.number + std::min(1.0, std::max(by_time, by_count))) / result_.arguments.rounds,
                fmt::format("round {} of {}", round_.number + 1, result_.arguments.rounds));
    }
    return now < round_.end && !InterruptWatch::is_asked_to_stop();
  }

  BenchRound run_round(unsigned number) {
    const BenchArguments& a = result_.arguments;
    const unsigned rounds = a.rounds;
    // Only here, because threads inherit the affinity, and those of the ping-pong run elsewhere.
    const Pinned pinned(own_cpu_);
    gets_.clear();
    puts_.clear();
    const std::uint64_t count =
        a.count == 0 ? std::numeric_limits<std::uint64_t>::max() : (a.count + rounds - 1) / rounds;
    const std::uint64_t begin = ticks_now();
    const auto span = static_cast<std::uint64_t>(a.seconds / rounds * 1e6 * ticks_per_us());
    round_ = {.number = number, .begin = begin, .end = begin + std::max<std::uint64_t>(span, 1), .count = count};
    a.depth == 1 ? call_by_call() : pipelined();
    const double seconds = std::max(static_cast<double>(ticks_now() - begin) / ticks_per_us() / 1e6, 1e-9);
    result_.seconds += seconds;
    result_.gets.merge(gets_);
    result_.puts.merge(puts_);
    const auto ns = [](std::uint64_t ticks) { return static_cast<double>(ticks) / ticks_per_us() * 1e3; };
    return {.get_p50_ns = ns(gets_.percentile(50)),
            .put_p50_ns = ns(puts_.percentile(50)),
            .operations_per_s = static_cast<double>(gets_.count() + puts_.count()) / seconds};
  }

  [[nodiscard]] bool next_is_get() noexcept { return random_.below(100) < result_.arguments.read_percent; }

  /// Blocking calls. Reads the clock around one batch, or around `clock_every` calls.
  void call_by_call() {
    const BenchArguments& a = result_.arguments;
    for (std::uint64_t done = 0; done < round_.count && !pipeline_.broken();) {
      const std::size_t some = std::min<std::uint64_t>(std::max(a.batch, a.clock_every), round_.count - done);
      for (std::size_t i = 0; i < some; ++i) static_cast<void>(key(random_.below(a.keys), i));
      const bool is_get = next_is_get();
      const std::uint64_t begin = ticks_now();
      if (!goes_on(begin, done)) break;
      const std::size_t good = a.batch > 1 ? in_a_batch(is_get, some) : one_by_one(is_get, some);
      (is_get ? gets_ : puts_).record((ticks_now() - begin) / some, good);
      done += some;
    }
  }

  /// Gets or puts the first `some` names; returns how many had the expected outcome.
  std::size_t one_by_one(bool is_get, std::size_t some) noexcept {
    Slot* const slot = pipeline_.take();
    std::size_t good = 0;
    for (std::size_t i = 0; i < some && !pipeline_.broken(); ++i) {
      good += accept(is_get, is_get ? client_.get(name(i), slot->buffer) : client_.put(name(i), value_)) ? 1 : 0;
    }
    pipeline_.give_back(*slot);
    return good;
  }

  /// The same in one call.
  std::size_t in_a_batch(bool is_get, std::size_t some) noexcept {
    const auto count_good = [&](const auto& requests) {
      return std::ranges::count_if(requests, [&](const auto& each) { return accept(is_get, each.outcome); });
    };
    const auto gets = std::span(batch_gets_).first(is_get ? some : 0);
    const auto puts = std::span(batch_puts_).first(is_get ? 0 : some);
    is_get ? client_.get(gets) : client_.put(puts);
    return static_cast<std::size_t>(count_good(gets) + count_good(puts));
  }

  void pipelined() {
    const auto settle_slot = [this](const Slot& slot, const kv::Outcome& outcome) {
      settle(slot.item != 0, slot.begin, outcome);
    };
    for (std::uint64_t done = 0; done < round_.count; ++done) {
      Slot* const slot = pipeline_.await_free(settle_slot);
      if (slot == nullptr) return;
      const kv::Key name = key(random_.below(result_.arguments.keys));
      slot->item = next_is_get() ? 1 : 0;
      slot->begin = ticks_now();
      const auto start = [&] {
        const std::uint64_t cookie = pipeline_.cookie_of(*slot);
        return slot->item != 0 ? client_.start_get(name, slot->buffer, cookie)
                               : client_.start_put(name, value_, cookie);
      };
      const bool is_over = !goes_on(slot->begin, done);
      const Status status = is_over ? Status::kAgain : pipeline_.start(start, settle_slot);
      if (status == Status::kOk) continue;
      pipeline_.give_back(*slot);
      if (is_over) break;
      settle(slot->item != 0, slot->begin, {.status = status});
    }
    pipeline_.drain(settle_slot);
  }

  void settle(bool is_get, std::uint64_t begin, const kv::Outcome& outcome) noexcept {
    if (accept(is_get, outcome)) (is_get ? gets_ : puts_).record(ticks_now() - begin);
  }

  /// Whether an operation had the expected outcome; counts any other outcome.
  bool accept(bool is_get, const kv::Outcome& outcome) noexcept {
    Status status = outcome.status;
    if (status == Status::kOk && is_get && outcome.length != value_.size()) status = Status::kProtocol;
    if (status == Status::kOk) return true;
    ++result_.failures[static_cast<std::size_t>(status)];
    if (damage_of(outcome.status) >= Damage::kConnection || status == Status::kTimedOut) pipeline_.set_broken();
    return false;
  }

  kv::Client& client_;
  Pipeline pipeline_;
  BenchResult result_;
  unsigned own_cpu_ = 0, server_cpu_ = 0;
  BenchKeys keys_;
  std::string names_;  // Keys of the operations between two readings of the clock.
  std::vector<std::byte> plain_value_;
  std::span<std::byte> value_;
  std::vector<kv::GetRequest> batch_gets_;
  std::vector<kv::PutRequest> batch_puts_;
  Histogram gets_, puts_;
  Random random_;
  Progress bar_{"bench"};
  std::uint64_t draw_ticks_ = 0;  // When the bar is due.
  std::size_t filled_ = 0;        // Keys stored before the rounds.
  struct {
    unsigned number = 0;
    std::uint64_t begin = 0, end = 0;  // Ticks.
    std::uint64_t count = 0;           // Operations at most.
  } round_;
};

}  // namespace

std::string check_bench_arguments(const BenchArguments& a) {
  if (a.keys > distinct_keys(a.key_bytes)) {
    return fmt::format("--keys {}: keys of {} bytes tell only {} apart; raise --key-size", a.keys, a.key_bytes,
                       distinct_keys(a.key_bytes));
  }
  if (a.clock_every != 1 && (a.depth != 1 || a.batch != 1)) return "--clock-every goes with --depth 1 and --batch 1";
  if (a.batch != 1 && a.depth != 1) return "--batch goes with --depth 1";
  if (a.value_bytes > kMostBytes / (std::max(a.depth, a.batch) + 2))
    return "--value-size: so large a value does not fit into memory";
  if (a.keys > kMostBytes / a.key_bytes) return "--keys: so many keys do not fit into memory";
  return {};
}

Exit run_bench(const ConnectArguments& where, const BenchArguments& arguments) {
  if (arguments.sweep)
    return run_sweep(where, {.seconds = arguments.seconds, .json = arguments.json, .plot = arguments.plot});
  BenchArguments filled = arguments;
  if (filled.keys == 0) filled.keys = default_keys(filled);
  ConnectArguments to = where;
  kv::ClientOptions& options = to.options;
  options.depth = std::max(filled.depth, filled.batch);
  options.lookup = filled.lookup;
  options.known_locations = filled.known_locations;
  // A buffer for each operation in flight and one value, each on cache lines of its own.
  options.buffer_bytes = (filled.value_bytes + 128) * (options.depth + 1);
  const auto client = connect_or_complain(to);
  if (!client) return Exit::kError;
  if (filled.value_bytes > client->max_value_bytes()) {
    return error_exit("--value-size {}: the server takes at most {} bytes; raise it with serve --max-value-mib",
                      filled.value_bytes, client->max_value_bytes());
  }
  // On the heap: two histograms together are large for a stack.
  const auto bench = std::make_unique<Bench>(*client, where, filled);
  const InterruptWatch watch;
  const bool whole = bench->run();
  if (InterruptWatch::is_asked_to_stop())
    return error_exit("bench: interrupted; its keys are {}", filled.no_erase ? "still there" : "erased");
  const BenchResult& result = bench->result();
  if (!result.rounds.empty()) {
    const Exit printed = write_out(filled.json ? bench_json(result) : bench_text(result));
    if (printed != Exit::kDone) return printed;
  }
  const Error error = client->connection_error();
  if (!whole)
    return error.status() == Status::kOk ? Exit::kError : error_exit("the connection broke: {}", error.text());
  const bool failed = std::ranges::any_of(result.failures, [](std::uint64_t n) { return n != 0; });
  return failed ? error_exit("some operations failed; see the counts above") : Exit::kDone;
}

}  // namespace verbena::programs
