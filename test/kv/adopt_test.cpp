// Large values of trusted clients: leased blocks that become values, and where the leases go.
#include "model.hpp"
#include "peer.hpp"
#include "process.hpp"

#include <verbena/kv.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace verbena::kv {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;

class Adopting : public testing::Test {
 protected:
  static constexpr std::size_t kMib = std::size_t{1} << 20;

  static ServerOptions adopting_server() {
    ServerOptions options = small_server();
    options.large_put = LargePut::kAdopt;
    options.lease_term = 20s;
    return options;
  }
  void begin(const ServerOptions& options = adopting_server()) {
    server_ = start(options);
    ASSERT_TRUE(server_);
    if (lacks_windows(*server_)) GTEST_SKIP() << server_->description();
    client_ = connect(client_options(*server_));
    ASSERT_TRUE(client_);
  }
  static std::string value_of(std::size_t bytes, unsigned seed) {
    std::string value(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) value[i] = static_cast<char>(i * 31 + i / 4096 + seed * 7);
    return value;
  }
  Outcome put(std::string_view key, const std::string& value) { return client_->put(key_of(key), bytes_of(value)); }
  bool holds(std::string_view key, const std::string& value) {
    out_.resize(4 * kMib);
    const Outcome outcome = client_->get(key_of(key), std::as_writable_bytes(std::span(out_)));
    return outcome.status == Status::kOk && outcome.length == value.size() &&
           std::memcmp(out_.data(), value.data(), value.size()) == 0;
  }
  [[nodiscard]] ServerStatistics now() const { return server_->statistics(); }
  bool comes_to(std::uint64_t leases) {
    return eventually([&] { return now().leases == leases; });
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
  std::string out_;
};

TEST_F(Adopting, ValuesOfEverySizeAreWhole) {
  begin();
  if (IsSkipped() || HasFatalFailure()) return;
  const auto registered = client_->allocate(3 * kMib);
  unsigned seed = 0;
  for (const std::size_t bytes : {65'536u, 65'537u, 100'000u, 1u << 20, 2'500'000u, 65'535u, 4096u, 1u << 20}) {
    for (int round = 0; round < 3; ++round) {
      const std::string value = value_of(bytes, ++seed);
      ASSERT_EQ(put("plain", value).status, Status::kOk) << bytes;
      ASSERT_TRUE(holds("plain", value)) << bytes;
      std::memcpy(registered.data(), value.data(), bytes);
      ASSERT_EQ(client_->put(key_of("registered"), registered.first(bytes)).status, Status::kOk) << bytes;
      ASSERT_TRUE(holds("registered", value)) << bytes;
    }
  }
  // The first of each class was streamed, and brought a lease; so did each that was adopted.
  EXPECT_GE(now().adoptions, 24u);
  EXPECT_EQ(now().failures, 0u);
}

TEST_F(Adopting, ComparesAndSwaps) {
  begin();
  if (IsSkipped() || HasFatalFailure()) return;
  const std::string first = value_of(kMib, 1), second = value_of(kMib, 2), third = value_of(kMib, 3);
  ASSERT_EQ(put("other", first).status, Status::kOk);
  EXPECT_EQ(client_->cas(key_of("k"), 9, bytes_of(first)).status, Status::kNotFound);
  const Outcome made = client_->cas(key_of("k"), 0, bytes_of(first));
  ASSERT_EQ(made.status, Status::kOk);
  const Outcome again = client_->cas(key_of("k"), 0, bytes_of(second));
  EXPECT_EQ(again.status, Status::kVersionMismatch);
  EXPECT_EQ(again.version, made.version);
  EXPECT_TRUE(holds("k", first));
  const Outcome swapped = client_->cas(key_of("k"), made.version, bytes_of(third));
  ASSERT_EQ(swapped.status, Status::kOk);
  EXPECT_EQ(client_->cas(key_of("k"), made.version, bytes_of(second)).version, swapped.version);
  EXPECT_TRUE(holds("k", third));
  EXPECT_EQ(now().adoptions, 2u);
  EXPECT_EQ(now().leases, 1u) << "those that failed came back";
}

TEST_F(Adopting, PipelinesPutsOfRegisteredMemory) {
  begin();
  if (IsSkipped() || HasFatalFailure()) return;
  constexpr std::size_t kBytes = 200'000;
  std::array<std::span<std::byte>, 8> sources;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    sources[i] = client_->allocate(kBytes);
    ASSERT_EQ(sources[i].size(), kBytes);
    std::memcpy(sources[i].data(), value_of(kBytes, static_cast<unsigned>(i)).data(), kBytes);
  }
  std::array<Completion, 8> ended;
  for (unsigned round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < sources.size(); ++i)
      ASSERT_EQ(client_->start_put(key_of("p" + std::to_string(i)), sources[(i + round) % 8], i), Status::kOk);
    while (client_->in_flight() != 0) {
      const std::size_t count = client_->wait(ended, Deadline::after(20s));
      ASSERT_GT(count, 0u);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(ended[i].outcome.status, Status::kOk);
    }
    for (std::size_t i = 0; i < sources.size(); ++i)
      ASSERT_TRUE(holds("p" + std::to_string(i), value_of(kBytes, static_cast<unsigned>((i + round) % 8)))) << i;
  }
  EXPECT_GE(now().adoptions, 4u);
  EXPECT_LE(now().leases, 4u);
}

