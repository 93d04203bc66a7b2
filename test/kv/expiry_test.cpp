// Values with a time to live, over a connection, by each way that a get may take.
#include "base/failure.hpp"
#include "model.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;
using namespace std::chrono_literals;

constexpr std::array<std::size_t, 4> kLengths{0, 200, 5000, 200'000};

struct Way {
  const char* name;
  Lookup lookup;
  std::size_t known_locations;
};
constexpr std::array kWays{Way{"message", Lookup::kMessage, 0}, Way{"index", Lookup::kOneSided, 0},
                           Way{"known", Lookup::kOneSided, 4096}, Way{"auto", Lookup::kAuto, 4096}};

class Expiry : public testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options = small_server();
    server_ = start(options);
    ASSERT_TRUE(server_);
    for (const Way& way : kWays) {
      ClientOptions client = client_options(*server_);
      client.lookup = way.lookup;
      client.known_locations = way.known_locations;
      clients_.push_back(connect(client));
      ASSERT_TRUE(clients_.back());
    }
  }
  Outcome get(Client& client, std::string_view key) {
    return client.get(key_of(key), std::as_writable_bytes(std::span(out_)));
  }

  std::unique_ptr<Server> server_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::string out_ = std::string(300'000, '\0');
};

TEST_F(Expiry, ValuesAreAbsentForEveryWayOnceTheirTimeIsOver) {
  for (int round = 0; round < 2; ++round)
    for (const std::size_t length : kLengths) {
      const std::string value(length, static_cast<char>('a' + round));
      const Deadline begun = Deadline::after(300ms);
      const Outcome stored = clients_[0]->put(key_of("k"), bytes_of(value), {.time_to_live = 300ms});
      ASSERT_EQ(stored.status, Status::kOk);
      for (std::size_t way = 0; way < kWays.size(); ++way) {
        // The second time by what the first one has told.
        for (int times = 0; times < 3; ++times) {
          const Outcome outcome = get(*clients_[way], "k");
          if (outcome.status == Status::kNotFound) {
            EXPECT_TRUE(begun.passed()) << kWays[way].name;
            continue;
          }
          ASSERT_EQ(outcome.status, Status::kOk) << kWays[way].name;
          EXPECT_EQ(outcome.version, stored.version);
          EXPECT_EQ(out_.substr(0, length), value);
          EXPECT_GT(outcome.time_left.count(), 0);
          EXPECT_LE(outcome.time_left, 300ms);
        }
      }
      // Until it is over for all, and never again.
      for (std::size_t way = 0; way < kWays.size(); ++way) {
        ASSERT_TRUE(eventually([&] { return get(*clients_[way], "k").status == Status::kNotFound; }));
        EXPECT_TRUE(begun.passed()) << kWays[way].name << " was early";
      }
    }
  EXPECT_GE(server_->statistics().expired, 2 * kLengths.size());
}

TEST_F(Expiry, NobodyReadsAValueAfterItsTime) {
  for (const std::size_t length : kLengths) {
    const std::string value(length, 'v');
    ASSERT_EQ(clients_[0]->put(key_of("k"), bytes_of(value), {.time_to_live = 30ms}).status, Status::kOk);
    const Deadline over = Deadline::after(30ms);
    bool is_over = false;
    const auto gone = [&] {
      for (std::size_t way = 0; way < kWays.size(); ++way) {
        is_over = over.passed();  // Before the call.
        const Outcome outcome = get(*clients_[way], "k");
        EXPECT_TRUE(!is_over || outcome.status == Status::kNotFound) << kWays[way].name << ", " << length;
      }
      return is_over;
    };
    ASSERT_TRUE(eventually(gone));
  }
}

TEST_F(Expiry, OneSidedReadersNeedNoMessageWhileThereIsTime) {
  ASSERT_EQ(clients_[1]->put(key_of("k"), bytes_of("v"), {.time_to_live = 1h}).status, Status::kOk);
  for (const std::size_t way : {1u, 2u}) {
    Client& client = *clients_[way];
    ASSERT_EQ(get(client, "k").status, Status::kOk);
    const std::uint64_t messages = client.lookups().by_message;
    for (int i = 0; i < 100; ++i) {
      const Outcome outcome = get(client, "k");
      ASSERT_EQ(outcome.status, Status::kOk);
      EXPECT_GT(outcome.time_left, 30min);
    }
    EXPECT_EQ(client.lookups().by_message, messages) << kWays[way].name;
  }
}

TEST_F(Expiry, BatchesAndPipelinesSeeItToo) {
  ASSERT_EQ(clients_[1]->put(key_of("k"), bytes_of("v"), {.time_to_live = 50ms}).status, Status::kOk);
  const auto batch = [&] {
    std::array<std::byte, 16> out;
    std::array<GetRequest, 1> gets{GetRequest{.key = key_of("k"), .out = out, .outcome = {}}};
    clients_[1]->get(gets);
    return gets[0].outcome.status == Status::kNotFound;
  };
  ASSERT_TRUE(eventually(batch));
  std::array<std::byte, 16> out;
  ASSERT_EQ(clients_[2]->start_get(key_of("k"), out, 1), Status::kOk);
  std::array<Completion, 1> done;
  ASSERT_EQ(clients_[2]->wait(done, Deadline::after(20s)), 1u);
  EXPECT_EQ(done[0].outcome.status, Status::kNotFound);
}

