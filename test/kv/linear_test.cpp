// Concurrent clients, in threads and in processes, on a few hot keys: what they saw must be linearizable.
// VERBENA_SEEDS: runs of each test (1). Under chaos its seed counts in, so that other calls meet other faults.
#include "chaos.hpp"
#include "environment.hpp"
#include "history.hpp"
#include "model.hpp"
#include "peer.hpp"
#include "recorder.hpp"
#include "sanitized.hpp"

#include <verbena/kv.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace verbena::kv {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;
using history::Caller;
using history::HistoryVerdict;
using history::Journal;
using history::Plan;
using test::Peer;

constexpr std::array<std::uint32_t, 5> kSmall{8, 40, 64, 200, 1000};
constexpr std::array<std::uint32_t, 6> kEdges{16, 4095, 4096, 4097, 8192, 20'000};
constexpr std::array<std::uint32_t, 4> kLarge{64, 4096, 70'001, 300'000};
constexpr std::array<std::uint32_t, 6> kMixed{8, 333, 4095, 4096, 30'000, 100'000};

constexpr std::array kPlans{
    Plan{.name = "small", .sizes = kSmall, .cells = 2, .calls = 3000, .impatient = 8},
    Plan{.name = "edges", .sizes = kEdges, .calls = 1500, .impatient = 8},
    Plan{.name = "large", .sizes = kLarge, .keys = 2, .calls = 600},
    Plan{.name = "mixed", .sizes = kMixed, .cells = 1, .calls = 1200},
    Plan{.name = "broken", .sizes = kMixed, .cells = 1, .calls = 1200, .timeout = 1000ms},
    Plan{.name = "expiring", .sizes = kMixed, .calls = 1200, .longest_ttl = 5ms},
    Plan{.name = "cells", .sizes = kSmall, .keys = 1, .cells = 2, .calls = 4000, .only_cells = true},
};
enum PlanNumber : std::size_t {
  kSmallPlan,
  kEdgesPlan,
  kLargePlan,
  kMixedPlan,
  kBrokenPlan,
  kExpiringPlan,
  kCellsPlan
};

/// A plan as this machine can do it in some seconds.
Plan plan_of(std::size_t number) {
  Plan plan = kPlans.at(number);
  if (!test::is_soft_under_test()) plan.calls /= 30;
  plan.meets = 8;
  return plan;
}

struct Crew {
  unsigned threads = 3;
  unsigned processes = 1;
  unsigned killed = 0;  ///< Processes that are killed on the way.
  bool may_reconnect = false;
};

/// Calls by all of a crew on one server, and what they saw.
class Recording {
 public:
  Recording(std::size_t number, const Crew& crew, std::uint64_t seed)
      : number_(number),
        crew_(crew),
        plan_(plan_of(number)),
        seed_(seed),
        journal_(clients(), plan_.calls, plan_.meets) {}

  void go(const ServerOptions& options) {
    ASSERT_TRUE(journal_);
    const auto server = start(options);
    ASSERT_TRUE(server);
    const unsigned others = crew_.processes + crew_.killed;
    std::vector<std::unique_ptr<Peer>> peers;
    for (unsigned i = 0; i < others; ++i) peers.push_back(start_peer(server->port(), crew_.threads + i));
    {
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < crew_.threads; ++i) threads.emplace_back([&, i] { call(i, server->port()); });
      // Somewhere on their way: that is no assertion, and the history is what it is.
      for (unsigned i = 0; i < crew_.killed; ++i) {
        const unsigned victim = crew_.threads + crew_.processes + i;
        const std::uint64_t half = plan_.calls * (i + 1) / (crew_.killed + 1);
        (void)eventually([&] { return journal_.count(victim) >= half; });
        peers[crew_.processes + i]->kill();
        journal_.leave(victim);
      }
    }
    for (unsigned i = 0; i < crew_.processes; ++i) EXPECT_EQ(peers[i]->wait(), 0);
    server->stop();
    judge();
  }
  [[nodiscard]] std::size_t open() const noexcept { return open_; }

 private:
  [[nodiscard]] unsigned clients() const noexcept { return crew_.threads + crew_.processes + crew_.killed; }

  std::unique_ptr<Peer> start_peer(std::uint16_t port, unsigned client) {
    return std::make_unique<Peer>(std::vector<std::string>{std::to_string(port), std::to_string(journal_.fd()),
                                                           std::to_string(number_), std::to_string(client),
                                                           std::to_string(seed_)});
  }
  void call(unsigned client, std::uint16_t port) {
    Caller caller(journal_, client, plan_, client_options(port), seed_);
    EXPECT_EQ(caller.run(), "");
    journal_.leave(client);
    const LookupCounters lookups = caller.lookups();
    const std::lock_guard lock(mutex_);
    lookups_.by_location += lookups.by_location;
    lookups_.by_index += lookups.by_index;
    lookups_.by_message += lookups.by_message;
    lookups_.stale += lookups.stale;
    lookups_.overtaken += lookups.overtaken;
    lookups_.retries += lookups.retries;
    if (!crew_.may_reconnect) {
      EXPECT_EQ(caller.connections(), 1u) << "a connection broke";
    }
  }

  void judge() {
    std::size_t calls = 0, overlapping = 0, most = 0, of_cells = 0, overlapping_of_cells = 0;
    std::string by_key;
    for (const auto& [key, verdict] : history::check_keys(journal_.calls())) {
      EXPECT_EQ(verdict.why, "") << "key " << key;
      const bool is_cell = key >= plan_.keys;
      // The emulated machine does few calls, some of them on one key.
      if (test::is_soft_under_test()) {
        EXPECT_GE(verdict.overlapping, verdict.calls / 20) << "key " << key << ": hardly two calls at the same time";
      }
      if (is_cell) {
        of_cells += verdict.calls;
        overlapping_of_cells += verdict.overlapping;
      }
      calls += verdict.calls;
      overlapping += verdict.overlapping;
      open_ += verdict.open;
      most = std::max(most, verdict.configurations);
      by_key += " " + std::to_string(verdict.overlapping) + "/" + std::to_string(verdict.calls);
    }
    std::printf(
        "history %s, seed %llu: %zu calls of %u clients, %zu overlapping (by key%s), of cells %zu of %zu, %zu without "
        "an answer, %zu configurations at most\n",
        plan_.name, static_cast<unsigned long long>(seed_), calls, clients(), overlapping, by_key.c_str(),
        overlapping_of_cells, of_cells, open_, most);
    std::printf(
        "  of threads, gets by location %llu, by index %llu, by message %llu; %llu locations out of date, "
        "%llu lookups again, %llu given up\n",
        counted(lookups_.by_location), counted(lookups_.by_index), counted(lookups_.by_message),
        counted(lookups_.stale), counted(lookups_.retries), counted(lookups_.overtaken));
    std::fflush(stdout);
    EXPECT_GT(calls, plan_.calls) << "of one client alone";
  }

  static unsigned long long counted(std::uint64_t count) { return count; }

  std::size_t number_;
  Crew crew_;
  Plan plan_;
  std::uint64_t seed_;
  Journal journal_;
  std::size_t open_ = 0;
  std::mutex mutex_;
  LookupCounters lookups_;
};