TEST_F(Adopting, BehavesLikeAMap) {
  begin();
  if (IsSkipped() || HasFatalFailure()) return;
  run_against_model(*client_, "m/", 11, 2000);
  EXPECT_GT(now().adoptions, 50u);
  client_.reset();
  EXPECT_TRUE(eventually([&] { return now().used_bytes == 0 && now().leases == 0 && now().lease_bytes == 0; }));
}

// A client may have so many leases; the class that it writes last gets its own by giving others up.
TEST_F(Adopting, LeasesAreBoundedPerClient) {
  ServerOptions options = adopting_server();
  options.client_leases = 2;
  options.memory_bytes = 64 * kMib;
  begin(options);
  if (IsSkipped() || HasFatalFailure()) return;
  for (const std::size_t bytes : {std::size_t{65'536}, std::size_t{131'072}, std::size_t{262'144}, kMib}) {
    const std::uint64_t before = now().adoptions;
    for (unsigned i = 0; i < 8; ++i) {
      ASSERT_EQ(put("k", value_of(bytes, i)).status, Status::kOk);
      ASSERT_LE(now().leases, 2u);
    }
    EXPECT_GE(now().adoptions, before + 2) << bytes;
    EXPECT_TRUE(holds("k", value_of(bytes, 7)));
  }
}

// What nobody uses is free again: after the term, or with its client.
TEST_F(Adopting, UnusedLeasesReturn) {
  ServerOptions options = adopting_server();
  options.lease_term = 500ms;  // A WRITE has half of it, also where it waits for a core.
  begin(options);
  if (IsSkipped() || HasFatalFailure()) return;
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(put("k", value_of(kMib, 1)).status, Status::kOk);
    EXPECT_TRUE(comes_to(0));
    EXPECT_EQ(now().lease_bytes, 0u);
    EXPECT_TRUE(holds("k", value_of(kMib, 1)));
  }
  EXPECT_EQ(client_->connection_error().status(), Status::kOk);
  EXPECT_EQ(client_->erase(key_of("k")).status, Status::kOk);
  EXPECT_TRUE(eventually([&] { return now().used_bytes == 0 && now().resting_bytes == 0; }));
}

TEST_F(Adopting, ALeaseEndsWithItsClient) {
  begin();
  if (IsSkipped() || HasFatalFailure()) return;
  ASSERT_EQ(put("k", value_of(kMib, 1)).status, Status::kOk);
  EXPECT_TRUE(comes_to(1));
  EXPECT_EQ(now().lease_bytes, kMib);
  client_.reset();
  EXPECT_TRUE(comes_to(0));
  EXPECT_EQ(now().lease_bytes, 0u);
}

// Leases are an eighth of the memory at most; beyond that values are streamed. A store full of values and leases
// comes to the leases' memory as well.
TEST_F(Adopting, LeasesDoNotKeepAStoreFull) {
  ServerOptions options = adopting_server();
  options.memory_bytes = 16 * kMib;
  options.max_value_bytes = 2 * kMib;
  options.client_leases = 8;
  options.lease_term = 200ms;
  begin(options);
  if (IsSkipped() || HasFatalFailure()) return;
  std::vector<std::unique_ptr<Client>> others;
  for (int i = 0; i < 4; ++i) {
    others.push_back(connect(client_options(*server_)));
    ASSERT_TRUE(others.back());
    ASSERT_EQ(others.back()->put(key_of("o" + std::to_string(i)), bytes_of(value_of(kMib, 0))).status, Status::kOk);
    ASSERT_LE(now().lease_bytes, 2 * kMib);
  }
  // Beside leases of 2 MiB and the items' headers there is room for 13. How the leases' memory is cut decides whether a
  // long value fits in there; short ones do.
  unsigned stored = 4;
  while (stored < 15 && put("f" + std::to_string(stored), value_of(kMib, stored)).status == Status::kOk) ++stored;
  std::uint64_t bytes = stored * kMib;
  constexpr std::size_t kShort = kMib / 8;
  for (unsigned i = 0; i < 24 && put("s" + std::to_string(i), value_of(kShort, i)).status == Status::kOk; ++i)
    bytes += kShort;
  EXPECT_GT(bytes, 14 * kMib) << "the memory of the leases was not to be had";
  EXPECT_EQ(now().lease_bytes, 0u);
  for (unsigned i = 4; i < stored; ++i) EXPECT_TRUE(holds("f" + std::to_string(i), value_of(kMib, i))) << i;
}

// A store that is full gives no new leases: the memory of those that are used is anybody's.
TEST_F(Adopting, UsedLeasesReturnToAFullStore) {
  ServerOptions options = adopting_server();
  options.memory_bytes = 16 * kMib;
  options.max_value_bytes = 2 * kMib;
  begin(options);
  if (IsSkipped() || HasFatalFailure()) return;
  const auto source = client_->allocate(kMib);
  ASSERT_EQ(source.size(), kMib);
  // Once, by the call that does not try again.
  const auto fill = [&](unsigned i) {
    std::array<Completion, 1> ended;
    EXPECT_EQ(client_->start_put(key_of("f" + std::to_string(i)), source, i), Status::kOk);
    return client_->wait(ended, Deadline::after(20s)) == 1 ? ended[0].outcome.status : Status::kTimedOut;
  };
  const auto writer = connect(client_options(*server_));
  ASSERT_TRUE(writer);
  ASSERT_EQ(writer->put(key_of("w"), bytes_of(value_of(kMib, 1))).status, Status::kOk);
  ASSERT_TRUE(comes_to(1));
  unsigned stored = 0;
  Status last = Status::kOk;
  while (stored < 16 && (last = fill(stored)) == Status::kOk) ++stored;
  ASSERT_EQ(last, Status::kAgain) << "the writer's lease has the memory";
  EXPECT_EQ(now().leases, 1u);
  const std::uint64_t adopted = now().adoptions;
  ASSERT_EQ(writer->put(key_of("w"), bytes_of(value_of(kMib, 2))).status, Status::kOk);
  EXPECT_TRUE(eventually([&] { return now().adoptions == adopted + 1 && now().leases == 0; }));
  EXPECT_EQ(fill(stored), Status::kOk) << "the writer has it again";
  EXPECT_EQ(fill(stored + 1), Status::kStoreFull) << "nobody has memory";
  EXPECT_TRUE(holds("w", value_of(kMib, 2)));
}

// A WRITE has half of the term: what could take longer is streamed.
TEST_F(Adopting, TheTermBoundsTheLength) {
  ServerOptions options = adopting_server();
  options.lease_term = 20ms;
  begin(options);
  if (IsSkipped() || HasFatalFailure()) return;
  for (unsigned i = 0; i < 20; ++i) {
    ASSERT_EQ(put("k", value_of(kMib, i)).status, Status::kOk);
    ASSERT_EQ(now().leases, 0u);
  }
  EXPECT_EQ(now().adoptions, 0u);
  EXPECT_TRUE(holds("k", value_of(kMib, 19)));
}

int churn(unsigned port, unsigned seed) {
  const auto client = connect(client_options(static_cast<std::uint16_t>(port)));
  if (!client) return 1;
  std::puts("1");
  std::fflush(stdout);
  std::mt19937 random(seed);
  const auto registered = client->allocate(1 << 20);
  std::vector<std::byte> own(1 << 20, std::byte{7});
  for (;;) {
    const std::span<std::byte> memory = random() % 2 == 0 ? registered : std::span(own);
    const std::size_t length = 65'536 + random() % ((1 << 20) - 65'536);
    const Outcome outcome = client->put(key_of("churn" + std::to_string(random() % 4)), memory.first(length));
    if (damage_of(outcome.status) >= Damage::kConnection) return 2;
  }
}