TEST_F(Expiry, BatchesAndPipelinesStoreIt) {
  Client& client = *clients_[0];
  for (const std::size_t length : kLengths) {
    const std::span<std::byte> value = client.allocate(std::max<std::size_t>(length, 1)).first(length);
    const std::string keys[] = {"batched", "refused", "wrong", "begun", "stays"};
    std::array<PutRequest, 3> puts{
        PutRequest{.key = key_of(keys[0]), .value = value, .outcome = {}, .options = {.time_to_live = 1h}},
        PutRequest{.key = key_of(keys[1]), .value = value, .outcome = {}, .options = {.expected = 1u << 30}},
        PutRequest{.key = key_of(keys[2]), .value = value, .outcome = {}, .options = {.time_to_live = 0ms}}};
    client.put(puts);
    EXPECT_EQ(puts[0].outcome.status, Status::kOk) << length;
    EXPECT_EQ(puts[1].outcome.status, Status::kNotFound) << length;
    EXPECT_EQ(puts[2].outcome.status, Status::kBadArgument) << length;
    EXPECT_GT(get(client, keys[0]).time_left, 30min) << length;
    EXPECT_EQ(get(client, keys[2]).status, Status::kNotFound) << length;
    EXPECT_EQ(client.start_put(key_of("k"), value, {.time_to_live = kMaxTimeToLive + 1ms}, 0), Status::kBadArgument);
    ASSERT_EQ(client.start_put(key_of(keys[3]), value, {.time_to_live = 1h}, 1), Status::kOk);
    ASSERT_EQ(client.start_put(key_of(keys[4]), value, PutOptions{}, 2), Status::kOk);
    std::array<Completion, 1> done;
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(client.wait(done, Deadline::after(20s)), 1u);
      EXPECT_EQ(done[0].outcome.status, Status::kOk) << length;
    }
    EXPECT_GT(get(client, keys[3]).time_left, 30min) << length;
    EXPECT_EQ(get(client, keys[4]).time_left.count(), 0) << length;
    ASSERT_EQ(client.start_put(key_of(keys[3]), value, {.time_to_live = 1ms}, 3), Status::kOk);
    ASSERT_EQ(client.wait(done, Deadline::after(20s)), 1u);
    EXPECT_TRUE(eventually([&] { return get(client, keys[3]).status == Status::kNotFound; })) << length;
    for (const auto& key : keys) (void)client.erase(key_of(key));
  }
}

TEST_F(Expiry, APutIsAsOverNothing) {
  Client& client = *clients_[3];
  const Outcome first = client.put(key_of("k"), bytes_of("v"), {.time_to_live = 20ms, .expected = 0});
  ASSERT_EQ(first.status, Status::kOk);
  EXPECT_EQ(client.put(key_of("k"), bytes_of("w"), {.time_to_live = 1h, .expected = 0}).status,
            Status::kVersionMismatch);
  ASSERT_TRUE(
      eventually([&] { return client.put(key_of("k"), bytes_of("w"), {.expected = 0}).status == Status::kOk; }));
  EXPECT_EQ(get(client, "k").time_left.count(), 0) << "no time to live";
  ASSERT_EQ(client.put(key_of("k"), bytes_of("x"), {.time_to_live = 1ms}).status, Status::kOk);
  ASSERT_TRUE(eventually([&] { return client.erase(key_of("k")).status == Status::kNotFound; }));
  EXPECT_EQ(client.cas(key_of("k"), first.version, bytes_of("y")).status, Status::kNotFound);
}

TEST_F(Expiry, TimesOutOfRangeAreRefused) {
  Client& client = *clients_[0];
  for (const std::chrono::milliseconds bad :
       {0ms, -1ms, std::chrono::milliseconds::min(), kMaxTimeToLive + 1ms, std::chrono::milliseconds::max()}) {
    EXPECT_EQ(client.put(key_of("k"), bytes_of("v"), {.time_to_live = bad}).status, Status::kBadArgument);
    EXPECT_NE(std::string_view(last_failure().text()).find("time_to_live must be 1 to"), std::string_view::npos)
        << last_failure().text();
  }
  EXPECT_EQ(get(client, "k").status, Status::kNotFound) << "nothing was stored";
  EXPECT_EQ(client.put(key_of("k"), bytes_of("v"), {.time_to_live = kMaxTimeToLive}).status, Status::kOk);
  EXPECT_GT(get(client, "k").time_left, kMaxTimeToLive - 1h);
}

TEST_F(Expiry, MemoryComesBackUnasked) {
  for (int i = 0; i < 1000; ++i)
    ASSERT_EQ(clients_[0]
                  ->put(key_of("k" + std::to_string(i)), bytes_of(out_.substr(0, 2000)), {.time_to_live = 10ms})
                  .status,
              Status::kOk);
  EXPECT_TRUE(eventually([&] { return server_->statistics().items == 0; }));
  EXPECT_EQ(server_->statistics().expired, 1000u);
}

}  // namespace
}  // namespace verbena::kv
