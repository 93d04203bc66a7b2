// Connections whose one side fails while both processes live on.
#include "chaos.hpp"
#include "device.hpp"
#include "model.hpp"

#include <verbena/kv.hpp>

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace verbena::kv {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;

/// The soft NICs that are opened meanwhile break a queue pair now and then.
class BreakingNics : test::Faults {
 public:
  explicit BreakingNics(std::uint64_t seed) : Faults("retry=0.01,fatal=0.01,death=0.01", seed) {}
};

constexpr std::uint64_t kSeeds = 30;
/// Puts of which one fails, but for one connection in more than a billion: 0.97^2000.
constexpr int kMostPuts = 2000;

class KvFaults : public testing::Test {
 protected:
  void SetUp() override { VERBENA_SKIP_ON_A_DEVICE("faults are the soft NIC's"); }
  /// Far beyond what a connection lives.
  [[nodiscard]] static ClientOptions patient(const Server& server) {
    ClientOptions options = client_options(server);
    options.timeout = 100s;
    return options;
  }
};

// The client's side is whole and waits for a reply: it hears of the loss long before its deadline.
TEST_F(KvFaults, ServerSideThatFailsIsPeerLost) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    std::unique_ptr<Server> server;
    {
      const BreakingNics faults(seed);
      server = start(small_server());
    }
    ASSERT_TRUE(server);
    const auto client = connect(patient(*server));
    if (client == nullptr) continue;  // It was lost on the way in.
    Outcome outcome;
    for (int i = 0; i < kMostPuts && outcome.status == Status::kOk; ++i)
      outcome = client->put(key_of("key"), bytes_of(std::to_string(i)));
    EXPECT_EQ(outcome.status, Status::kPeerLost) << to_string(outcome.status) << ", seed " << seed;
  }
}

// What begins to fail within a call that succeeds is told by the next one, whichever that is, and by all after it.
class KvFaultsOf : public KvFaults {
 protected:
  template <class Call>
  void run(Call&& call) {
    ServerOptions options = small_server();
    options.workers = 2;
    options.max_clients = 64;  // Those that are lost are not gone at once.
    const auto server = start(options);
    ASSERT_TRUE(server);
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      std::unique_ptr<Client> client;
      {
        const BreakingNics faults(seed);
        client = connect(patient(*server));
      }
      if (client == nullptr) continue;  // It was lost on the way in.
      Status status = Status::kOk;
      for (int i = 0; i < kMostPuts && status == Status::kOk; ++i) status = call(*client);
      EXPECT_EQ(status, Status::kPeerLost) << to_string(status);
      EXPECT_EQ(client->connection_error().status(), Status::kPeerLost);
      EXPECT_EQ(client->put(key_of("key"), bytes_of("value")).status, Status::kPeerLost);
    }
  }
};

TEST_F(KvFaultsOf, Puts) {
  run([](Client& client) { return client.put(key_of("key"), bytes_of("value")).status; });
}

TEST_F(KvFaultsOf, Batches) {
  run([](Client& client) {
    std::array<PutRequest, 3> requests;
    for (PutRequest& request : requests) {
      request.key = key_of("key");
      request.value = bytes_of("value");
    }
    client.put(requests);
    for (const PutRequest& request : requests)
      if (request.outcome.status != Status::kOk) return request.outcome.status;
    return Status::kOk;
  });
}

// Of two workers' connections one fails in a poll that waits for the other, and nobody polls before the next start.
TEST_F(KvFaultsOf, Starts) {
  constexpr unsigned kStarts = 6;
  run([](Client& client) {
    Status status = Status::kOk;
    const auto start = [&] {
      for (unsigned i = 0; i < kStarts && status == Status::kOk; ++i)
        status = client.start_put(key_of(std::to_string(i)), bytes_of("value"), i);
    };
    start();
    if (status == Status::kOk) status = client.put(key_of("key"), bytes_of("value")).status;
    start();
    std::array<Completion, 2 * kStarts> completions;
    while (status == Status::kOk && client.in_flight() != 0) {
      const std::size_t count = client.wait(completions, Deadline::after(100s));
      if (count == 0) return Status::kTimedOut;
      for (const Completion& completion : std::span(completions).first(count))
        if (status == Status::kOk) status = completion.outcome.status;
    }
    return status;
  });
}

}  // namespace
}  // namespace verbena::kv