TEST_F(Adopting, KilledClientsLeaveNoLease) {
  begin();
  if (IsSkipped() || HasFatalFailure()) return;
  std::mt19937 random(9);
  for (unsigned i = 0; i < 8; ++i) {
    test::Peer victim({"churn", std::to_string(server_->port()), std::to_string(i)});
    ASSERT_EQ(victim.read_number(), 1);
    const std::uint64_t until = now().puts + random() % 60;
    ASSERT_TRUE(eventually([&] { return now().puts >= until; }));
    victim.kill();
    ASSERT_EQ(put("mine", value_of(100'000, i)).status, Status::kOk);
    ASSERT_TRUE(holds("mine", value_of(100'000, i)));
  }
  EXPECT_TRUE(eventually([&] { return now().clients == 1; }));
  for (int i = 0; i < 4; ++i) (void)client_->erase(key_of("churn" + std::to_string(i)));
  ASSERT_EQ(client_->erase(key_of("mine")).status, Status::kOk);
  client_.reset();
  EXPECT_TRUE(eventually([&] { return now().leases == 0 && now().lease_bytes == 0 && now().used_bytes == 0; }))
      << now().leases << " leases, " << now().used_bytes << " bytes";
}

TEST(AdoptingOptions, WhatDoesNotGoTogetherIsRefused) {
  const auto refused = [](auto&& spoil) {
    ServerOptions options = small_server();
    options.large_put = LargePut::kAdopt;
    spoil(options);
    const auto server = Server::start(options);
    return !server && server.error().status() == Status::kBadArgument && server.error().text()[0] != '\0';
  };
  EXPECT_TRUE(refused([](ServerOptions& o) { o.require_hugepages = true; }));
  EXPECT_TRUE(refused([](ServerOptions& o) { o.client_leases = 0; }));
  EXPECT_TRUE(refused([](ServerOptions& o) { o.client_leases = 65; }));
  EXPECT_TRUE(refused([](ServerOptions& o) { o.lease_term = 9ms; }));
  EXPECT_TRUE(refused([](ServerOptions& o) { o.lease_term = 60'001ms; }));
  EXPECT_TRUE(refused([](ServerOptions& o) { o.large_put = LargePut{2}; }));
}

int peer_main(int argc, char** argv) {
  test::die_with_the_test();
  if (argc > 4 && std::string_view(argv[2]) == "churn")
    return churn(static_cast<unsigned>(std::atoi(argv[3])), static_cast<unsigned>(std::atoi(argv[4])));
  return 2;
}

}  // namespace
}  // namespace verbena::kv

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "peer") return verbena::kv::peer_main(argc, argv);
  return RUN_ALL_TESTS();
}
