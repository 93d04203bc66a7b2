// The store, sealed: a client in this thread, the server's worker in another, which is counted with it.
#include "../kv/model.hpp"
#include "sealed.hpp"

#include <verbena/coroutines_kv.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;

class SealedStore : public testing::Test {
 protected:
  static constexpr std::size_t kLarge = 300'000;

  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    ServerOptions options = small_server();
    // Neither side sleeps: that would cost system calls by right.
    options.wait = WaitPolicy::kSpin;
    options.max_cells = 10;
    server_ = start(options);
    ASSERT_TRUE(server_);
    ClientOptions mine = client_options(*server_);
    mine.wait = WaitPolicy::kSpin;
    // On one cpu its worker waits by events, and whoever polls keeps it from the others.
    const std::string described = server_->description();
    if (const std::size_t at = described.find("by the policy `event`"); at != std::string::npos) {
      test::why_calls_are_due = "its worker waits " + described.substr(at);
      std::printf("system calls of the store are not judged: %s\n", test::why_calls_are_due.c_str());
      mine.wait = WaitPolicy::kEvent;
    }
    client_ = connect(mine);
    ASSERT_TRUE(client_);
    registered_ = client_->allocate(kLarge);
    ASSERT_EQ(registered_.size(), kLarge);
  }
  void TearDown() override { test::why_calls_are_due.clear(); }
  [[nodiscard]] std::uint64_t rounds(std::uint64_t count) const {
    return test::device_under_test() == nullptr ? count : count / 50 + 1;
  }
  [[nodiscard]] bool put(std::size_t bytes) {
    return client_->put(key_, std::span(memory_).first(bytes)).status == Status::kOk;
  }
  [[nodiscard]] bool get(std::span<std::byte> out, std::size_t bytes) {
    const Outcome outcome = client_->get(key_, out);
    return outcome.status == Status::kOk && outcome.length == bytes;
  }
  /// Polls until `count` operations are complete, all of them well.
  [[nodiscard]] bool collect(std::size_t count) {
    const Deadline deadline = Deadline::after(std::chrono::seconds{20});
    for (std::size_t done = 0; done < count;) {
      const std::size_t there = client_->poll(completions_);
      for (std::size_t i = 0; i < there; ++i)
        if (completions_[i].outcome.status != Status::kOk) return false;
      done += there;
      if (there == 0 && deadline.passed()) return false;
    }
    return true;
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
  std::span<std::byte> registered_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kLarge);
  std::array<Completion, 64> completions_{};
  Key key_ = key_of("key");
};

TEST_F(SealedStore, SmallValues) {
  for (const std::size_t bytes : {0u, 8u, 64u, 4095u}) {
    SCOPED_TRACE(bytes);
    test::expect_sealed("PUT", rounds(1000), [&] { return put(bytes); });
    test::expect_sealed("GET", rounds(1000), [&] { return get(memory_, bytes); });
  }
}

TEST_F(SealedStore, LargeValues) {
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{100'000}, kLarge}) {
    SCOPED_TRACE(bytes);
    test::expect_sealed("PUT of any memory", rounds(30), [&] { return put(bytes); });
    test::expect_sealed("GET into any memory", rounds(30), [&] { return get(memory_, bytes); });
    test::expect_sealed("PUT of registered memory", rounds(30),
                        [&] { return client_->put(key_, registered_.first(bytes)).status == Status::kOk; });
    test::expect_sealed("GET into registered memory", rounds(30), [&] { return get(registered_, bytes); });
  }
}

// From the first call of a client on.
TEST_F(SealedStore, ValuesThatGrow) {
  test::expect_unallocated_as_it_grows("PUT and GET", kLarge, [&](std::size_t bytes) {
    return put(bytes) && get(memory_, bytes) && client_->put(key_, registered_.first(bytes)).status == Status::kOk &&
           get(registered_, bytes);
  });
}