ServerOptions shared_server() {
  ServerOptions options = small_server();
  options.workers = 2;
  options.max_clients = 32;
  options.memory_bytes = std::size_t{128} << 20;
  options.grace = 50ms;
  options.max_cells = 16;
  return options;
}

/// Each seed is one history.
template <class Body>
void with_seeds(Body body) {
  const std::uint64_t chaos = test::number_in("VERBENA_CHAOS_SEED", 0);
  for (std::uint64_t seed = 1; seed <= test::number_in("VERBENA_SEEDS", 1); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(chaos * 1000 + seed));
    body(chaos * 1000 + seed);
    if (testing::Test::HasFailure()) return;
  }
}

void run(std::size_t plan, const Crew& crew, const ServerOptions& options = shared_server()) {
  with_seeds([&](std::uint64_t seed) { Recording(plan, crew, seed).go(options); });
}

TEST(KvLinear, SmallValues) { run(kSmallPlan, {}); }
TEST(KvLinear, AroundTheEagerLimit) { run(kEdgesPlan, {}); }
TEST(KvLinear, LargeValues) { run(kLargePlan, {}); }
TEST(KvLinear, ValuesThatExpire) { run(kExpiringPlan, {}); }

TEST(KvLinear, LargeValuesWithLittleGrace) {
#ifdef VERBENA_HAS_TSAN
  GTEST_SKIP() << "with so little grace a READ overlaps the block's next use, which the client sees by the clock and "
                  "reads again: a race by design, as on a device, and TSan would report it";
#endif
  VERBENA_SKIP_ON_A_DEVICE("the emulated one takes longer for a READ than this grace period");
  ServerOptions options = shared_server();
  options.grace = 2ms;
  run(kLargePlan, {}, options);
}

TEST(KvLinear, ClientsThatAreKilled) { run(kMixedPlan, {.threads = 2, .processes = 1, .killed = 3}); }

