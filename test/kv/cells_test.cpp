// Cells: words that several clients change by their NICs.
#include "chaos.hpp"
#include "device.hpp"
#include "model.hpp"
#include "result.hpp"

#include <verbena/kv.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <latch>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::kv {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;

ServerOptions server_of_cells(std::size_t max_cells) {
  ServerOptions options = small_server();
  options.max_cells = max_cells;
  return options;
}

/// Operations of a loop, as many as take a moment.
std::uint64_t rounds(std::uint64_t count) {
  if (!test::is_soft_under_test()) return count / 500 + 20;
  return test::in_chaos() ? count / 100 + 20 : count;
}

class KvCells : public testing::Test {
 protected:
  void begin(const ServerOptions& options = server_of_cells(100)) {
    server_ = start(options);
    ASSERT_TRUE(server_);
    client_ = connect(client_options(*server_));
    ASSERT_TRUE(client_);
  }
  [[nodiscard]] Result<Cell> open(std::string_view key, std::uint64_t initial = 0) {
    return client_->open_cell(key_of(key), initial);
  }
  [[nodiscard]] std::uint64_t value(const Cell& cell) {
    std::uint64_t there = ~std::uint64_t{0};
    EXPECT_EQ(client_->read(cell, there), Status::kOk);
    return there;
  }
  /// Runs `body(client, number)` in threads with a client each, which begin together: there are as many operations in
  /// flight as cores.
  template <class Body>
  void in_clients(unsigned count, Body&& body) {
    std::vector<std::unique_ptr<Client>> clients;
    for (unsigned i = 0; i < count; ++i) {
      clients.push_back(connect(client_options(*server_)));
      ASSERT_TRUE(clients.back());
    }
    std::latch ready(count);
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < count; ++i)
      threads.emplace_back([&, i] {
        ready.arrive_and_wait();
        body(*clients[i], i);
      });
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(KvCells, OpenOnceAndHoldAWord) {
  begin();
  const auto cell = open("cell", 5);
  ASSERT_OK(cell);
  EXPECT_TRUE(cell->is_new);
  EXPECT_EQ(value(*cell), 5u);
  const auto again = open("cell", 77);
  ASSERT_OK(again);
  EXPECT_FALSE(again->is_new);
  EXPECT_EQ(again->address, cell->address);
  EXPECT_EQ(again->worker, cell->worker);
  std::uint64_t old = 99;
  EXPECT_EQ(client_->fetch_add(*cell, 3, old), Status::kOk);
  EXPECT_EQ(old, 5u);
  EXPECT_EQ(client_->fetch_add(*again, ~std::uint64_t{0}, old), Status::kOk) << "one less, modulo 2^64";
  EXPECT_EQ(old, 8u);
  EXPECT_EQ(client_->compare_swap(*cell, 8, 1000, old), Status::kOk);
  EXPECT_EQ(old, 7u) << "not swapped";
  EXPECT_EQ(client_->compare_swap(*cell, 7, 1000, old), Status::kOk);
  EXPECT_EQ(old, 7u);
  EXPECT_EQ(value(*cell), 1000u);
  const auto other = open("other", ~std::uint64_t{0});
  ASSERT_OK(other);
  EXPECT_NE(other->address, cell->address);
  EXPECT_EQ(value(*other), ~std::uint64_t{0});
  EXPECT_EQ(value(*cell), 1000u);
  const auto told = client_->server_statistics(Deadline::after(10s));
  ASSERT_OK(told);
  EXPECT_EQ(told->cells, 2u);
  EXPECT_EQ(told->items, 2u);
  EXPECT_EQ(server_->statistics().cells, 2u);
  EXPECT_EQ(server_->statistics().failures, 0u);
}

class KvCellsByLookup : public KvCells, public testing::WithParamInterface<Lookup> {};

TEST_P(KvCellsByLookup, AndValuesAreTwoKinds) {
  begin();
  ClientOptions options = client_options(*server_);
  options.lookup = GetParam();
  client_ = connect(options);
  ASSERT_TRUE(client_);
  ASSERT_EQ(client_->put(key_of("value"), bytes_of("v")).status, Status::kOk);
  const auto refused = open("value");
  EXPECT_STATUS(refused, Status::kWrongKind);
  const auto cell = open("cell", 7);
  ASSERT_OK(cell);
  std::string out(100, '\0');
  const auto into = std::as_writable_bytes(std::span(out));
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(client_->get(key_of("cell"), into).status, Status::kWrongKind);
    EXPECT_EQ(client_->put(key_of("cell"), bytes_of("v")).status, Status::kWrongKind);
    EXPECT_EQ(client_->put(key_of("cell"), bytes_of(std::string(50'000, 'v'))).status, Status::kWrongKind);
    for (const std::uint64_t expected : {0u, 1u, 1000u}) {
      EXPECT_EQ(client_->cas(key_of("cell"), expected, bytes_of("v")).status, Status::kWrongKind) << expected;
      EXPECT_EQ(client_->cas(key_of("cell"), expected, bytes_of(std::string(50'000, 'v'))).status, Status::kWrongKind);
    }
    EXPECT_EQ(client_->erase(key_of("cell")).status, Status::kWrongKind);
  }
  std::array<GetRequest, 2> gets{{{.key = key_of("cell"), .out = into}, {.key = key_of("value"), .out = into}}};
  client_->get(gets);
  EXPECT_EQ(gets[0].outcome.status, Status::kWrongKind);
  EXPECT_EQ(gets[1].outcome.status, Status::kOk);
  std::array<PutRequest, 1> puts{{{.key = key_of("cell"), .value = bytes_of("v")}}};
  client_->put(puts);
  EXPECT_EQ(puts[0].outcome.status, Status::kWrongKind);
  Completion ended;
  ASSERT_EQ(client_->start_get(key_of("cell"), into, 1), Status::kOk);
  ASSERT_EQ(client_->wait({&ended, 1}, Deadline::never()), 1u);
  EXPECT_EQ(ended.outcome.status, Status::kWrongKind);
  ASSERT_EQ(client_->start_put(key_of("cell"), bytes_of("v"), 2), Status::kOk);
  ASSERT_EQ(client_->wait({&ended, 1}, Deadline::never()), 1u);
  EXPECT_EQ(ended.outcome.status, Status::kWrongKind);
  EXPECT_EQ(value(*cell), 7u);
  EXPECT_FALSE(open("cell", 1)->is_new);
  EXPECT_EQ(client_->get(key_of("value"), into).status, Status::kOk);
  EXPECT_EQ(client_->erase(key_of("value")).status, Status::kOk);
  EXPECT_TRUE(open("value", 1)->is_new) << "the key is free";
}

INSTANTIATE_TEST_SUITE_P(, KvCellsByLookup, testing::Values(Lookup::kAuto, Lookup::kMessage, Lookup::kOneSided));

TEST_F(KvCells, HaveTheirLimit) {
  begin(server_of_cells(3));
  std::vector<Cell> made;
  for (const char* key : {"a", "b", "c"}) {
    const auto cell = open(key, made.size());
    ASSERT_OK(cell);
    made.push_back(*cell);
  }
  const auto fourth = open("d");
  EXPECT_STATUS(fourth, Status::kLimit);
  EXPECT_NE(std::string(fourth.error().text()).find("max_cells"), std::string::npos) << fourth.error().text();
  EXPECT_EQ(client_->put(key_of("d"), bytes_of("v")).status, Status::kOk) << "the key was not taken";
  for (std::size_t i = 0; i < made.size(); ++i) EXPECT_EQ(value(made[i]), i);
  EXPECT_FALSE(open("c")->is_new);
  EXPECT_EQ(server_->statistics().cells, 3u);
}

TEST_F(KvCells, AreItemsToo) {
  ServerOptions options = server_of_cells(4);
  options.max_items = 4;
  begin(options);
  ASSERT_TRUE(open("cell", 1)->is_new);
  for (const char* key : {"a", "b", "c"}) ASSERT_EQ(client_->put(key_of(key), bytes_of("v")).status, Status::kOk);
  const auto full = open("another", 2);
  EXPECT_STATUS(full, Status::kIndexFull);
  EXPECT_EQ(server_->statistics().cells, 1u) << "the word is free still";
  ASSERT_EQ(client_->erase(key_of("b")).status, Status::kOk);
  const auto cell = open("another", 3);
  ASSERT_OK(cell);
  EXPECT_EQ(value(*cell), 3u);
  options.max_cells = 5;
  const auto refused = Server::start(options);
  EXPECT_STATUS(refused, Status::kBadArgument);
  EXPECT_NE(std::string(refused.error().text()).find("max_cells"), std::string::npos) << refused.error().text();
}

TEST_F(KvCells, AreNotWhereNoneAreAskedFor) {
  begin(small_server());
  const auto cell = open("cell");
  EXPECT_STATUS(cell, Status::kUnsupported);
  EXPECT_NE(std::string(cell.error().text()).find("max_cells"), std::string::npos) << cell.error().text();
  EXPECT_EQ(client_->connection_error().status(), Status::kOk);
}

TEST_F(KvCells, BadInputHasItsOwnStatus) {
  begin();
  EXPECT_STATUS(open(""), Status::kBadKey);
  EXPECT_STATUS(open(std::string(kMaxKeyBytes + 1, 'k')), Status::kBadKey);
  ASSERT_OK(open(std::string(kMaxKeyBytes, 'k')));
  const auto cell = open("cell", 9);
  ASSERT_OK(cell);
  const auto refused = [&](const Cell& bad, Status status) {
    std::uint64_t there = 42;
    EXPECT_EQ(client_->read(bad, there), status);
    EXPECT_EQ(std::exchange(there, 42), 0u);
    EXPECT_EQ(client_->fetch_add(bad, 1, there), status);
    EXPECT_EQ(std::exchange(there, 42), 0u);
    EXPECT_EQ(client_->compare_swap(bad, 9, 1, there), status);
    EXPECT_EQ(there, 0u);
  };
  refused({}, Status::kOutOfRange);
  refused({.address = cell->address + 4, .worker = cell->worker}, Status::kBadArgument);
  refused({.address = cell->address, .worker = 1}, Status::kBadArgument);
  refused({.address = cell->address, .worker = ~0u}, Status::kBadArgument);
  refused({.address = cell->address + (1 << 20), .worker = cell->worker}, Status::kOutOfRange);
  refused({.address = ~std::uint64_t{7}, .worker = cell->worker}, Status::kOutOfRange);
  EXPECT_EQ(value(*cell), 9u);
  const auto stranger = connect(client_options(*server_));
  ASSERT_TRUE(stranger);
  std::uint64_t there = 0;
  EXPECT_EQ(stranger->read(*cell, there), Status::kBadArgument) << "it has opened none";
  EXPECT_EQ(client_->connection_error().status(), Status::kOk);
}

// Each value that fetch-add returns is returned once: no two of them met.
TEST_F(KvCells, SumsOfSeveralClientsAddUp) {
  ServerOptions options = server_of_cells(100);
  options.workers = 2;
  begin(options);
  constexpr unsigned kClients = 3, kKeys = 3;
  const std::uint64_t each = rounds(30'000);
  std::array<std::array<std::vector<std::uint64_t>, kClients>, kKeys> seen;
  in_clients(kClients, [&](Client& mine, unsigned number) {
    std::array<Cell, kKeys> cells;
    for (unsigned key = 0; key < kKeys; ++key) {
      const auto cell = mine.open_cell(key_of("sum" + std::to_string(key)), 1000);
      ASSERT_OK(cell);
      cells[key] = *cell;
    }
    for (std::uint64_t i = 0; i < each * kKeys; ++i) {
      std::uint64_t old = 0;
      ASSERT_EQ(mine.fetch_add(cells[i % kKeys], 1, old), Status::kOk);
      seen[i % kKeys][number].push_back(old);
    }
  });
  EXPECT_EQ(server_->statistics().cells, kKeys) << "whoever came first has made it, once";
  for (unsigned key = 0; key < kKeys; ++key) {
    std::vector<std::uint64_t> all;
    for (const auto& some : seen[key]) {
      EXPECT_TRUE(std::ranges::is_sorted(some)) << "of one client";
      all.insert(all.end(), some.begin(), some.end());
    }
    std::ranges::sort(all);
    std::vector<std::uint64_t> expected(kClients * each);
    std::iota(expected.begin(), expected.end(), 1000);
    EXPECT_TRUE(all == expected) << key;
    EXPECT_EQ(value(*open("sum" + std::to_string(key))), 1000 + kClients * each);
  }
}

// A number and its complement in one word: whatever a reader sees was put there by one swap.
TEST_F(KvCells, SwapsLoseNothingAndReadersSeeWholeWords) {
  begin();
  constexpr unsigned kClients = 2;
  const std::uint64_t each = rounds(30'000);
  const auto word = [](std::uint64_t number) { return number << 32 | (~number & 0xffff'ffff); };
  const auto cell = open("swap", word(0));
  ASSERT_OK(cell);
  std::atomic<bool> is_over{false};
  std::jthread reading([&] {
    const auto mine = connect(client_options(*server_));
    ASSERT_TRUE(mine);
    const auto read_cell = mine->open_cell(key_of("swap"), 0);
    ASSERT_OK(read_cell);
    std::uint64_t last = 0, there = 0;
    do {
      ASSERT_EQ(mine->read(*read_cell, there), Status::kOk);
      ASSERT_EQ(there, word(there >> 32));
      ASSERT_GE(there >> 32, last);
      last = there >> 32;
    } while (!is_over);
    EXPECT_EQ(last <= kClients * each, true);
  });
  in_clients(kClients, [&](Client& mine, unsigned) {
    const auto swapped = mine.open_cell(key_of("swap"), 0);
    ASSERT_OK(swapped);
    std::uint64_t seen = word(0);
    for (std::uint64_t i = 0; i < each; ++i) {
      for (std::uint64_t expected = seen;; expected = seen) {
        ASSERT_EQ(mine.compare_swap(*swapped, expected, word((expected >> 32) + 1), seen), Status::kOk);
        if (seen == expected) break;
      }
    }
  });
  is_over = true;
  reading.join();
  EXPECT_EQ(value(*cell), word(kClients * each));
}

TEST_F(KvCells, CostTheServerNothing) {
  begin();
  const auto cell = open("cell");
  ASSERT_OK(cell);
  const std::uint64_t count = rounds(2000);
  // What the opening's messages left behind has come and gone by now.
  ASSERT_EQ(client_->put(key_of("k"), bytes_of("v")).status, Status::kOk);
  const verbena::Counters before = server_->counters(), mine = client_->counters();
  std::uint64_t old = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    ASSERT_EQ(client_->fetch_add(*cell, 1, old), Status::kOk);
    ASSERT_EQ(client_->compare_swap(*cell, i + 1, i + 1, old), Status::kOk);
    ASSERT_EQ(client_->read(*cell, old), Status::kOk);
    ASSERT_EQ(old, i + 1);
  }
  const verbena::Counters after = server_->counters();
  // A device's peers look after each other now and then.
  EXPECT_LE(after.work_requests - before.work_requests, count / 10);
  EXPECT_LE(after.completions - before.completions, count / 10);
  EXPECT_GE(client_->counters().work_requests - mine.work_requests, 3 * count);
}

// Deadlines pass everywhere in operations that are executed late and whose completions are held back. What times out
// may have happened or not; what does not has the right result: the words of the two cells are far apart, and on queues
// of their own, which overtake each other, so a result that came late into the place of another operation's would show.
TEST(KvCellsLate, NoLateResultMeetsAnotherOperation) {
  VERBENA_SKIP_ON_A_DEVICE("chaos is the soft NIC's");
  ServerOptions options = server_of_cells(100);
  options.workers = 2;
  const auto server = start(options);
  ASSERT_TRUE(server);
  std::array<std::string, 2> keys{"a", "a"};
  {
    const auto looking = connect(client_options(*server));
    ASSERT_TRUE(looking);
    const auto first = looking->open_cell(key_of(keys[0]), 0);
    ASSERT_OK(first);
    for (auto other = first; other->worker == first->worker;) {
      ASSERT_LT(keys[1].size(), 50U);
      keys[1] += 'b';
      other = looking->open_cell(key_of(keys[1]), std::uint64_t{1} << 40);
      ASSERT_OK(other);
    }
  }
  constexpr std::uint64_t kFar = std::uint64_t{1} << 40;
  std::unique_ptr<Client> client;
  std::array<Cell, 2> cells;
  std::array<std::uint64_t, 2> done{}, unknown{}, next{0, kFar};
  constexpr unsigned kCalls = 3000;
  for (unsigned i = 0; i < kCalls; ++i) {
    if (i % 500 == 0) {
      const test::LateNics late(i);
      client = connect(client_options(*server));
      ASSERT_TRUE(client);
      for (std::size_t c = 0; c < cells.size(); ++c) {
        const auto cell = client->open_cell(key_of(keys[c]), 0);
        ASSERT_OK(cell);
        cells[c] = *cell;
      }
    }
    SCOPED_TRACE(i);
    const std::size_t c = i % 2;
    std::uint64_t old = 7;
    const Deadline deadline = i % 3 == 0 ? Deadline::after(20s) : Deadline::after(std::chrono::microseconds(i % 7));
    const Status status = i % 5 == 0   ? client->read(cells[c], old, deadline)
                          : i % 5 == 1 ? client->compare_swap(cells[c], ~std::uint64_t{0}, 0, old, deadline)
                                       : client->fetch_add(cells[c], 1, old, deadline);
    const bool adds = i % 5 > 1;
    if (status == Status::kTimedOut) {
      ASSERT_EQ(old, 0u);
      unknown[c] += adds ? 1 : 0;
      continue;
    }
    ASSERT_EQ(status, Status::kOk);
    // Those that timed out may happen later, but once; and what happened stays.
    ASSERT_GE(old, next[c]);
    ASSERT_LE(old, c * kFar + done[c] + unknown[c]);
    if (adds) ++done[c];
    next[c] = old + (adds ? 1 : 0);
  }
  EXPECT_EQ(client->connection_error().status(), Status::kOk);
  for (std::size_t c = 0; c < cells.size(); ++c) {
    EXPECT_GT(unknown[c], 0u);
    EXPECT_GT(done[c], 0u);
    std::uint64_t there = 0;
    ASSERT_EQ(client->read(cells[c], there, Deadline::after(20s)), Status::kOk);
    EXPECT_GE(there, c * kFar + done[c]);
    EXPECT_LE(there, c * kFar + done[c] + unknown[c]);
  }
}

TEST_F(KvCells, EndWithTheServer) {
  begin();
  using Call = std::function<Status(Client&, const Cell&)>;
  const std::array<Call, 4> calls{[](Client& of, const Cell& cell) {
                                    std::uint64_t old = 0;
                                    return of.fetch_add(cell, 1, old);
                                  },
                                  [](Client& of, const Cell& cell) {
                                    std::uint64_t old = 0;
                                    return of.compare_swap(cell, 1, 1, old);
                                  },
                                  [](Client& of, const Cell& cell) {
                                    std::uint64_t old = 0;
                                    return of.read(cell, old);
                                  },
                                  [](Client& of, const Cell&) {
                                    const auto opened = of.open_cell(key_of("cell"), 1);
                                    return opened ? Status::kOk : opened.error().status();
                                  }};
  std::atomic<unsigned> running{0};
  std::jthread stopping([&] {
    if (eventually([&] { return running == calls.size(); })) server_->stop();
  });
  in_clients(static_cast<unsigned>(calls.size()), [&](Client& mine, unsigned number) {
    const auto cell = mine.open_cell(key_of("cell"), 1);
    ASSERT_OK(cell);
    ++running;
    Status status = Status::kOk;
    EXPECT_TRUE(eventually([&] { return (status = calls[number](mine, *cell)) != Status::kOk; })) << number;
    EXPECT_EQ(status, Status::kClosed) << number << ": " << to_string(status);
    EXPECT_EQ(mine.connection_error().status(), Status::kClosed);
    for (const Call& call : calls) EXPECT_EQ(call(mine, *cell), Status::kClosed);
  });
}

}  // namespace
}  // namespace verbena::kv
