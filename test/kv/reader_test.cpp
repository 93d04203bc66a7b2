// Gets by READs: what they take of memory that may be anything, what they find after changes by others, and batches.
#include "kv/reader.hpp"
#include "base/relax.hpp"
#include "chaos.hpp"
#include "fake_server.hpp"
#include "model.hpp"
#include "pattern.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace verbena::kv {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;

constexpr std::array kLookups{Lookup::kAuto, Lookup::kMessage, Lookup::kOneSided};

// --- known locations

TEST(KvLocations, KeepsWhatWasNotedLast) {
  Locations locations(64);
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t hash = random();
    EXPECT_EQ(locations.find(hash), 0u);
    locations.note(hash, 7);
    locations.note(hash, 8);
    EXPECT_EQ(locations.find(hash), 8u);
    if (i % 2 == 0) locations.forget(hash);
    EXPECT_EQ(locations.find(hash), i % 2 == 0 ? 0u : 8u);
  }
  // A set keeps its last four.
  std::vector<std::uint64_t> same;
  for (std::uint64_t i = 0; i < 6; ++i) same.push_back(i << 32 | 5 << 8);
  for (const std::uint64_t hash : same) locations.note(hash, hash | 1);
  for (std::size_t i = 0; i < same.size(); ++i) EXPECT_EQ(locations.find(same[i]), i < 2 ? 0 : same[i] | 1) << i;
}

TEST(KvLocations, MayBeNone) {
  Locations none(0);
  none.note(1, 2);
  EXPECT_EQ(none.find(1), 0u);
}

TEST(KvLookup, RefusesOptionsThatCannotWork) {
  const auto refused = [](auto&& spoil) {
    ClientOptions options = client_options(1);
    spoil(options);
    const auto client = Client::connect(options);
    return !client && client.error().status() == Status::kBadArgument;
  };
  EXPECT_TRUE(refused([](ClientOptions& o) { o.lookup = Lookup{3}; }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.known_locations = 2; }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.known_locations = 5000; }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.known_locations = std::size_t{1} << 25; }));
  EXPECT_STREQ(to_string(Lookup::kOneSided), "one-sided");
}

// --- memory that may be anything

class KvReads : public testing::Test {
 protected:
  void begin(Lookup lookup = Lookup::kOneSided) {
    ClientOptions options = client_options(server_.port());
    options.lookup = lookup;
    client_ = connect(options);
    ASSERT_TRUE(client_);
  }
  /// The value, or what came instead; the outcome is in outcome_.
  std::string get(std::string_view key, std::size_t room = 200'000) {
    std::vector<std::byte> out(room + 64, std::byte{0xEE});
    outcome_ = client_->get(key_of(key), std::span(out).first(room));
    EXPECT_TRUE(test::all_are(std::span(out).subspan(room), std::byte{0xEE})) << "beyond the caller's buffer";
    if (outcome_.status != Status::kOk) return to_string(outcome_.status);
    return {reinterpret_cast<const char*>(out.data()), outcome_.length};
  }
  /// What `call` adds to the counts.
  template <class Call>
  LookupCounters counted(Call&& call) {
    const LookupCounters before = client_->lookups();
    call();
    const LookupCounters after = client_->lookups();
    return {after.by_location - before.by_location, after.by_index - before.by_index,
            after.by_message - before.by_message,   after.stale - before.stale,
            after.retries - before.retries,         after.overtaken - before.overtaken};
  }
  void clear() { std::ranges::fill(server_.memory(), std::byte{0}); }

  static constexpr std::uint64_t kLine = 64;  // Behind the index.
  FakeServer server_;
  std::unique_ptr<Client> client_;
  Outcome outcome_;
};

TEST_F(KvReads, FindsItemsInEitherBucket) {
  begin();
  for (const bool in_first : {true, false}) {
    for (const std::size_t length : {0u, 1u, 64u, 4095u}) {
      clear();
      const std::string key = "key" + std::to_string(length) + (in_first ? "1" : "2");
      const std::string value(length, 'v');
      const std::uint64_t entry = server_.make(kLine, key_of(key), value, 9);
      (in_first ? server_.first(key_of(key)) : server_.second(key_of(key)))[kBucketEntries - 1] = entry;
      const LookupCounters by_index = counted([&] { EXPECT_EQ(get(key), value); });
      EXPECT_EQ(outcome_.version, 9u);
      EXPECT_EQ(by_index.by_index, 1u);
      const LookupCounters by_location = counted([&] { EXPECT_EQ(get(key), value); });
      EXPECT_EQ(by_location.by_location, 1u);
      if (length != 0) {
        EXPECT_EQ(get(key, length - 1), "buffer too small");
        EXPECT_EQ(outcome_.length, length);
        EXPECT_EQ(outcome_.version, 9u);
      }
    }
  }
  EXPECT_EQ(server_.asked(), 0u);
}