// Reads and atomics of cells on NICs that are late go through the queue, as on a device, and meet each other there.
TEST(KvLinear, CellsOnLateNics) {
  VERBENA_SKIP_ON_A_DEVICE("chaos is the soft NIC's");
  with_seeds([](std::uint64_t seed) {
    const test::LateNics late(seed);
    Recording(kCellsPlan, {}, seed).go(shared_server());
  });
}

// Connections that break: retries exceeded, fatal errors and lost peers, each between two calls or within one. Clients
// connect again and go on.
TEST(KvLinear, ConnectionsThatBreak) {
  VERBENA_SKIP_ON_A_DEVICE("faults are the soft NIC's");
  with_seeds([&](std::uint64_t seed) {
    const test::Faults faults("delay=0.1,pieces=0.2,hold=0.1,rnr=0.1,retry=0.0005,fatal=0.0005,death=0.0005", seed);
    Recording broken(kBrokenPlan, {.may_reconnect = true}, seed);
    broken.go(shared_server());
    EXPECT_GT(broken.open(), 0u) << "no call was under way when a connection broke";
  });
}

// Several clients fill a store to its brim, replace and erase: what was acknowledged stays, what was refused left the
// old value.
TEST(KvFull, LosesNothingAcknowledged) {
  constexpr unsigned kWriters = 3;
  constexpr unsigned kKeys = 400;
  ServerOptions options = shared_server();
  options.memory_bytes = std::size_t{8} << 20;
  options.max_value_bytes = std::size_t{1} << 20;
  options.max_items = 100'000;
  options.grace = 5ms;
  const auto server = start(options);
  ASSERT_TRUE(server);
  std::array<std::map<std::string, std::uint64_t>, kWriters> kept;
  std::array<unsigned, kWriters> refused{};
  {
    std::vector<std::jthread> threads;
    for (unsigned writer = 0; writer < kWriters; ++writer) {
      threads.emplace_back([&, writer] {
        const auto client = connect(client_options(*server));
        ASSERT_TRUE(client);
        std::mt19937_64 random(writer + 1);
        std::vector<std::byte> bytes(100'000);
        for (unsigned number = 1; number <= 2000; ++number) {
          const std::string key = std::to_string(writer) + "/" + std::to_string(random() % kKeys);
          if (random() % 8 == 0) {
            const Status status = client->erase(key_of(key)).status;
            ASSERT_EQ(status, kept[writer].erase(key) != 0 ? Status::kOk : Status::kNotFound) << key;
            continue;
          }
          const auto length =
              static_cast<std::uint32_t>(random() % 3 == 0 ? 8 + random() % 90'000 : 8 + random() % 600);
          const std::uint64_t name = history::name_of(length, writer, number);
          history::fill_value(std::span(bytes).first(length), name);
          const Outcome outcome = client->put(key_of(key), std::span(bytes).first(length));
          if (outcome.status == Status::kOk) {
            kept[writer][key] = name;
          } else {
            ASSERT_EQ(outcome.status, Status::kStoreFull);
            ++refused[writer];
          }
        }
      });
    }
  }
  const auto client = connect(client_options(*server));
  ASSERT_TRUE(client);
  std::vector<std::byte> out(100'000);
  for (unsigned writer = 0; writer < kWriters; ++writer) {
    EXPECT_GT(refused[writer], 0u) << "the store was never full for writer " << writer;
    for (unsigned i = 0; i < kKeys; ++i) {
      const std::string key = std::to_string(writer) + "/" + std::to_string(i);
      const Outcome outcome = client->get(key_of(key), out);
      const auto known = kept[writer].find(key);
      ASSERT_EQ(outcome.status, known == kept[writer].end() ? Status::kNotFound : Status::kOk) << key;
      if (outcome.status != Status::kOk) continue;
      ASSERT_EQ(history::read_value(std::span(out).first(outcome.length)), known->second) << key;
    }
  }
}

int peer_main(char** arguments) {
  test::die_with_the_test();
  const auto number = [&](int index) { return std::strtoull(arguments[index], nullptr, 10); };
  Journal journal(static_cast<int>(number(1)));
  if (!journal) return 3;
  const Plan plan = plan_of(number(2));
  Caller caller(journal, static_cast<unsigned>(number(3)), plan, client_options(static_cast<std::uint16_t>(number(0))),
                number(4));
  const std::string wrong = caller.run();
  journal.leave(static_cast<unsigned>(number(3)));
  if (!wrong.empty()) std::fprintf(stderr, "client %s: %s\n", arguments[3], wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace verbena::kv

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 7 && std::string_view(argv[1]) == "peer") return verbena::kv::peer_main(argv + 2);
  return RUN_ALL_TESTS();
}
