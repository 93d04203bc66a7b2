// What is made and ended again leaves nothing: no object of the NIC, descriptor, mapping or heap memory, over thousands
// of lives.
#include "../channel/fixture.hpp"
#include "../kv/churn.hpp"
#include "../kv/model.hpp"

#include <allocations.hpp>
#include <process.hpp>

#include <cstdlib>
#include <fstream>
#include <ostream>
#include <string>
#include <thread>

namespace verbena::test {
namespace {

/// What the process holds of the kernel and of its heap.
struct Holdings {
  std::size_t descriptors = open_descriptors();
  std::size_t mappings = [] {
    std::ifstream maps("/proc/self/maps");
    std::size_t lines = 0;
    for (std::string line; std::getline(maps, line);) ++lines;
    return lines;
  }();
  std::int64_t heap_bytes = live_heap_bytes();

  /// Whether `lives` that began with `before` have left nothing: what each leaves is there `lives` times.
  [[nodiscard]] bool is_no_more_than(const Holdings& before, std::uint64_t lives) const {
    // The allocator maps for itself, and keeps what it likes: a thread's arena, say. The smallest block has 24 bytes.
    return descriptors <= before.descriptors && mappings <= before.mappings + lives / 10 + 4 &&
           heap_bytes <= before.heap_bytes + static_cast<std::int64_t>(lives * 12);
  }
  friend std::ostream& operator<<(std::ostream& out, const Holdings& holdings) {
    return out << holdings.descriptors << " descriptors, " << holdings.mappings << " mappings, " << holdings.heap_bytes
               << " bytes of heap";
  }
};

/// Warms up, then lives `lives` lives, and looks at what is left once threads in the background are done.
template <class WarmUp, class Live>
void expect_nothing_left(std::uint64_t lives, WarmUp&& warm_up, Live&& live) {
  warm_up();
  const Holdings before;
  live();
  if (testing::Test::HasFailure()) return;
  const Deadline deadline = patience();
  Holdings after;
  while (!after.is_no_more_than(before, lives) && !deadline.passed()) {
    std::this_thread::yield();
    after = Holdings();
  }
  EXPECT_TRUE(after.is_no_more_than(before, lives)) << "before: " << before << "; after: " << after;
}

/// One life after the other.
template <class Life>
void expect_no_growth(std::uint64_t lives, Life&& life) {
  const auto all = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count && !testing::Test::HasFailure(); ++i) life(i);
  };
  expect_nothing_left(lives, [&] { all(lives / 20 + 10); }, [&] { all(lives); });
}

}  // namespace
}  // namespace verbena::test

namespace verbena {
namespace {

using namespace verbena::test;

class Growth : public testing::Test {
 protected:
  void SetUp() override { VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS(); }
};

class ConnectionGrowth : public channel::test::MemoryPair {
 protected:
  void SetUp() override { VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS(); }
  void end() {
    a.connection.reset();
    b.connection.reset();
    target.reset();
    local.reset();
    a.recorder.failures.clear();
    b.recorder.failures.clear();
  }
};

TEST_F(ConnectionGrowth, Connections) {
  a.recorder.keep = b.recorder.keep = false;
  const channel::Options options{
      .depth = 4, .eager_bytes = 64, .lease_bytes = 4096, .max_reads = 1, .max_operations = 2, .max_larges = 1};
  const auto body = channel::test::pattern(8, 1);
  open(options, options);
  end();
  const auto a_before = a.objects_but_peers();
  const auto b_before = b.objects_but_peers();
  const auto a_usage = a.buffers->usage().slabs;
  expect_no_growth(a.rounds(1000), [&](std::uint64_t i) {
    const std::uint64_t before = b.recorder.message_count;
    open(options, options);
    send(*a.connection, body);
    EXPECT_TRUE(until([&] { return b.recorder.message_count == before + 1; }));
    EXPECT_EQ(here().write(local->local(0, 8), target->remote(0, 8), patience()), Status::kOk);
    // Some with operations in flight, and in the other order.
    EXPECT_TRUE(i % 3 != 0 || here().start_read(local->local(0, 8), target->remote(0, 8), 1) == Status::kOk);
    if (i % 2 == 0) b.connection.reset();
    end();
  });
  EXPECT_EQ(a.objects_but_peers(), a_before);
  EXPECT_EQ(b.objects_but_peers(), b_before);
  EXPECT_EQ(a.buffers->usage().slabs, a_usage);
}

TEST_F(Growth, NicsAndLoops) {
  expect_no_growth(device_under_test() == nullptr ? 1000 : 50, [](std::uint64_t) { const channel::test::Side side; });
}

TEST_F(Growth, ClientsOfTheStore) {
  const auto server = kv::testing_support::start(kv::testing_support::small_server());
  ASSERT_TRUE(server);
  const std::vector<std::byte> value(10'000);
  expect_no_growth(device_under_test() == nullptr ? 250 : 20, [&](std::uint64_t i) {
    auto options = kv::testing_support::client_options(*server);
    options.buffer_bytes = 64 * 1024;
    const auto client = kv::testing_support::connect(options);
    ASSERT_TRUE(client);
    EXPECT_EQ(client->put(kv::testing_support::key_of("key"), std::span(value).first(i % 2 == 0 ? 10 : 10'000)).status,
              Status::kOk);
  });
  EXPECT_TRUE(kv::testing_support::eventually([&] { return server->statistics().clients == 0; }));
}

// Several at a time, at random, in the midst of whatever they do.
TEST_F(Growth, ClientsThatComeAndLeaveAtRandom) {
  VERBENA_SKIP_ON_A_DEVICE("a thousand registrations take long there");
  const auto server = kv::testing_support::start(kv::testing_support::churn_server());
  ASSERT_TRUE(server);
  const kv::testing_support::Churn churn(*server);
  // A thousand with VERBENA_SEEDS: that is a minute.
  const unsigned lives_in_all = std::getenv("VERBENA_SEEDS") != nullptr ? 1000 : 250;
  const auto live = [&](unsigned lives, unsigned seed) {
    churn.live(lives, seed);
    churn.clear();
  };
  expect_nothing_left(lives_in_all, [&] { live(lives_in_all / 5, 1); }, [&] { live(lives_in_all, 2); });
}

TEST_F(Growth, Servers) {
  expect_no_growth(device_under_test() == nullptr ? 60 : 5, [](std::uint64_t) {
    auto options = kv::testing_support::small_server();
    options.memory_bytes = std::size_t{1} << 20;
    options.max_items = 0;
    options.max_value_bytes = 1000;
    const auto server = kv::testing_support::start(options);
    ASSERT_TRUE(server);
    ASSERT_TRUE(kv::testing_support::connect(kv::testing_support::client_options(*server)));
  });
}

}  // namespace
}  // namespace verbena
