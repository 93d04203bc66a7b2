// Listing, flushing and the reports of gets by READs, from a client's side.
#include "device.hpp"
#include "model.hpp"
#include "raw_client.hpp"
#include "result.hpp"

#include <verbena/kv.hpp>

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

namespace verbena::kv {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;

class KvScan : public testing::Test {
 protected:
  void begin(unsigned workers = 3) {
    ServerOptions options = small_server();
    options.workers = workers;
    options.max_cells = 4;
    server_ = start(options);
    ASSERT_TRUE(server_);
    client_ = connect(client_options(*server_));
    ASSERT_TRUE(client_);
  }
  void fill(std::string_view front, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name = std::string(front) + std::to_string(i);
      ASSERT_EQ(client_->put(key_of(name), bytes_of("value")).status, Status::kOk);
    }
  }
  /// All keys, and how often each came.
  std::map<std::string, unsigned> list(std::string_view prefix) {
    std::map<std::string, unsigned> keys;
    KeyPage page;
    for (KeyCursor cursor; !cursor.is_over;) {
      const Status status = client_->keys(key_of(prefix), cursor, page);
      EXPECT_EQ(status, Status::kOk) << error_detail();
      if (status != Status::kOk) break;
      std::uint32_t count = 0;
      for (const Key key : page) {
        ++keys[std::string(reinterpret_cast<const char*>(key.data()), key.size())];
        ++count;
      }
      EXPECT_EQ(count, page.count);
    }
    return keys;
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(KvScan, ListsTheKeysOfAllWorkers) {
  begin();
  EXPECT_TRUE(list("").empty());
  fill("a/", 2000);
  fill("b/", 300);
  ASSERT_OK(client_->open_cell(key_of("a/cell"), 0));
  const auto some = list("a/");
  EXPECT_EQ(some.size(), 2001u) << "a cell's key is a key";
  for (const auto& [key, times] : some) {
    EXPECT_TRUE(key.starts_with("a/")) << key;
    EXPECT_EQ(times, 1u) << key;
  }
  EXPECT_EQ(list("").size(), 2301u);
  EXPECT_TRUE(list("c").empty());
  EXPECT_EQ(server_->statistics().failures, 0u);
}

TEST_F(KvScan, ACursorIsForItsServerAndPrefix) {
  begin(2);
  fill("key", 5000);
  KeyCursor cursor;
  KeyPage page;
  ASSERT_EQ(client_->keys(key_of("key"), cursor, page), Status::kOk);
  ASSERT_FALSE(cursor.is_over);
  ASSERT_NE(cursor.seal, 0u) << "it is in the middle of a worker";
  const KeyCursor good = cursor;
  const auto expect_refused = [&](KeyCursor other, std::string_view prefix = "key") {
    const KeyCursor before = other;
    EXPECT_EQ(client_->keys(key_of(prefix), other, page), Status::kBadArgument);
    EXPECT_NE(std::string_view(error_detail()).find("begin with an empty one"), std::string_view::npos)
        << error_detail();
    EXPECT_EQ(page.count, 0u);
    EXPECT_EQ(other.place, before.place) << "a failure leaves it as it is";
  };
  for (const auto spoil : {+[](KeyCursor& at) { ++at.place; }, +[](KeyCursor& at) { at.place = ~std::uint64_t{0}; },
                           +[](KeyCursor& at) { ++at.moves; }, +[](KeyCursor& at) { at.seal = 0; },
                           +[](KeyCursor& at) { at.seal += 2; }, +[](KeyCursor& at) { at.worker ^= 1; },
                           +[](KeyCursor& at) { at.worker = 2; }, +[](KeyCursor& at) { at.worker = ~0u; }}) {
    KeyCursor bad = good;
    spoil(bad);
    expect_refused(bad);
  }
  expect_refused(good, "ke");
  expect_refused(good, "");
  EXPECT_EQ(client_->connection_error().status(), Status::kOk) << "the connection goes on";
  ASSERT_EQ(client_->keys(key_of("key"), cursor, page), Status::kOk) << "a copy of it still works";
  const auto elsewhere = start(small_server());
  ASSERT_TRUE(elsewhere);
  client_ = connect(client_options(*elsewhere));
  ASSERT_TRUE(client_);
  KeyCursor of_worker_0 = good;
  of_worker_0.worker = 0;
  expect_refused(of_worker_0);
}

TEST_F(KvScan, ArgumentsAreChecked) {
  begin(1);
  KeyCursor cursor;
  KeyPage page;
  std::uint64_t erased = 7;
  const std::string longest(kMaxKeyBytes, 'k'), longer(kMaxKeyBytes + 1, 'k');
  EXPECT_EQ(client_->keys(key_of(longer), cursor, page), Status::kBadKey);
  EXPECT_EQ(client_->flush(key_of(longer), erased), Status::kBadKey);
  EXPECT_EQ(erased, 0u);
  ASSERT_EQ(client_->put(key_of(longest), bytes_of("v")).status, Status::kOk);
  EXPECT_EQ(list(longest).size(), 1u);
  cursor.is_over = true;
  EXPECT_EQ(client_->keys(key_of(""), cursor, page), Status::kOk) << "and nothing more comes";
  EXPECT_EQ(page.count, 0u);
  ClientOptions options = client_options(*server_);
  options.read_only = true;
  const auto reader = connect(options);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->flush(key_of(""), erased), Status::kDenied);
  cursor = {};
  EXPECT_EQ(reader->keys(key_of(""), cursor, page), Status::kOk);
  server_->stop();
  cursor = {};
  EXPECT_NE(client_->keys(key_of(""), cursor, page), Status::kOk);
  EXPECT_NE(client_->connection_error().status(), Status::kOk);
}

// Others put and erase keys of their own, and replace those that stay.
TEST_F(KvScan, SeesAllThatStaysWhileOthersChange) {
  begin(2);
  constexpr std::size_t kStay = 1500;
  fill("stays", kStay);
  std::atomic<bool> is_over{false};
  std::jthread other([&] {
    const auto writer = connect(client_options(*server_));
    for (std::size_t i = 0; writer && !is_over; ++i) {
      const std::string mine = "goes" + std::to_string(i % 6000), stays = "stays" + std::to_string(i % kStay);
      EXPECT_EQ(writer->put(key_of(mine), bytes_of("v")).status, Status::kOk);
      EXPECT_EQ(writer->put(key_of(stays), bytes_of("w")).status, Status::kOk);
      if (i % 2 != 0) continue;
      EXPECT_EQ(writer->erase(key_of(mine)).status, Status::kOk);
    }
  });
  for (int round = 0; round < 10; ++round) {
    const auto seen = list("stays");
    EXPECT_EQ(seen.size(), kStay);
  }
  is_over = true;
}

TEST_F(KvScan, FlushErasesKeysOfAllWorkersButNoCells) {
  begin();
  fill("a/", 3000);
  fill("b/", 100);
  ASSERT_OK(client_->open_cell(key_of("a/cell"), 5));
  std::uint64_t erased = 0;
  EXPECT_EQ(client_->flush(key_of("a/"), erased), Status::kOk) << error_detail();
  EXPECT_EQ(erased, 3000u);
  EXPECT_EQ(list("").size(), 101u);
  std::array<std::byte, 64> out{};
  EXPECT_EQ(client_->get(key_of("a/17"), out).status, Status::kNotFound) << "a known location is no more";
  EXPECT_EQ(client_->get(key_of("b/17"), out).status, Status::kOk);
  EXPECT_EQ(client_->flush(key_of("a/"), erased), Status::kOk);
  EXPECT_EQ(erased, 0u);
  EXPECT_EQ(client_->flush({}, erased), Status::kOk);
  EXPECT_EQ(erased, 100u);
  EXPECT_TRUE(eventually([&] { return server_->statistics().items == 1; })) << "workers count after they reply";
}

TEST_F(KvScan, FlushEndsWithItsDeadline) {
  begin(1);
  fill("k", 5000);
  std::uint64_t erased = 0;
  EXPECT_EQ(client_->flush({}, erased, Deadline::now()), Status::kTimedOut);
  EXPECT_LT(erased, 5000u) << "the rest is there";
  EXPECT_EQ(client_->flush({}, erased), Status::kOk);
  EXPECT_TRUE(eventually([&] { return server_->statistics().items == 0; })) << "workers count after they reply";
}

// --- a full store

TEST_F(KvScan, AFullStoreSaysWhatFillsIt) {
  ServerOptions options = small_server();
  options.memory_bytes = std::size_t{8} << 20;
  options.max_value_bytes = std::size_t{1} << 20;
  options.max_cells = 4;
  server_ = start(options);
  ASSERT_TRUE(server_);
  client_ = connect(client_options(*server_));
  ASSERT_TRUE(client_);
  ASSERT_OK(client_->open_cell(key_of("cell"), 0));
  const auto fill = [&](Client& client, std::size_t bytes) {
    const std::string value(bytes, 'v');
    for (std::size_t i = 0;; ++i) {
      const Status status =
          client.put(key_of("k" + std::to_string(bytes) + "/" + std::to_string(i)), bytes_of(value)).status;
      if (status != Status::kOk) return status;
    }
  };
  const auto expect_told = [](const std::vector<std::string>& words) {
    for (const std::string& word : words)
      EXPECT_NE(std::string_view(error_detail()).find(word), std::string_view::npos)
          << word << " is not in: " << error_detail();
  };
  ASSERT_EQ(fill(*client_, 1 << 20), Status::kStoreFull);
  expect_told({"1048576 bytes", "of 8.0 MiB", "7.0, in blocks of up to 1048576 bytes", "grace period 0.0",
               "1 of its items are cells", "raise memory_bytes"});
  ASSERT_EQ(fill(*client_, 1000), Status::kStoreFull) << "a small value, which no large message carries";
  expect_told({"a value of 1000 bytes"});
  std::array<PutRequest, 1> one{PutRequest{.key = key_of("one"), .value = bytes_of("v"), .outcome = {}}};
  const std::string longer(100'000, 'l');
  one[0].value = bytes_of(longer);
  client_->put(one);
  EXPECT_EQ(one[0].outcome.status, Status::kStoreFull);
  expect_told({"a value of 100000 bytes"});
}

TEST_F(KvScan, OnlyWhoSeesStatisticsIsToldWhatFillsAStore) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "a device cannot tell users";
  ServerOptions options = small_server();
  options.memory_bytes = std::size_t{1} << 20;
  options.max_value_bytes = std::size_t{100} << 10;
  options.max_items = 0;
  options.grants = {{.subject = {.uid = ::geteuid()}, .rights = Rights::kRead | Rights::kWrite}};
  server_ = start(options);
  ASSERT_TRUE(server_);
  client_ = connect(client_options(*server_));
  ASSERT_TRUE(client_);
  const std::string value(4000, 'v');
  Status status = Status::kOk;
  for (int i = 0; status == Status::kOk; ++i) status = client_->put(key_of(std::to_string(i)), bytes_of(value)).status;
  EXPECT_EQ(status, Status::kStoreFull);
  EXPECT_EQ(client_->erase({}).status, Status::kBadKey) << "whose detail stays";
  EXPECT_EQ(client_->put(key_of("one more"), bytes_of(value)).status, Status::kStoreFull);
  EXPECT_NE(std::string_view(error_detail()).find("key must have"), std::string_view::npos) << error_detail();
}

// --- hit rates

TEST_F(KvScan, GetsByReadsCountAsHits) {
  begin(2);
  fill("k", 100);
  std::array<std::byte, 64> out{};
  std::uint64_t gets = 0;
  const auto read_some = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i, ++gets)
      ASSERT_EQ(client_->get(key_of("k" + std::to_string(i % 100)), out).status, Status::kOk);
  };
  read_some(100);
  EXPECT_EQ(client_->get(key_of("none"), out).status, Status::kNotFound);
  const auto told = client_->server_statistics(Deadline::after(20s));
  ASSERT_OK(told);
  EXPECT_EQ(told->of(OperationKind::kRead).requests + told->hits, gets) << "a client tells before it asks";
  EXPECT_EQ(told->gets, told->hits + 1);
  EXPECT_NEAR(told->hit_rate(), 100.0 / 101, 1e-9);
  EXPECT_EQ(told->of(OperationKind::kRead).requests, client_->lookups().by_location + client_->lookups().by_index);
  if (client_->lookups().by_location == 0) GTEST_SKIP() << "no get went by READs";
  read_some(10'000);
  EXPECT_TRUE(eventually([&] { return server_->statistics().of(OperationKind::kRead).requests >= 8192; }))
      << "every 4096 of them by itself";
  client_.reset();
  EXPECT_TRUE(eventually([&] { return server_->statistics().clients == 0; }));
  const ServerStatistics last = server_->statistics();
  EXPECT_EQ(last.of(OperationKind::kRead).requests + last.hits, gets) << "the rest with the goodbye";
}

TEST_F(KvScan, ReportsThatAreLiesDoNotWrapAround) {
  begin(1);
  RawClient raw(server_->port());
  const auto report = [&](std::uint64_t reads) {
    return raw.say(RawClient::pack(wire::RequestHead{.op = wire::Op::kReads}, reads));
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(report(~std::uint64_t{0} - 1));
  const auto told = client_->server_statistics(Deadline::after(20s));
  ASSERT_OK(told);
  EXPECT_TRUE(eventually([&] {
    raw.poll();  // Chaos holds its messages back for some polls.
    return server_->statistics().of(OperationKind::kRead).requests == ~std::uint64_t{0};
  }));
  EXPECT_GE(server_->statistics().hit_rate(), 0.0);
  EXPECT_LE(server_->statistics().hit_rate(), 1.0);
  EXPECT_TRUE(raw.is_alive());
}

}  // namespace
}  // namespace verbena::kv
