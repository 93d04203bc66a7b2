// Two queue pairs of one node, connected to each other.
#pragma once

#include "fixture.hpp"

#include "api/cxx/queue_pair_state.hpp"

#include <verbena/queue_pair.hpp>

#include <hold.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

namespace verbena::typed {

using rdma::patience;
using Words = Segment<std::uint64_t>;

template <QueuePairType Type>
struct Pair {
  Ready<Type> a;
  Ready<Type> b;
};

template <QueuePairType Type>
void connect_both(Prepared<Type>&& left, Prepared<Type>&& right, Pair<Type>& pair) {
  const QueuePairEndpoint of_left = left.describe();
  auto a = std::move(left).begin(right.describe());
  ASSERT_OK(a);
  auto b = std::move(right).begin(of_left);
  ASSERT_OK(b);
  const Deadline limit = patience();
  Status of_a = Status::kAgain;
  Status of_b = Status::kAgain;
  while ((of_a == Status::kAgain || of_b == Status::kAgain) && !limit.passed()) {
    of_a = a->step();
    of_b = b->step();
  }
  ASSERT_EQ(of_a, Status::kOk) << to_string(of_a);
  ASSERT_EQ(of_b, Status::kOk) << to_string(of_b);
  auto ready_a = std::move(*a).finish(patience());
  ASSERT_OK(ready_a);
  auto ready_b = std::move(*b).finish(patience());
  ASSERT_OK(ready_b);
  pair = {std::move(*ready_a), std::move(*ready_b)};
}

class QueuePairTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(open(node)); }
  static void open(std::unique_ptr<rdma::Node>& to) {
    rdma::NodeOptions options{.transport = test::transport_under_test()};
    if (test::is_soft_under_test()) options.address = "127.0.0.1";
    auto opened = rdma::Node::open(options);
    ASSERT_OK(opened);
    to = std::move(*opened);
  }
  template <QueuePairType Type>
  void connect(Pair<Type>& pair, QueuePairBuilder<Type> builder = {}) {
    const auto made = builder.on(*node);
    auto left = made.prepare();
    ASSERT_OK(left);
    auto right = made.prepare();
    ASSERT_OK(right);
    ASSERT_NO_FATAL_FAILURE(connect_both(std::move(*left), std::move(*right), pair));
  }
  template <Element T>
  [[nodiscard]] MemoryRegion<T> region_of(std::size_t count) const {
    auto made = MemoryRegion<T>::allocate(*node, count);
    EXPECT_OK(made);
    return made ? std::move(*made) : MemoryRegion<T>();
  }
  template <Element T>
  [[nodiscard]] static Segment<T> taken(MemoryRegion<T>& region, std::size_t first = 0,
                                        std::size_t count = rdma::kRest) {
    auto segment = region.take(first, count);
    EXPECT_TRUE(segment.has_value()) << error_detail();
    return segment ? std::move(*segment) : Segment<T>();
  }
  /// Elements that count up from `value`.
  [[nodiscard]] static Words counting(MemoryRegion<std::uint64_t>& region, std::size_t first, std::size_t count,
                                      std::uint64_t value) {
    Words words = taken(region, first, count);
    words.use([value](std::span<std::uint64_t> all) { std::iota(all.begin(), all.end(), value); });
    return words;
  }
  [[nodiscard]] static bool counts_up(const Elements<std::uint64_t>& words, std::uint64_t value) {
    return words.use([value](std::span<const std::uint64_t> all) mutable {
      return std::ranges::all_of(all, [&value](std::uint64_t each) { return each == value++; });
    });
  }
  template <class T, QueuePairType Type>
  [[nodiscard]] static RemoteSegment<T> opened(Ready<Type>& pair, const rdma::Window& window) {
    auto remote = pair.template open<T>(window, patience());
    EXPECT_OK(remote);
    return remote ? *remote : RemoteSegment<T>();
  }

  std::unique_ptr<rdma::Node> node;
};

/// A pair of a type, with a region for each of its ends.
template <QueuePairType Type>
class PairTest : public QueuePairTest {
 protected:
  static constexpr std::size_t kCount = 4096;
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(QueuePairTest::SetUp());
    ASSERT_NO_FATAL_FAILURE(this->connect(pair));
    mine = region_of<std::uint64_t>(kCount);
    theirs = region_of<std::uint64_t>(kCount);
    there = opened<std::uint64_t>(pair.a, theirs.window());
  }

  Pair<Type> pair;
  MemoryRegion<std::uint64_t> mine;
  MemoryRegion<std::uint64_t> theirs;
  RemoteSegment<std::uint64_t> there;  ///< `theirs`, as pair.a has opened it.
};

/// The verbs queue pair of one that is ready, for tests that hold the NIC.
struct Peek {
  template <QueuePairType Type>
  struct Opened : Ready<Type> {
    using QueuePairBase::pair_;
  };
  template <QueuePairType Type>
  [[nodiscard]] static ibv_qp* at(Ready<Type>& pair) noexcept {
    return (pair.*&Opened<Type>::pair_).state()->queue_pair();
  }
};

/// Keeps the soft NIC from executing what a queue pair posts.
class HeldPair {
 public:
  template <QueuePairType Type>
  explicit HeldPair(Ready<Type>& pair) : pair_(Peek::at(pair)) {
    test::hold_execution(pair_, true);
  }
  ~HeldPair() { release(); }
  HeldPair(const HeldPair&) = delete;
  HeldPair& operator=(const HeldPair&) = delete;
  void release() {
    if (ibv_qp* const pair = std::exchange(pair_, nullptr); pair != nullptr) test::hold_execution(pair, false);
  }
  /// The queue pair has gone.
  void forget() { pair_ = nullptr; }

 private:
  ibv_qp* pair_;
};

}  // namespace verbena::typed
