// What operations of the store cost a NIC: work requests, doorbells, completions, receive refills. On every NIC alike.
#include "chaos.hpp"
#include "model.hpp"

#include <array>
#include <string>

namespace verbena::kv {
namespace {

using namespace testing_support;

/// Of `rounds` operations: most that each may take, at the client and at the server, to a twentieth.
struct Budget {
  double work_requests, doorbells, completions, receive_refills;
};

class KvBudget : public testing::Test {
 protected:
  void SetUp() override {
    server_ = start(small_server());
    ASSERT_TRUE(server_);
    ClientOptions options = client_options(*server_);
    options.buffer_bytes = std::size_t{8} << 20;
    options.lookup = Lookup::kMessage;
    client_ = connect(options);
    options.lookup = Lookup::kOneSided;
    reader_ = connect(options);
    ASSERT_TRUE(client_ && reader_);
    buffer_ = client_->allocate(std::size_t{2} << 20);
    ASSERT_FALSE(buffer_.empty());
  }
  template <class Once>
  void expect(const Budget& client, const Budget& server, Once&& once) {
    constexpr std::uint64_t kRounds = 200;
    ASSERT_TRUE(once());
    const verbena::Counters client_before = client_->counters();
    const verbena::Counters server_before = server_->counters();
    for (std::uint64_t i = 0; i < kRounds; ++i) ASSERT_TRUE(once());
    check("client", client, client_before, client_->counters(), kRounds);
    check("server", server, server_before, server_->counters(), kRounds);
  }
  static void check(const char* side, const Budget& most, const verbena::Counters& before,
                    const verbena::Counters& after, std::uint64_t rounds) {
    SCOPED_TRACE(side);
    const auto each = [&](std::uint64_t more, std::uint64_t less) {
      return static_cast<double>(more - less) / static_cast<double>(rounds);
    };
    EXPECT_LE(each(after.work_requests, before.work_requests), most.work_requests + 0.05);
    EXPECT_LE(each(after.doorbells, before.doorbells), most.doorbells + 0.05);
    EXPECT_LE(each(after.completions, before.completions), most.completions + 0.05);
    // A receiver that finds less at a time, as under chaos, gives back less at a time.
    if (!test::in_chaos()) {
      EXPECT_LE(each(after.receive_refills, before.receive_refills), most.receive_refills + 0.05);
    }
    // The server may not have counted its last reply when its client has it.
    EXPECT_GE(each(after.work_requests, before.work_requests), 0.9) << "the counters count";
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Client> reader_;  ///< By READs.
  std::span<std::byte> buffer_;
};

// Sends are signaled one in 32 or less often, receives given back by the quarter of a queue.
constexpr Budget kMessage{.work_requests = 1, .doorbells = 1, .completions = 1.1, .receive_refills = 0.1};

TEST_F(KvBudget, ASmallOperationIsOneMessageEachWay) {
  const auto key = key_of("key");
  const std::string value(64, 'v');
  expect(kMessage, kMessage, [&] { return client_->put(key, bytes_of(value)).status == Status::kOk; });
  std::array<std::byte, 64> out;
  expect(kMessage, kMessage, [&] { return client_->get(key, out).status == Status::kOk; });
  expect(kMessage, kMessage, [&] { return client_->cas(key, 1, bytes_of(value)).status == Status::kVersionMismatch; });
  expect(kMessage, kMessage, [&] { return client_->get(key_of("none"), out).status == Status::kNotFound; });
}

// The server READs 1 MiB in four pieces of 256 KiB, of which two share a doorbell.
TEST_F(KvBudget, ALargePutIsAMessageEachWayAndTheServersReads) {
  const auto value = buffer_.first(std::size_t{1} << 20);
  expect(kMessage, {.work_requests = 5, .doorbells = 5, .completions = 5.1, .receive_refills = 0.1},
         [&] { return client_->put(key_of("key"), value).status == Status::kOk; });
}

TEST_F(KvBudget, ALargeGetIsAMessageEachWayAndItsReads) {
  const auto value = buffer_.first(std::size_t{1} << 20);
  ASSERT_EQ(client_->put(key_of("key"), value).status, Status::kOk);
  const auto out = buffer_.subspan(std::size_t{1} << 20);
  const Budget client{.work_requests = 5, .doorbells = 5, .completions = 5.1, .receive_refills = 0.1};
  expect(client, kMessage, [&] { return client_->get(key_of("key"), out).status == Status::kOk; });
}

// A server answers what a poll brought by one doorbell.
TEST_F(KvBudget, PipelinedOperationsShareTheServersDoorbells) {
  ASSERT_EQ(client_->put(key_of("key"), bytes_of("value")).status, Status::kOk);
  std::array<std::array<std::byte, 64>, 16> out;
  std::array<Completion, 16> done;
  const auto once = [&] {
    for (std::size_t i = 0; i < out.size(); ++i)
      if (client_->start_get(key_of("key"), out[i], i) != Status::kOk) return false;
    const Deadline deadline = Deadline::after(std::chrono::seconds{20});
    for (std::size_t have = 0; have < out.size();) {
      const std::size_t more = client_->poll(done);
      for (std::size_t i = 0; i < more; ++i)
        if (done[i].outcome.status != Status::kOk) return false;
      have += more;
      if (deadline.passed()) return false;
    }
    return true;
  };
  const Budget most{.work_requests = 16, .doorbells = 16, .completions = 17.6, .receive_refills = 1.6};
  expect(most, most, once);
}

/// What `rounds` calls of `once` cost a client and, beside it, its server.
struct Cost {
  double work_requests, doorbells, server_work_requests;
};
template <class Once>
Cost cost_of(const Client& client, const Server& server, Once&& once) {
  constexpr int kRounds = 200;
  EXPECT_TRUE(once());
  const verbena::Counters before = client.counters(), server_before = server.counters();
  for (int i = 0; i < kRounds; ++i) EXPECT_TRUE(once());
  const verbena::Counters after = client.counters(), server_after = server.counters();
  const auto each = [](std::uint64_t more, std::uint64_t less) { return static_cast<double>(more - less) / kRounds; };
  return {each(after.work_requests, before.work_requests), each(after.doorbells, before.doorbells),
          each(server_after.work_requests, server_before.work_requests)};
}

// One READ at a known location, and one or two of buckets before it through the index; the server has no part in it.
TEST_F(KvBudget, AOneSidedGetIsItsReads) {
  ASSERT_EQ(client_->put(key_of("key"), bytes_of(std::string(64, 'v'))).status, Status::kOk);
  std::array<std::byte, 64> out;
  const auto get = [&](Client& client) { return client.get(key_of("key"), out).status == Status::kOk; };
  const Cost known = cost_of(*reader_, *server_, [&] { return get(*reader_); });
  EXPECT_LE(known.work_requests, 1.05);
  EXPECT_GE(known.work_requests, 1.0);
  EXPECT_LE(known.doorbells, 1.05);
  EXPECT_LE(known.server_work_requests, 0.05);

  ClientOptions options = client_options(*server_);
  options.lookup = Lookup::kOneSided;
  options.known_locations = 0;
  const auto forgetful = connect(options);
  ASSERT_TRUE(forgetful);
  const Cost looked_up = cost_of(*forgetful, *server_, [&] { return get(*forgetful); });
  EXPECT_LE(looked_up.work_requests, 3.05);
  EXPECT_LE(looked_up.doorbells, 2.05) << "both buckets by one";
  EXPECT_LE(looked_up.server_work_requests, 0.05);
}

TEST_F(KvBudget, ABatchOfReadsSharesItsDoorbells) {
  constexpr std::size_t kCount = 16;
  std::array<std::string, kCount> keys;
  std::array<std::array<std::byte, 64>, kCount> outs;
  std::array<PutRequest, kCount> puts;
  std::array<GetRequest, kCount> gets;
  for (std::size_t i = 0; i < kCount; ++i) {
    keys[i] = "key" + std::to_string(i);
    puts[i] = {.key = key_of(keys[i]), .value = bytes_of("value")};
    gets[i] = {.key = key_of(keys[i]), .out = outs[i]};
  }
  const auto all_well = [](const auto& requests) {
    return std::ranges::all_of(requests, [](const auto& one) { return one.outcome.status == Status::kOk; });
  };
  const Cost put = cost_of(*client_, *server_, [&] {
    client_->put(puts);
    return all_well(puts);
  });
  EXPECT_LE(put.work_requests, kCount * 1.05);
  EXPECT_LE(put.doorbells, test::in_chaos() ? 3 : 1.2);
  const Cost asked = cost_of(*client_, *server_, [&] {
    client_->get(gets);
    return all_well(gets);
  });
  EXPECT_LE(asked.doorbells, test::in_chaos() ? 3 : 1.2);
  const Cost read = cost_of(*reader_, *server_, [&] {
    reader_->get(gets);
    return all_well(gets);
  });
  EXPECT_LE(read.work_requests, kCount * 1.05);
  EXPECT_LE(read.doorbells, 1.05);
  EXPECT_LE(read.server_work_requests, 0.05);
}

}  // namespace
}  // namespace verbena::kv
