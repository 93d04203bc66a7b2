// A server that evicts, over connections: clients whose gets need no message mark what they use.
#include "model.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace verbena::kv {
namespace {

using namespace testing_support;

ServerOptions evicting_server() {
  ServerOptions options = small_server();
  options.memory_bytes = std::size_t{1} << 20;
  options.max_value_bytes = 0;
  options.max_items = 0;
  options.evict = Evict::kLru;
  return options;
}

class Eviction : public testing::TestWithParam<Lookup> {};

TEST_P(Eviction, KeysThatAreReadStay) {
  const auto server = start(evicting_server());
  ASSERT_TRUE(server);
  ClientOptions options = client_options(*server);
  const auto writer = connect(options);
  options.lookup = GetParam();
  const auto reader = connect(options);
  ASSERT_TRUE(writer && reader);
  const std::string value(1000, 'v');
  std::string out(2000, '\0');
  const auto get = [&](const std::string& key) {
    return reader->get(key_of(key), std::as_writable_bytes(std::span(out))).status;
  };
  constexpr unsigned kHot = 8;
  const auto put = [&](const std::string& key) { return writer->put(key_of(key), bytes_of(value)).status; };
  for (unsigned i = 0; i < kHot; ++i) ASSERT_EQ(put("hot" + std::to_string(i)), Status::kOk);
  unsigned missed = 0;
  for (unsigned i = 0; i < 3000; ++i) {
    ASSERT_EQ(put("cold" + std::to_string(i)), Status::kOk) << i;
    // The hand takes some 700 puts for a round; each key is read 88 times meanwhile, and marked 10 times on average.
    // Marks are drawn at random, so a key may go now and then.
    const std::string key = "hot" + std::to_string(i % kHot);
    const Status status = get(key);
    if (status == Status::kOk) continue;
    ASSERT_EQ(status, Status::kNotFound) << i;
    ++missed;
    ASSERT_EQ(put(key), Status::kOk) << i;
  }
  EXPECT_EQ(get("cold0"), Status::kNotFound);
  const ServerStatistics now = server->statistics();
  EXPECT_GT(now.evicted, 1000u);
  EXPECT_EQ(now.items + now.evicted, 3000u + kHot + missed);
  // Without marks each of them goes once in a round.
  EXPECT_LT(missed, kHot * now.evicted / now.items / 3) << now.evicted << " evicted, " << now.items << " left";
  if (GetParam() == Lookup::kOneSided) {
    EXPECT_GT(reader->lookups().by_location + reader->lookups().by_index, 2500u) << "the server did not see them";
  }
}

INSTANTIATE_TEST_SUITE_P(Lookups, Eviction, testing::Values(Lookup::kMessage, Lookup::kOneSided, Lookup::kAuto),
                         [](const auto& tested) {
                           return tested.param == Lookup::kMessage    ? "Message"
                                  : tested.param == Lookup::kOneSided ? "OneSided"
                                                                      : "Auto";
                         });

TEST(Evictions, LargeValuesFitWhateverTheStoreHas) {
  ServerOptions options = evicting_server();
  options.memory_bytes = std::size_t{8} << 20;
  options.grace = std::chrono::milliseconds{20};
  const auto server = start(options);
  ASSERT_TRUE(server);
  const auto client = connect(client_options(*server));
  ASSERT_TRUE(client);
  const std::string small(300, 's');
  for (int i = 0; i < 30'000; ++i)
    ASSERT_EQ(client->put(key_of("s" + std::to_string(i)), bytes_of(small)).status, Status::kOk);
  std::string out(client->max_value_bytes(), '\0');
  for (int i = 0; i < 20; ++i) {
    const std::string large(i == 0 ? client->max_value_bytes() : 500'000, static_cast<char>('a' + i));
    const std::string key = "l" + std::to_string(i);
    ASSERT_EQ(client->put(key_of(key), bytes_of(large)).status, Status::kOk) << i;
    const Outcome outcome = client->get(key_of(key), std::as_writable_bytes(std::span(out)));
    ASSERT_EQ(outcome.status, Status::kOk);
    ASSERT_EQ(out.substr(0, outcome.length), large);
  }
  EXPECT_EQ(client->put(key_of("more"), bytes_of(out + "x")).status, Status::kTooLong);
}

TEST(Evictions, AServerThatEvictsNothingHasNoMarks) {
  ServerOptions options = evicting_server();
  options.evict = Evict::kNone;
  const auto server = start(options);
  ASSERT_TRUE(server);
  const auto client = connect(client_options(*server));
  ASSERT_TRUE(client);
  const std::string value(1000, 'v');
  Status status = Status::kOk;
  for (int i = 0; i < 2000 && status == Status::kOk; ++i)
    status =
        client->put(key_of("k" + std::to_string(i)), bytes_of(value), Deadline::after(std::chrono::seconds{5})).status;
  EXPECT_EQ(status, Status::kStoreFull);
  EXPECT_EQ(server->statistics().evicted, 0u);
}

TEST(Evictions, PoliciesThatAreNoneAreRefused) {
  ServerOptions options = evicting_server();
  options.evict = static_cast<Evict>(2);
  const auto server = Server::start(options);
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().status(), Status::kBadArgument);
  EXPECT_NE(std::string_view(server.error().text()).find("evict (a policy) "), std::string_view::npos)
      << server.error().text();
}

}  // namespace
}  // namespace verbena::kv
