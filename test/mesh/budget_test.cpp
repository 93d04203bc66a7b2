// What the mesh's calls cost, in counts: a poll looks at one queue, whoever its peers are, and a message between two
// costs no more because others are there. On every NIC alike.
#include "fixture.hpp"

#include <cstdint>

namespace verbena::mesh::test {
namespace {

/// Beside process 0. More than the software NIC looks at one by one.
constexpr unsigned kIdle = 11;
constexpr std::uint64_t kPolls = 4096;

class MeshBudget : public Meshes {
 protected:
  /// What so many polls that find nothing cost. What was on its way has come before.
  [[nodiscard]] Counters cost_of_silence(std::uint64_t polls) {
    std::array<Completion, 4> none;
    std::uint64_t in_a_row = 0;
    for (const Deadline deadline = patience(); in_a_row < kPolls && !deadline.passed(); turn())
      in_a_row = lane(0).poll(none) == 0 ? in_a_row + 1 : 0;
    EXPECT_EQ(in_a_row, kPolls);
    const Counters before = lane(0).counters();
    for (std::uint64_t i = 0; i < polls; ++i) EXPECT_EQ(lane(0).poll(none), 0U);
    return difference(before, lane(0).counters());
  }
  [[nodiscard]] static Counters difference(const Counters& before, const Counters& after) {
    return {.work_requests = after.work_requests - before.work_requests,
            .doorbells = after.doorbells - before.doorbells,
            .completions = after.completions - before.completions,
            .receive_refills = after.receive_refills - before.receive_refills,
            .empty_polls = after.empty_polls - before.empty_polls,
            .sleeps = after.sleeps - before.sleeps,
            .keepalives = after.keepalives - before.keepalives};
  }
  /// Sends 0 to 1 and back, and gives back what has come.
  [[nodiscard]] bool round_trip() {
    for (const unsigned from : {0U, 1U}) {
      const unsigned to = 1 - from;
      if (patiently([&] { return lane(from).send(to, message_, 0); }) != Status::kOk) return false;
      if (!until([&] { return take(to); })) return false;
    }
    return true;
  }
  /// Whether a message has come; ends of sends are taken too.
  [[nodiscard]] bool take(unsigned id) {
    std::size_t messages = 0;
    lane(id).poll_each([&](const Completion& one) { messages += one.kind == Completion::Kind::kReceive; });
    return messages != 0;
  }

 private:
  const Bytes message_ = pattern(64, 1);
};

TEST_F(MeshBudget, APollLooksAtOneQueueWhoeverIsThere) {
  for (const unsigned peers : {1U, kIdle}) {
    SCOPED_TRACE(peers);
    meshes.clear();
    ASSERT_NO_FATAL_FAILURE(start(peers + 1));
    const Counters cost = cost_of_silence(kPolls);
    // A device is asked now and then whether its peers are there.
    EXPECT_EQ(cost.work_requests, cost.keepalives);
    EXPECT_EQ(cost.doorbells, cost.keepalives);
    EXPECT_EQ(cost.receive_refills, 0U);
    EXPECT_EQ(cost.sleeps, 0U);
    EXPECT_LE(cost.empty_polls, kPolls);
    EXPECT_GE(cost.empty_polls + cost.completions, kPolls);
  }
}

TEST_F(MeshBudget, AMessageBetweenTwoCostsNoMoreBesideOthers) {
  constexpr std::uint64_t kRounds = 200;
  for (const unsigned peers : {1U, kIdle}) {
    SCOPED_TRACE(peers);
    meshes.clear();
    ASSERT_NO_FATAL_FAILURE(start(peers + 1));
    ASSERT_TRUE(round_trip());
    const Counters before = lane(0).counters();
    for (std::uint64_t i = 0; i < kRounds; ++i) ASSERT_TRUE(round_trip());
    const Counters cost = difference(before, lane(0).counters());
    // One send, and its end and the answer; receives are given back by the quarter of a queue.
    EXPECT_EQ(cost.work_requests - cost.keepalives, kRounds);
    EXPECT_EQ(cost.doorbells - cost.keepalives, kRounds);
    EXPECT_LE(cost.completions, 2 * kRounds + cost.keepalives + 2);
    EXPECT_LE(cost.receive_refills, kRounds / 2 + 1);
  }
}

}  // namespace
}  // namespace verbena::mesh::test