TEST_F(KvReads, LargeValuesWithAndWithoutAChecksum) {
  begin();
  const std::string value(150'000, 'L');
  const auto as_bytes = bytes_of(value);
  constexpr std::uint64_t kOffset = 65536;
  server_.first(key_of("k"))[0] = server_.make(kLine, key_of("k"), value, 9, 0, {.offset = kOffset});
  EXPECT_TRUE(get("k") == value);
  EXPECT_EQ(get("k", 4096), "buffer too small");
  EXPECT_EQ(outcome_.length, value.size());
  (void)server_.make(kLine, key_of("k"), value, 10, kHasValueChecksum,
                     {.offset = kOffset, .checksum = checksum_of_value(as_bytes)});
  EXPECT_TRUE(get("k") == value);
  EXPECT_EQ(outcome_.version, 10u);
  EXPECT_EQ(server_.asked(), 0u);
  server_.memory()[kOffset + 99'999] ^= std::byte{1};
  EXPECT_EQ(get("k"), FakeServer::kByMessage) << "the checksum is looked at";
  (void)server_.make(kLine, key_of("k"), value, 11, 0, {.offset = FakeServer::kBytes - value.size() + 1});
  EXPECT_EQ(get("k"), FakeServer::kByMessage) << "not inside the window";
  (void)server_.make(kLine, key_of("k"), value, 12, 0, {.offset = ~std::uint64_t{0} - 100});
  EXPECT_EQ(get("k"), FakeServer::kByMessage);
}

TEST_F(KvReads, AnyFlippedBitOfAnItemIsNoticed) {
  begin();
  const std::string value = "the value";
  std::uint64_t& entry = server_.first(key_of("k"))[0];
  entry = server_.make(kLine, key_of("k"), value, 9);
  const std::size_t bytes = ItemShape{.value_length = value.size(), .key_length = 1}.bytes();
  ASSERT_EQ(get("k"), value);
  for (std::size_t at = 0; at < bytes; ++at) {
    const bool is_servers_own = at >= offsetof(ItemHeader, server) && at < offsetof(ItemHeader, checksum);
    server_.at(kLine)[at] ^= std::byte{4};
    EXPECT_EQ(get("k"), is_servers_own ? value : FakeServer::kByMessage) << at;
    server_.at(kLine)[at] ^= std::byte{4};
  }
  EXPECT_EQ(get("k"), value);
}

TEST_F(KvReads, AnotherKeysItemIsNotTheKeys) {
  begin();
  // A location that another key has now.
  const std::uint64_t entry = server_.make(kLine, key_of("a"), "of a", 9);
  server_.first(key_of("a"))[3] = entry;
  ASSERT_EQ(get("a"), "of a");
  (void)server_.make(kLine, key_of("b"), "of b", 10);
  EXPECT_EQ(counted([&] { EXPECT_EQ(get("a"), FakeServer::kByMessage); }).stale, 1u);
  // An entry whose tag is the same comes before the right one.
  Entry same = Entry::unpack(entry);
  same.line = 2 * kLine;
  (void)server_.make(2 * kLine, key_of("a"), "of a, the right one", 11);
  server_.first(key_of("a"))[5] = same.pack();
  const LookupCounters found = counted([&] { EXPECT_EQ(get("a"), "of a, the right one"); });
  EXPECT_EQ(found.by_index, 1u);
}

TEST_F(KvReads, WhatIsNotLiveIsLookedUpAgainAndThenAskedFor) {
  begin();
  server_.first(key_of("k"))[0] = server_.make(kLine, key_of("k"), "value", 9);
  for (const std::uint64_t state : {state_word(ItemState::kSuperseded, 9), state_word(ItemState::kBuilding, 9),
                                    state_word(ItemState{9}, 9), state_word(ItemState::kLive, 0)}) {
    server_.word(kLine, 0) = state_word(ItemState::kLive, 9);
    ASSERT_EQ(get("k"), "value");  // Its location is known now.
    server_.word(kLine, 0) = state;
    const LookupCounters counts = counted([&] { EXPECT_EQ(get("k"), FakeServer::kByMessage); });
    EXPECT_EQ(counts.stale, 1u);
    EXPECT_EQ(counts.retries, Reader::kMostLookups - 1);
    EXPECT_EQ(counts.overtaken, 1u);
    EXPECT_EQ(counts.by_message, 1u);
  }
}

TEST_F(KvReads, AnEntryThatNoServerMakesIsNotFollowed) {
  begin();
  const std::uint32_t tag = tag_of(FakeServer::hash(key_of("k")));
  const std::uint64_t last = FakeServer::kBytes / kLineBytes;
  for (const Entry& entry :
       {Entry{.tag = tag, .lines = 0, .line = 1}, Entry{.tag = tag, .lines = 127, .line = 0},
        Entry{.tag = tag, .lines = 2, .line = last - 1}, Entry{.tag = tag, .lines = 1, .line = last},
        Entry{.tag = tag, .lines = 1, .line = (std::uint64_t{1} << 34) - 1}}) {
    clear();
    EXPECT_EQ(Part({.address = 4096, .length = FakeServer::kBytes}).item(entry.pack()).length, 0u);
    server_.first(key_of("k"))[0] = entry.pack();
    EXPECT_EQ(get("k"), FakeServer::kByMessage);
    if (entry.lines == 0) continue;  // As a location that is no reply at all.
    server_.tell(entry.pack());
    EXPECT_EQ(get("k"), FakeServer::kByMessage);
    EXPECT_EQ(get("k"), FakeServer::kByMessage);
    server_.tell(0);
    EXPECT_EQ(get("k"), FakeServer::kByMessage);
  }
}

// A large value whose memory has another use while it is read: its item is looked at again, after the value.
TEST_F(KvReads, AValueThatIsOverwrittenMeanwhileIsNotTaken) {
  begin();
  constexpr std::size_t kLength = 150'000, kOffset = 65536;
  constexpr std::uint64_t kFirst = 1000;
  const Key key = key_of("k");
  const auto letter_of = [](std::uint64_t version) { return static_cast<char>('a' + version % 26); };
  const auto publish = [&](std::uint64_t version) {
    return server_.make(kLine, key, std::string(kLength, letter_of(version)), version, 0, {.offset = kOffset});
  };
  server_.first(key)[0] = publish(kFirst);
  std::atomic<bool> is_over{false};
  std::jthread writer([&] {
    for (std::uint64_t version = kFirst + 1; !is_over; ++version) {
      std::atomic_ref(server_.word(kLine, 0)).store(state_word(ItemState::kSuperseded, version - 1));
      (void)publish(version);
      for (std::uint64_t i = version % 4 * 20'000; i != 0 && !is_over; --i) relax();
    }
  });
  const int calls = test::in_chaos() || !test::is_soft_under_test() ? 100 : 2000;
  for (int i = 0; i < calls && !HasFailure(); ++i) {
    const std::string value = get("k");
    if (value == FakeServer::kByMessage) continue;
    EXPECT_EQ(outcome_.length, kLength);
    EXPECT_TRUE(value == std::string(kLength, letter_of(outcome_.version))) << "version " << outcome_.version;
  }
  is_over = true;
  writer.join();
  (void)publish(5);
  EXPECT_TRUE(get("k") == std::string(kLength, letter_of(5)));
}

TEST_F(KvReads, RepliesTellLocations) {
  for (const Lookup lookup : {Lookup::kAuto, Lookup::kOneSided}) {
    SCOPED_TRACE(to_string(lookup));
    FakeServer server;
    ClientOptions options = client_options(server.port());
    options.lookup = lookup;
    client_ = connect(options);
    ASSERT_TRUE(client_);
    server.tell(server.make(kLine, key_of("k"), "by location", 9));
    EXPECT_EQ(get("k"), FakeServer::kByMessage);
    EXPECT_EQ(counted([&] { EXPECT_EQ(get("k"), "by location"); }).by_location, 1u);
    EXPECT_EQ(server.asked(), 1u);
  }
}

TEST_F(KvReads, ByMessageNothingIsRead) {
  begin(Lookup::kMessage);
  const std::uint64_t entry = server_.make(kLine, key_of("k"), "value", 9);
  server_.first(key_of("k"))[0] = entry;
  server_.tell(entry);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get("k"), FakeServer::kByMessage);
  EXPECT_EQ(client_->lookups().by_message, 3u);
}

// An index and items of random words, many of which are nearly right; one key at a time, and in batches.
TEST_F(KvReads, HostileBytesAreNeverTaken) {
  begin();
  std::mt19937_64 random(7);
  const int rounds = test::in_chaos() || !test::is_soft_under_test() ? 60 : 600;
  for (int round = 0; round < rounds; ++round) {
    auto* const words = reinterpret_cast<std::uint64_t*>(server_.memory().data());
    constexpr std::size_t kWords = 3 * 4096 / 8;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = random() % 4 == 0 ? random() : random() % 256;
    std::array<std::string, 8> keys;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] = "key" + std::to_string(random());
      const Key key = key_of(keys[i]);
      const std::uint64_t line = kLine + 8 * i;
      const bool is_large = random() % 2 == 0;
      Entry entry = Entry::unpack(server_.make(line, key, std::string(is_large ? 5000 : random() % 400, 'v'), 5, 0,
                                               {.offset = random() % 2 == 0 ? 100'000 : random()}));
      // Something of it is wrong.
      switch (random() % 4) {
        case 0: server_.word(line, 0) = random() % 2 == 0 ? random() : random() % 65536 | 2; break;
        case 1: server_.word(line, 2) ^= std::uint64_t{1} << random() % 64; break;
        case 2: server_.word(line, 3) ^= std::uint64_t{1} << random() % 64; break;
        case 3: entry.line = random() >> (64 - Entry::kLineBits); break;
      }
      if (random() % 2 == 0) entry.lines = static_cast<unsigned>(random() % 128);
      (random() % 2 == 0 ? server_.first(key) : server_.second(key))[random() % kBucketEntries] = entry.pack();
    }
    if (round % 2 == 0) {
      for (const std::string& key : keys) ASSERT_EQ(get(key), FakeServer::kByMessage);
      continue;
    }
    std::array<std::array<std::byte, 6000>, 8> out;
    std::array<GetRequest, 8> requests;
    for (std::size_t i = 0; i < keys.size(); ++i) requests[i] = {.key = key_of(keys[i]), .out = out[i]};
    client_->get(requests);
    for (const GetRequest& request : requests) {
      ASSERT_EQ(request.outcome.status, Status::kOk);
      ASSERT_EQ(request.outcome.version, FakeServer::kVersion);
    }
  }
  EXPECT_EQ(client_->connection_error().status(), Status::kOk);
}

// --- changes by others

class KvOneSided : public testing::Test {
 protected:
  void begin(Lookup lookup, const ServerOptions& options = small_server()) {
    server_ = start(options);
    ASSERT_TRUE(server_);
    writer_ = connect(client_options(*server_));
    reader_ = reading(lookup);
    ASSERT_TRUE(writer_ && reader_);
  }
  [[nodiscard]] std::unique_ptr<Client> reading(Lookup lookup) const {
    ClientOptions options = client_options(*server_);
    options.lookup = lookup;
    return connect(options);
  }
  std::string get(std::string_view key) {
    outcome_ = reader_->get(key_of(key), std::as_writable_bytes(std::span(out_)));
    return outcome_.status == Status::kOk ? out_.substr(0, outcome_.length) : to_string(outcome_.status);
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> writer_, reader_;
  std::string out_ = std::string(1 << 20, '\0');
  Outcome outcome_;
};

// What is acknowledged is seen by each read that starts after it, also where the reader remembers a location.
TEST_F(KvOneSided, ReadsSeeWhatIsAcknowledged) {
  for (const Lookup lookup : {Lookup::kAuto, Lookup::kOneSided}) {
    SCOPED_TRACE(to_string(lookup));
    begin(lookup);
    if (HasFatalFailure()) return;
    std::uint64_t version = 0;
    for (int round = 0; round < 300; ++round) {
      const std::size_t length = round % 10 == 9 ? 20'000 : static_cast<std::size_t>(round) * 13 % 4000;
      std::string value(length + 1, static_cast<char>('a' + round % 26));
      if (round % 7 == 6) {
        ASSERT_EQ(writer_->erase(key_of("k")).status, version == 0 ? Status::kNotFound : Status::kOk);
        version = 0;
        ASSERT_EQ(get("k"), "not found") << round;
        continue;
      }
      const Outcome changed = round % 3 == 0 ? writer_->cas(key_of("k"), version, bytes_of(value))
                                             : writer_->put(key_of("k"), bytes_of(value));
      ASSERT_EQ(changed.status, Status::kOk) << round;
      version = changed.version;
      for (int again = 0; again < 2; ++again) {
        ASSERT_TRUE(get("k") == value) << round;
        ASSERT_EQ(outcome_.version, version);
      }
    }
    const LookupCounters counts = reader_->lookups();
    EXPECT_GT(counts.by_location, 200u);
    EXPECT_GT(counts.stale, 100u) << "remembered, and replaced by another";
  }
}

// Every way to look says the same of every key, while the index fills up and its entries move.
TEST_F(KvOneSided, EveryLookupFindsTheSame) {
  ServerOptions options = small_server();
  options.workers = 2;
  options.memory_bytes = std::size_t{32} << 20;
  options.max_items = 3000;
  begin(Lookup::kOneSided, options);
  if (HasFatalFailure()) return;
  const auto by_message = reading(Lookup::kMessage), by_itself = reading(Lookup::kAuto);
  ASSERT_TRUE(by_message && by_itself);
  constexpr std::size_t kSizes[] = {0, 1, 63, 64, 65, 1000, 4095, 4096, 4097, 40'000};
  std::mt19937_64 random(3);
  std::string other(1 << 20, '\0'), third(1 << 20, '\0');
  const int steps = test::in_chaos() || !test::is_soft_under_test() ? 1500 : 8000;
  for (int step = 0; step < steps; ++step) {
    const std::string key = "k" + std::to_string(random() % 2400);
    if (random() % 3 == 0) {
      (void)writer_->erase(key_of(key));
    } else if (random() % 2 == 0) {
      const std::string value(kSizes[random() % std::size(kSizes)], static_cast<char>('a' + step % 26));
      ASSERT_EQ(writer_->put(key_of(key), bytes_of(value)).status, Status::kOk);
    }
    const std::string looked = "k" + std::to_string(random() % 2400);
    const std::size_t room = random() % 4 == 0 ? kSizes[random() % std::size(kSizes)] : out_.size();
    const auto ask = [&](Client& client, std::string& out) {
      return client.get(key_of(looked), std::as_writable_bytes(std::span(out)).first(room));
    };
    const Outcome said = ask(*by_message, other);
    for (const Outcome& found : {ask(*reader_, out_), ask(*by_itself, third)}) {
      ASSERT_EQ(found.status, said.status);
      ASSERT_EQ(found.version, said.version);
      ASSERT_EQ(found.length, said.length);
    }
    if (said.status != Status::kOk) continue;
    ASSERT_EQ(std::memcmp(out_.data(), other.data(), said.length), 0);
    ASSERT_EQ(std::memcmp(third.data(), other.data(), said.length), 0);
  }
  const LookupCounters counts = reader_->lookups();
  EXPECT_GT(counts.by_index, 0u);
  EXPECT_GT(counts.by_location, 0u);
  EXPECT_EQ(by_message->lookups().by_index + by_message->lookups().by_location, 0u);
  EXPECT_EQ(reader_->connection_error().status(), Status::kOk);
}

// --- batches

TEST_F(KvOneSided, BatchesOfAnyCountAreWhatTheirCallsWouldBe) {
  ServerOptions options = small_server();
  options.workers = 2;
  options.memory_bytes = std::size_t{128} << 20;
  begin(Lookup::kMessage, options);
  if (HasFatalFailure()) return;
  const auto value_of = [](std::size_t i) {
    const std::size_t length = i % 40 == 7 ? 5000 + i : i * 37 % 900;
    return std::string(length, static_cast<char>('a' + i % 26));
  };
  constexpr std::size_t kMost = 700;
  std::vector<std::string> keys, values;
  for (std::size_t i = 0; i < kMost; ++i) {
    keys.push_back("batch" + std::to_string(i));
    values.push_back(value_of(i));
  }
  for (const Lookup lookup : kLookups) {
    SCOPED_TRACE(to_string(lookup));
    const auto client = reading(lookup);
    ASSERT_TRUE(client);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{33}, kMost}) {
      SCOPED_TRACE(count);
      std::vector<PutRequest> puts(count);
      for (std::size_t i = 0; i < count; ++i) puts[i] = {.key = key_of(keys[i]), .value = bytes_of(values[i])};
      std::string too_long(1025, 'k');
      if (count > 20) puts[20].key = key_of(too_long);
      client->put(puts);
      std::set<std::uint64_t> versions;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(puts[i].outcome.status, i == 20 ? Status::kBadKey : Status::kOk) << i;
        if (i != 20) versions.insert(puts[i].outcome.version);
      }
      EXPECT_EQ(versions.size(), count > 20 ? count - 1 : count);

      std::vector<std::string> outs(count);
      std::vector<GetRequest> gets(count);
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t room = i % 50 == 3 ? values[i].size() / 2 : values[i].size();
        outs[i].resize(room);
        gets[i] = {.key = key_of(keys[i]), .out = std::as_writable_bytes(std::span(outs[i]))};
      }
      if (count > 20) gets[20].key = {};
      if (count > 25) gets[25].key = key_of("missing");
      for (int again = 0; again < 2; ++again) {
        client->get(gets);
        for (std::size_t i = 0; i < count; ++i) {
          const Outcome& got = gets[i].outcome;
          const Status wanted = i == 20                             ? Status::kBadKey
                                : i == 25                           ? Status::kNotFound
                                : outs[i].size() < values[i].size() ? Status::kBufferTooSmall
                                                                    : Status::kOk;
          ASSERT_EQ(got.status, wanted) << i;
          if (wanted == Status::kBufferTooSmall || wanted == Status::kOk) {
            ASSERT_EQ(got.length, values[i].size());
            ASSERT_EQ(got.version, puts[i].outcome.version);
          }
          if (wanted == Status::kOk) {
            ASSERT_TRUE(outs[i] == values[i]) << i;
          }
        }
      }
    }
    const LookupCounters counts = client->lookups();
    EXPECT_EQ(counts.by_location + counts.by_index == 0, lookup == Lookup::kMessage);
    EXPECT_EQ(client->in_flight(), 0u);
  }
}

TEST_F(KvOneSided, BatchesGoBesidePipelinedOperations) {
  for (const Lookup lookup : kLookups) {
    SCOPED_TRACE(to_string(lookup));
    begin(lookup);
    if (HasFatalFailure()) return;
    std::array<std::array<std::byte, 64>, 31> mine{};
    std::array<std::array<std::byte, 64>, 100> outs{};
    ASSERT_EQ(writer_->put(key_of("k"), bytes_of("value")).status, Status::kOk);
    for (std::uint64_t i = 0; i < mine.size(); ++i) ASSERT_EQ(reader_->start_get(key_of("k"), mine[i], i), Status::kOk);
    std::array<GetRequest, 100> gets;
    for (std::size_t i = 0; i < gets.size(); ++i) gets[i] = {.key = key_of("k"), .out = outs[i]};
    reader_->get(gets);
    for (const GetRequest& get : gets) {
      ASSERT_EQ(get.outcome.status, Status::kOk);
      ASSERT_EQ(get.outcome.length, 5u);
    }
    EXPECT_EQ(reader_->in_flight(), mine.size());
    std::array<Completion, 64> ended;
    std::size_t count = 0;
    while (reader_->in_flight() != 0) {
      const std::size_t some = reader_->wait(ended, Deadline::after(20s));
      ASSERT_GT(some, 0u);
      for (std::size_t i = 0; i < some; ++i) EXPECT_EQ(ended[i].outcome.status, Status::kOk);
      count += some;
    }
    EXPECT_EQ(count, mine.size());
    // All slots taken by operations that only `poll` frees: what needs a slot is told so.
    for (std::uint64_t i = 0; i < 32; ++i) ASSERT_EQ(reader_->start_get(key_of("k"), mine[0], i), Status::kOk);
    std::array<GetRequest, 1> one{GetRequest{.key = key_of("missing"), .out = outs[0]}};
    reader_->get(one);
    EXPECT_EQ(one[0].outcome.status, Status::kAgain);
    while (reader_->in_flight() != 0) (void)reader_->wait(ended, Deadline::after(20s));
  }
}

TEST_F(KvOneSided, BatchesEndWithTheirDeadlineAndWithTheirServer) {
  for (const Lookup lookup : kLookups) {
    SCOPED_TRACE(to_string(lookup));
    begin(lookup);
    if (HasFatalFailure()) return;
    std::vector<std::array<std::byte, 64>> outs(200);
    std::vector<GetRequest> gets(outs.size());
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < outs.size(); ++i) keys.push_back(std::to_string(i));
    for (int i = 0; i < 30; ++i) {
      for (std::size_t n = 0; n < outs.size(); ++n) {
        std::ranges::fill(outs[n], std::byte{0xEE});
        gets[n] = {.key = key_of(keys[n]), .out = outs[n]};
      }
      reader_->get(gets, Deadline::after(std::chrono::microseconds(i % 3 * 20)));
      for (const GetRequest& get : gets)
        ASSERT_TRUE(get.outcome.status == Status::kNotFound || get.outcome.status == Status::kTimedOut);
      std::array<Completion, 4> none;
      for (int poll = 0; poll < 50; ++poll) ASSERT_EQ(reader_->poll(none), 0u);
    }
    ASSERT_EQ(reader_->connection_error().status(), Status::kOk);
    reader_->get(gets);
    EXPECT_EQ(gets[199].outcome.status, Status::kNotFound);
    server_->stop();
    EXPECT_TRUE(eventually([&] {
      reader_->get(gets);
      return gets[0].outcome.status == Status::kClosed;
    }));
    reader_->get(gets);
    for (const GetRequest& get : gets) EXPECT_EQ(get.outcome.status, Status::kClosed);
    std::vector<PutRequest> puts{{.key = key_of("k"), .value = bytes_of("v")}};
    reader_->put(puts);
    EXPECT_EQ(puts[0].outcome.status, Status::kClosed);
  }
}