TEST_F(SealedStore, CompareAndSwap) {
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{100'000}}) {
    SCOPED_TRACE(bytes);
    const std::span<const std::byte> value = std::span(memory_).first(bytes);
    Outcome last = client_->put(key_, value);
    test::expect_sealed("CAS", rounds(50),
                        [&] { return (last = client_->cas(key_, last.version, value)).status == Status::kOk; });
    test::expect_sealed("CAS that loses", rounds(50), [&] {
      return client_->cas(key_, last.version + 1000, value).status == Status::kVersionMismatch;
    });
  }
}

TEST_F(SealedStore, Cells) {
  const auto made = client_->open_cell(key_of("cell"), 0);  // The first one makes the window usable.
  ASSERT_TRUE(made) << made.error().text();
  const Cell cell = *made;
  std::uint64_t old = 0;
  test::expect_sealed("fetch-add", rounds(1000), [&] { return client_->fetch_add(cell, 1, old) == Status::kOk; });
  test::expect_sealed("compare-and-swap", rounds(1000),
                      [&] { return client_->compare_swap(cell, old, old + 1, old) == Status::kOk; });
  test::expect_sealed("read", rounds(1000), [&] { return client_->read(cell, old) == Status::kOk; });
  test::expect_sealed("opening it again", rounds(1000),
                      [&] { return client_->open_cell(key_of("cell"), 0).has_value(); });
}

TEST_F(SealedStore, KeysThatComeAndGo) {
  std::string name = "k0";
  test::expect_sealed("PUT and DELETE", rounds(1000), [&] {
    name[1] = static_cast<char>('0' + (name[1] - '0' + 1) % 10);
    return client_->put(key_of(name), std::span(memory_).first(100)).status == Status::kOk &&
           client_->erase(key_of(name)).status == Status::kOk;
  });
  test::expect_sealed("DELETE of nothing", rounds(1000),
                      [&] { return client_->erase(key_of(name)).status == Status::kNotFound; });
  test::expect_sealed("GET of nothing", rounds(1000),
                      [&] { return client_->get(key_of(name), memory_).status == Status::kNotFound; });
}

TEST_F(SealedStore, Pipelined) {
  test::expect_sealed("32 small PUTs", rounds(100), [&] {
    for (std::uint64_t i = 0; i < 32; ++i)
      if (client_->start_put(key_, std::span(memory_).first(64), i) != Status::kOk) return false;
    return collect(32);
  });
  test::expect_sealed("32 small GETs", rounds(100), [&] {
    for (std::uint64_t i = 0; i < 32; ++i)
      if (client_->start_get(key_, std::span(memory_).subspan(i * 64, 64), i) != Status::kOk) return false;
    return collect(32);
  });
  test::expect_sealed("8 large PUTs", rounds(10), [&] {
    for (std::uint64_t i = 0; i < 8; ++i)
      if (client_->start_put(key_, registered_, i) != Status::kOk) return false;
    return collect(8);
  });
  test::expect_sealed("8 large GETs", rounds(10), [&] {
    // Half of them through the staging memory, in turn.
    for (std::uint64_t i = 0; i < 8; ++i)
      if (client_->start_get(key_, i % 2 == 0 ? registered_ : std::span(memory_), i) != Status::kOk) return false;
    return collect(8);
  });
}

