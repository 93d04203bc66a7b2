// Runs several libraries, or several builds of one, in slices of some hundred microseconds in turn between the same two
// cores, because the machine changes its state from second to second.
#include "bare.hpp"
#include "programs/json.hpp"
#include "variant.hpp"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace verbena::slices {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::vector<unsigned> cpus{0, 1};
  unsigned slice_us = 300;
  unsigned rotations = 100;
  std::uint64_t seed = 1;
  std::vector<std::string> variants;  ///< NAME=PATH
};

/// Puts a thread on a cpu; 0 is the calling thread.
bool run_on(unsigned cpu, pid_t thread = 0) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(thread, sizeof set, &set) == 0;
}

/// The threads of this process.
std::set<pid_t> threads() {
  std::set<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    found.insert(static_cast<pid_t>(std::stol(entry.path().filename().string())));
  return found;
}

/// The thread of the other side. It sleeps while an operation needs none.
class Server {
 public:
  explicit Server(unsigned cpu) : thread_([this, cpu] { serve(cpu); }) {}
  ~Server() {
    give({});
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Begins, and returns once the thread runs.
  void begin(bool (*operation)(std::uint64_t), std::uint64_t count) noexcept {
    give({operation, count});
    while (begun_.load(std::memory_order_acquire) != turn_.load(std::memory_order_relaxed)) {}
  }
  /// Whether what was begun went well.
  [[nodiscard]] bool end() noexcept {
    ended_.wait(turn_.load(std::memory_order_relaxed) - 1, std::memory_order_acquire);
    return is_well_;
  }

 private:
  struct Work {
    bool (*operation)(std::uint64_t) = nullptr;
    std::uint64_t count = 0;
  };
  void give(const Work& work) noexcept {
    work_ = work;
    turn_.fetch_add(1, std::memory_order_release);
    turn_.notify_one();
  }
  void serve(unsigned cpu) noexcept {
    is_well_ = run_on(cpu);
    for (std::uint32_t turn = 0;; ++turn) {
      turn_.wait(turn, std::memory_order_acquire);
      const Work work = work_;
      begun_.store(turn + 1, std::memory_order_release);
      if (work.operation == nullptr) return;
      is_well_ = work.operation(work.count) && is_well_;
      ended_.store(turn + 1, std::memory_order_release);
      ended_.notify_one();
    }
  }

  Work work_;
  bool is_well_ = true;
  alignas(64) std::atomic<std::uint32_t> turn_{0};
  alignas(64) std::atomic<std::uint32_t> begun_{0};
  alignas(64) std::atomic<std::uint32_t> ended_{0};
  std::thread thread_;
};

/// An operation of a library, and how often it fits into a slice.
struct Row {
  std::string variant;
  Operation operation;
  std::uint64_t count = 16;
};

/// Nanoseconds of one, after some that only warm up; negative if one failed.
double time_of(Server& server, const Operation& operation, std::uint64_t count) {
  const std::uint64_t warm = count / 8 + 1;
  if (operation.server != nullptr) server.begin(operation.server, warm + count);
  bool is_well = operation.client(warm);
  const auto begin = Clock::now();
  is_well = is_well && operation.client(count);
  const std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
  if (!is_well) return -1;  // The other side may wait for ever.
  if (operation.server != nullptr && !server.end()) return -1;
  return taken.count() / static_cast<double>(count);
}

/// Loads a library and opens it. An error text, or nothing.
std::string load(const std::string& word, const Settings& settings, std::vector<Row>& rows,
                 std::vector<const Variant*>& opened) {
  const std::size_t at = word.find('=');
  if (at == std::string::npos) return fmt::format("{}: not NAME=PATH", word);
  const std::string name = word.substr(0, at);
  void* const library = dlopen(word.substr(at + 1).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  const auto variant_of = reinterpret_cast<const Variant* (*)()>(dlsym(library, "slices_variant"));
  if (variant_of == nullptr) return fmt::format("{}: not a library of bench/slices", word);
  const Variant* const variant = variant_of();
  const std::set<pid_t> before = threads();
  const char* const why = variant->open(settings.cpus[1]);
  // Its own threads serve, or sleep.
  for (const pid_t thread : threads())
    if (!before.contains(thread) && !run_on(settings.cpus[1], thread))
      return fmt::format("{}: its threads cannot be put on cpu {}", name, settings.cpus[1]);
  if (why != nullptr) return fmt::format("{}: {}", name, why);
  opened.push_back(variant);
  for (std::size_t i = 0; i < variant->count; ++i)
    rows.push_back({.variant = name, .operation = variant->operations[i]});
  return {};
}

int run(const Settings& settings) {
  std::vector<Row> rows;
  std::vector<const Variant*> opened;
  for (const std::string& word : settings.variants) {
    if (const std::string why = load(word, settings, rows, opened); !why.empty()) {
      fmt::print(stderr, "slices: {}\n", why);
      return 3;
    }
  }
  for (const Operation& operation : bare_operations()) rows.push_back({.variant = "bare", .operation = operation});
  if (!run_on(settings.cpus[0])) {
    fmt::print(stderr, "slices: this process may not use cpu {}\n", settings.cpus[0]);
    return 3;
  }
  Server server(settings.cpus[1]);
  constexpr std::uint64_t kProbes = 400;
  std::mt19937_64 random(settings.seed);
  double before = time_of(server, probe(), kProbes);
  for (unsigned rotation = 0; rotation < settings.rotations + 2; ++rotation) {
    std::ranges::shuffle(rows, random);
    for (Row& row : rows) {
      const double ns = time_of(server, row.operation, row.count);
      if (ns < 0) {
        fmt::print(stderr, "slices: {}: {} failed\n", row.variant, row.operation.name);
        std::quick_exit(3);  // The other thread may be in an operation that never ends.
      }
      row.count = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(settings.slice_us * 1e3 / std::max(ns, 1.0)));
      // A thread of the library that has served polls on for 50 us, on the core that the probe needs.
      std::this_thread::sleep_for(std::chrono::microseconds{100});
      const double after = time_of(server, probe(), kProbes);
      if (rotation >= 2)  // The first ones find out how often each fits.
        std::fputs(programs::json_line("rotation", rotation - 2, "variant", row.variant, "operation",
                                       row.operation.name, "ns", programs::Fixed{ns, 2}, "before",
                                       programs::Fixed{before, 1}, "after", programs::Fixed{after, 1})
                       .c_str(),
                   stdout);
      before = after;
    }
  }
  for (const Variant* variant : opened) variant->close();
  return std::ferror(stdout) != 0 ? 1 : 0;
}

}  // namespace
}  // namespace verbena::slices

int main(int argc, char** argv) {
  verbena::slices::Settings settings;
  CLI::App app("Runs libraries in short slices in turn, and prints a JSON object for each slice.", "slices");
  app.add_option("--cpus", settings.cpus, "the client's cpu and the server's")->expected(2)->delimiter(',');
  app.add_option("--slice-us", settings.slice_us, "length of a slice")->check(CLI::Range(50, 100000));
  app.add_option("--rotations", settings.rotations, "slices of each operation")->check(CLI::Range(1, 1000000));
  app.add_option("--seed", settings.seed, "of the order of slices");
  app.add_option("variants", settings.variants, "libraries, as NAME=PATH");
  CLI11_PARSE(app, argc, argv);
  return verbena::slices::run(settings);
}