// A get that has timed out leaves a READ behind that may still come. It must come to nobody's memory.
TEST(KvLateReads, NeverMeetMemoryThatIsTheCallersAgain) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "on an RDMA device: chaos is the soft NIC's";
  const auto server = start(small_server());
  ASSERT_TRUE(server);
  const auto writer = connect(client_options(*server));
  ASSERT_TRUE(writer);
  std::array<std::string, 4> keys{"a", "b", "c", "d"};
  for (const std::string& key : keys)
    ASSERT_EQ(writer->put(key_of(key), bytes_of(std::string(700, 'v'))).status, Status::kOk);
  std::unique_ptr<Client> client;
  std::array<std::array<std::byte, 700>, 4> outs;
  int timeouts = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    if (i % 50 == 0) {
      const test::LateNics late(i);
      ClientOptions options = client_options(*server);
      options.lookup = Lookup::kOneSided;
      options.known_locations = i % 100 == 0 ? 0 : 64;
      client = connect(options);
      ASSERT_TRUE(client);
    }
    for (auto& out : outs) std::ranges::fill(out, std::byte{0xEE});
    const Deadline deadline = Deadline::after(std::chrono::microseconds(i % 5 * 10));
    std::array<GetRequest, 4> gets;
    for (std::size_t n = 0; n < gets.size(); ++n) gets[n] = {.key = key_of(keys[n]), .out = outs[n]};
    if (i % 2 == 0) {
      client->get(gets, deadline);
    } else {
      for (GetRequest& get : gets) get.outcome = client->get(get.key, get.out, deadline);
    }
    std::array<Completion, 4> none;
    for (int poll = 0; poll < 100; ++poll) ASSERT_EQ(client->poll(none), 0u);
    for (std::size_t n = 0; n < gets.size(); ++n) {
      const bool is_late = gets[n].outcome.status == Status::kTimedOut;
      ASSERT_TRUE(is_late || gets[n].outcome.status == Status::kOk);
      ASSERT_TRUE(test::all_are(outs[n], is_late ? std::byte{0xEE} : std::byte{'v'}));
      timeouts += is_late ? 1 : 0;
    }
  }
  EXPECT_GT(timeouts, 0);
}

}  // namespace
}  // namespace verbena::kv