TEST_F(SealedStore, EveryLookupAndBatch) {
  constexpr std::size_t kCount = 40;
  std::array<std::string, kCount> keys;
  std::array<PutRequest, kCount> puts;
  std::array<GetRequest, kCount> gets;
  for (std::size_t i = 0; i < kCount; ++i) {
    keys[i] = "key" + std::to_string(i);
    puts[i] = {.key = key_of(keys[i]), .value = std::span(memory_).first(i * 9)};
    gets[i] = {.key = key_of(keys[i]), .out = std::span(memory_).subspan(i * 400, 400)};
  }
  const auto all_well = [](const auto& requests) {
    return std::ranges::all_of(requests, [](const auto& one) { return one.outcome.status == Status::kOk; });
  };
  for (const Lookup lookup : {Lookup::kMessage, Lookup::kOneSided}) {
    for (const std::size_t known : {std::size_t{0}, std::size_t{64}}) {
      SCOPED_TRACE(testing::Message() << to_string(lookup) << ", " << known << " locations known");
      ClientOptions mine = client_options(*server_);
      mine.wait = test::why_calls_are_due.empty() ? WaitPolicy::kSpin : WaitPolicy::kEvent;
      mine.lookup = lookup;
      mine.known_locations = known;
      client_ = connect(mine);
      ASSERT_TRUE(client_);
      test::expect_sealed("batch of PUTs", rounds(100), [&] {
        client_->put(puts);
        return all_well(puts);
      });
      test::expect_sealed("batch of GETs", rounds(100), [&] {
        client_->get(gets);
        return all_well(gets);
      });
      test::expect_sealed("GET", rounds(500), [&] { return client_->get(key_of("key9"), memory_).length == 81; });
    }
  }
}

coroutine::Task<Outcome> awaited_get(coroutine::Loop& /*loop*/, Client& client, Key key, std::span<std::byte> out) {
  co_return co_await coroutine::get(client, key, out);
}
coroutine::Task<Outcome> awaited_put(coroutine::Loop& /*loop*/, Client& client, Key key,
                                     std::span<const std::byte> value) {
  co_return co_await coroutine::put(client, key, value);
}
coroutine::Task<Status> awaited_adds(coroutine::Loop& /*loop*/, Client& client, Cell cell) {
  const auto old = co_await coroutine::fetch_add(client, cell, 1);
  if (!old) co_return old.error();
  const auto now = co_await coroutine::read(client, cell);
  co_return now && *now == *old + 1 ? Status::kOk : Status::kProtocol;
}
coroutine::Task<Status> put_in_vain(coroutine::Loop& loop, Client& client, Key key, std::span<const std::byte> value) {
  co_return (co_await awaited_put(loop, client, key, value)).status;
}

TEST_F(SealedStore, Awaited) {
  auto made = coroutine::Loop::make({.frames = {.frames = 16, .frame_bytes = 4096}});
  ASSERT_TRUE(made) << made.error().text();
  coroutine::Loop& loop = **made;
  const auto limit = [] { return Deadline::after(std::chrono::seconds{20}); };
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{100'000}}) {
    SCOPED_TRACE(bytes);
    test::expect_sealed("awaited PUT", rounds(100), [&] {
      return sync_wait(loop, awaited_put(loop, *client_, key_, registered_.first(bytes)), limit()).status ==
             Status::kOk;
    });
    test::expect_sealed("awaited GET", rounds(100), [&] {
      return sync_wait(loop, awaited_get(loop, *client_, key_, memory_), limit()).length == bytes;
    });
  }
  test::expect_sealed("awaited and dropped", rounds(100), [&] {
    for (int i = 0; i < 4; ++i)
      if (loop.spawn(put_in_vain(loop, *client_, key_, registered_.first(64))) != Status::kOk) return false;
    loop.drop_all();
    return client_->settle(limit()) == Status::kOk;
  });
  const auto cell = client_->open_cell(key_of("awaited cell"), 0);
  ASSERT_TRUE(cell) << cell.error().text();
  test::expect_sealed("awaited atomics", rounds(500),
                      [&] { return sync_wait(loop, awaited_adds(loop, *client_, *cell), limit()) == Status::kOk; });
}

TEST_F(SealedStore, Statistics) {
  test::expect_sealed("of the server, by message", rounds(100), [&] {
    return client_->server_statistics(Deadline::after(std::chrono::seconds{20})).has_value();
  });
  test::expect_sealed("of the server, here", 100, [&] { return server_->statistics().clients == 1; });
}

}  // namespace
}  // namespace verbena::kv
