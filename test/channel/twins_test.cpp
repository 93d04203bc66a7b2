// Each call that the software NIC carries out in the calling thread, beside its twin through the queues: random
// programs of right and wrong operations, run once by either, leave the same results, the same memory on both sides,
// and the connection in the same state. On a device, and under chaos, all go through the queues.
// VERBENA_SEEDS: seeds of each test (20).
#include "fixture.hpp"

#include <chaos.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>

namespace verbena::channel::test {
namespace {

constexpr std::size_t kBytes = std::size_t{16} << 10;

/// What an operation is done to, and with.
enum class Target : std::uint8_t { kAll, kReadOnly, kUnknown, kRevoked };
enum class Local : std::uint8_t { kRegistered, kReadOnly, kUnknownKey, kPlain };
enum class Kind : std::uint8_t { kRead, kWrite, kFetchAdd, kCompareSwap, kReadList, kSend };

struct Step {
  Kind kind = Kind::kRead;
  Target target = Target::kAll;
  Local local = Local::kRegistered;
  std::size_t at = 0;    ///< Into the target.
  std::size_t from = 0;  ///< Into the local memory.
  std::size_t length = 0;
  std::uint64_t operand = 0;
};

struct TwinResult {
  Status status = Status::kOk;
  std::uint64_t old = 0;
  friend bool operator==(const TwinResult&, const TwinResult&) = default;
};

/// A connection with memory of every sort on both sides. Two of them are the same but for their addresses. With
/// `keeps_messages` every message that arrives goes through the queues.
class Half final : public ConnectionPair {
 public:
  explicit Half(std::uint64_t seed, bool keeps_messages) {
    open({.keeps_messages = keeps_messages}, {.keeps_messages = keeps_messages});
    if (HasFatalFailure()) return;
    all = std::make_unique<Region>(*b.nic, b.pd.get(), kBytes);
    read_only = std::make_unique<Region>(*b.nic, b.pd.get(), kBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    unknown = std::make_unique<Region>(*b.nic, b.pd.get(), kBytes);
    revoked = std::make_unique<Region>(*b.nic, b.pd.get(), kBytes);
    mine = std::make_unique<Region>(*a.nic, a.pd.get(), kBytes);
    my_read_only = std::make_unique<Region>(*a.nic, a.pd.get(), kBytes, IBV_ACCESS_REMOTE_READ);
    plain.resize(kBytes);
    for (const Region* region : {all.get(), read_only.get(), revoked.get()})
      EXPECT_OK(a.connection->import_window(region->window(), patience()));
    revoked_at = revoked->remote(0, kBytes);
    revoked.reset();  // Its key is known here, and the NIC there refuses it.
    std::uint64_t pattern = seed;
    for (const Region* region : {all.get(), read_only.get(), mine.get(), my_read_only.get()})
      fill(region->bytes(), ++pattern);
    fill(plain, ++pattern);
  }
  ~Half() override {
    a.connection.reset();
    b.connection.reset();
  }
  void TestBody() override {}
  using ConnectionPair::a;
  using ConnectionPair::b;

  [[nodiscard]] RemoteSpan remote(const Step& step) const {
    if (step.target == Target::kRevoked) return {revoked_at.address + step.at, step.length, revoked_at.rkey};
    const Region& region = step.target == Target::kAll        ? *all
                           : step.target == Target::kReadOnly ? *read_only
                                                              : *unknown;
    return region.remote(step.at, step.length);
  }
  [[nodiscard]] LocalSpan local(const Step& step) const {
    if (step.local == Local::kReadOnly) return my_read_only->local(step.from, step.length);
    LocalSpan span = mine->local(step.from, step.length);
    if (step.local == Local::kUnknownKey) span.lkey ^= 0x5500;
    return span;
  }
  [[nodiscard]] std::span<std::byte> plain_at(const Step& step) {
    return std::span(plain).subspan(step.from, step.length);
  }
  [[nodiscard]] static Change change(const Step& step) {
    return step.kind == Kind::kFetchAdd ? Change{.compare_add = step.operand} : swap_of(step.operand, ~step.operand);
  }

  /// By the call that waits, which takes the way past the queues where there is one.
  [[nodiscard]] TwinResult at_once(const Step& step) {
    Connection& to = *a.connection;
    const bool is_plain = step.local == Local::kPlain;
    TwinResult result;
    switch (step.kind) {
      case Kind::kRead:
        result.status = is_plain ? to.read(plain_at(step), remote(step), patience())
                                 : to.read(local(step), remote(step), patience());
        break;
      case Kind::kWrite:
        result.status = is_plain ? to.write(std::span<const std::byte>(plain_at(step)), remote(step), patience())
                                 : to.write(local(step), remote(step), patience());
        break;
      case Kind::kReadList: {
        const auto list = pieces(step);
        result.status = to.read_list_now(list, remote(step).rkey);
        if (result.status == Status::kAgain) return queued(step);
        ++lists;
        break;
      }
      case Kind::kSend: {
        const std::uint64_t before = b.recorder.message_count;
        result.status = to.send(plain_at(step));
        if (result.status == Status::kOk) expect_message(before + 1);
        break;
      }
      default: result.status = to.change(change(step), remote(step), result.old, patience());
    }
    return result;
  }

  /// By the call that starts it, and its completion.
  [[nodiscard]] TwinResult queued(const Step& step) {
    Connection& to = *a.connection;
    const bool is_plain = step.local == Local::kPlain;
    constexpr std::uint64_t kToken = 77;
    const std::size_t before = a.recorder.completions.size();
    Status status = Status::kOk;
    const std::uint64_t messages = b.recorder.message_count;
    std::size_t started = 1;
    switch (step.kind) {
      case Kind::kRead:
        status = is_plain ? to.start_read(plain_at(step), remote(step), kToken)
                          : to.start_read(local(step), remote(step), kToken);
        break;
      case Kind::kWrite:
        status = is_plain ? to.start_write(std::span<const std::byte>(plain_at(step)), remote(step), kToken)
                          : to.start_write(local(step), remote(step), kToken);
        break;
      case Kind::kReadList:
        started = 0;
        for (const nic::PlainRead& piece : pieces(step)) {
          const RemoteSpan from{piece.from, piece.bytes, remote(step).rkey};
          status = to.start_read(std::span(piece.to, piece.bytes), from, kToken);
          if (status != Status::kOk) break;
          ++started;
        }
        break;
      case Kind::kSend: status = to.start_send(plain_at(step), {}, kToken); break;
      default: status = to.start_change(change(step), remote(step), kToken);
    }
    if (status != Status::kOk) return {.status = status};
    if (step.kind == Kind::kSend) expect_message(messages + 1);
    EXPECT_TRUE(until([&] { return a.recorder.completions.size() == before + started; })) << "no completion came";
    TwinResult result;
    for (std::size_t i = before; i < a.recorder.completions.size(); ++i) {
      if (result.status == Status::kOk) result.status = a.recorder.completions[i].status;
      result.old = a.recorder.completions[i].old;
    }
    return result;
  }

  /// Waits until both ends have heard of a failure, and says why this one ended.
  [[nodiscard]] Status end() {
    EXPECT_TRUE(until([&] { return !a.recorder.failures.empty(); }));
    return a.recorder.failures.empty() ? Status::kOk : a.recorder.failures.front();
  }

  std::unique_ptr<Region> all, read_only, unknown, revoked, mine, my_read_only;
  RemoteSpan revoked_at;
  Bytes plain;
  std::uint64_t lists = 0;  ///< That went past the queues.

 private:
  void expect_message(std::uint64_t count) {
    EXPECT_TRUE(until([&] { return b.recorder.message_count == count; })) << "the message did not come";
  }
  /// A list of four READs.
  [[nodiscard]] std::array<nic::PlainRead, 4> pieces(const Step& step) {
    std::array<nic::PlainRead, 4> list;
    const auto each = static_cast<std::uint32_t>(step.length / list.size());
    for (std::size_t i = 0; i < list.size(); ++i)
      list[i] = {.to = plain.data() + step.from + i * each, .bytes = each, .from = remote(step).address + i * each};
    return list;
  }
};

/// Mostly right, and everything that can be wrong.
Step draw(std::mt19937_64& random, bool may_end) {
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  Step step{.kind = static_cast<Kind>(random() % 6), .operand = random() % 3};
  const std::array<std::size_t, 8> lengths{1, 8, 64, 220, 256, 1000, 4096, 9000};
  step.length = lengths[random() % lengths.size()];
  step.at = random() % (kBytes - step.length);
  step.from = random() % (kBytes - step.length);
  if (one_in(3)) step.local = Local::kPlain;
  if (step.kind == Kind::kFetchAdd || step.kind == Kind::kCompareSwap) {
    step.length = 8;
    step.at = random() % (kBytes / 8 - 1) * 8;
  }
  if (step.kind == Kind::kReadList) step.length = (step.length + 3) / 4 * 4;
  if (one_in(16)) step.length = step.kind == Kind::kReadList ? 4 : 0;
  if (one_in(16)) step.at = kBytes - step.length / 2;
  if (one_in(16)) step.at += 1;
  // A list that is wrong is so from its first READ on: started one by one, the others would be carried out.
  if (step.kind == Kind::kReadList && step.at + step.length > kBytes) step.at = kBytes;
  if (one_in(16)) step.target = Target::kUnknown;
  if (one_in(16)) step.target = Target::kReadOnly;
  if (may_end && one_in(16)) step.target = Target::kRevoked;
  const bool has_key = step.local != Local::kPlain && (step.kind == Kind::kRead || step.kind == Kind::kWrite);
  if (may_end && has_key && one_in(16)) step.local = one_in(2) ? Local::kReadOnly : Local::kUnknownKey;
  return step;
}

void expect_same_memory(const Half& one, const Half& other) {
  EXPECT_TRUE(std::ranges::equal(one.all->bytes(), other.all->bytes())) << "at the peer";
  EXPECT_TRUE(std::ranges::equal(one.read_only->bytes(), other.read_only->bytes())) << "at the peer, read only";
  EXPECT_TRUE(std::ranges::equal(one.mine->bytes(), other.mine->bytes())) << "registered here";
  EXPECT_TRUE(std::ranges::equal(one.plain, other.plain)) << "not registered here";
  EXPECT_EQ(one.b.recorder.messages, other.b.recorder.messages) << "received";
}

class Twins : public testing::TestWithParam<bool> {};

TEST_P(Twins, LeaveTheSame) {
  const bool may_end = GetParam();
  const char* const more = std::getenv("VERBENA_SEEDS");
  const std::uint64_t seeds = more != nullptr ? std::strtoull(more, nullptr, 10) * 20 : 20;
  std::uint64_t direct = 0, lists = 0, ended = 0, refills = 0, refills_queued = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Half fast(seed, false), slow(seed, true);
    if (testing::Test::HasFailure()) return;
    for (int i = 0; i < 100; ++i) {
      const Step step = draw(random, may_end);
      SCOPED_TRACE(testing::Message() << "step " << i << ": kind " << static_cast<int>(step.kind) << ", target "
                                      << static_cast<int>(step.target) << ", local " << static_cast<int>(step.local)
                                      << ", " << step.length << " bytes at " << step.at << " with " << step.from);
      const TwinResult of_fast = fast.at_once(step), of_slow = slow.queued(step);
      EXPECT_EQ(of_fast.status, of_slow.status) << to_string(of_fast.status) << " and " << to_string(of_slow.status);
      EXPECT_EQ(of_fast.old, of_slow.old);
      EXPECT_EQ(fast.a.connection->alive(), slow.a.connection->alive());
      expect_same_memory(fast, slow);
      if (testing::Test::HasFailure()) return;
      if (slow.a.connection->alive()) continue;
      EXPECT_EQ(fast.end(), slow.end());
      ++ended;
      break;
    }
    direct += fast.a.loop->counters().direct;
    lists += fast.lists;
    EXPECT_EQ(slow.a.loop->counters().direct, 0u);
    refills += fast.b.loop->counters().receive_refills;
    refills_queued += slow.b.loop->counters().receive_refills;
  }
  EXPECT_EQ(ended != 0, may_end);
  RecordProperty("direct", std::to_string(direct));
  RecordProperty("lists", std::to_string(lists));
  const Half probe(0, false);
  if (probe.a.nic->direct() == nullptr || verbena::test::in_chaos()) {
    EXPECT_EQ(direct, 0u);
    EXPECT_EQ(refills, refills_queued);
  } else {
    EXPECT_GT(lists, 0u);
    EXPECT_GT(direct, 10 * seeds) << "these were to be compared";
    // A connection that ends early has received too little to post again.
    if (!may_end) {
      EXPECT_LT(refills, refills_queued) << "messages past the queues were to be compared";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Twins, testing::Bool(), [](const auto& each) {
  return std::string(each.param ? "AllWithWhatEndsAConnection" : "WhatAConnectionOutlives");
});

}  // namespace
}  // namespace verbena::channel::test
