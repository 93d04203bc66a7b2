// Queue pairs of users' own, sealed: operations are posted, dropped and completed, and batches posted again.
#include "sealed.hpp"

#include <transport.hpp>

#include <verbena/coroutines_queue_pair.hpp>

#include <array>
#include <memory>
#include <optional>
#include <utility>

namespace verbena::typed {
namespace {

using test::expect_sealed;
using test::expect_unallocated;
using Words = Segment<std::uint64_t>;

template <class Type>
class SealedQueuePair : public testing::Test {
 protected:
  static constexpr std::size_t kCount = 4096;

  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    rdma::NodeOptions options{.transport = test::transport_under_test(),
                              .address = test::is_soft_under_test() ? "127.0.0.1" : ""};
    auto opened_node = rdma::Node::open(options);
    ASSERT_TRUE(opened_node.has_value()) << opened_node.error().text();
    node_ = std::move(*opened_node);
    const auto builder = QueuePairBuilder<Type>().on(*node_);
    auto left = builder.prepare();
    auto right = builder.prepare();
    ASSERT_TRUE(left && right) << error_detail();
    const QueuePairEndpoint of_left = left->describe();
    auto begun = std::move(*left).begin(right->describe());
    auto begun_too = std::move(*right).begin(of_left);
    ASSERT_TRUE(begun && begun_too) << error_detail();
    for (const Deadline end = limit(); !end.passed();) {
      const Status of_a = begun->step();
      if (begun_too->step() == Status::kOk && of_a == Status::kOk) break;
    }
    auto ready = std::move(*begun).finish(limit());
    auto ready_too = std::move(*begun_too).finish(limit());
    ASSERT_TRUE(ready && ready_too) << error_detail();
    a = std::move(*ready);
    b = std::move(*ready_too);
    auto allocated = MemoryRegion<std::uint64_t>::allocate(*node_, kCount);
    ASSERT_TRUE(allocated.has_value()) << allocated.error().text();
    region = std::move(*allocated);
    auto opened = a.template open<std::uint64_t>(region.window(), limit());
    ASSERT_TRUE(opened.has_value()) << opened.error().text();
    there = opened->unsafe_part(kCount / 2, kCount / 2);
  }
  [[nodiscard]] static std::uint64_t rounds(std::uint64_t count) {
    return test::device_under_test() == nullptr ? count : count / 50 + 1;
  }
  [[nodiscard]] static Deadline limit() { return Deadline::after(std::chrono::seconds{20}); }

  Ready<Type> a;
  Ready<Type> b;
  MemoryRegion<std::uint64_t> region;
  RemoteSegment<std::uint64_t> there;

 private:
  std::unique_ptr<rdma::Node> node_;
};
using SealedTypes = testing::Types<Rc, Uc>;
TYPED_TEST_SUITE(SealedQueuePair, SealedTypes);

TYPED_TEST(SealedQueuePair, Operations) {
  expect_sealed("32 writes", this->rounds(100), [&] {
    std::array<std::optional<Operation<Words>>, 32> operations;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      auto segment = this->region.take(i * 60, 60);
      if (!segment) return false;
      operations[i] = this->a.post_write(std::move(*segment), this->there);
    }
    for (auto& operation : operations)
      if (operation->wait(this->limit()) != Status::kOk) return false;
    return true;
  });
  expect_sealed("gathered message", this->rounds(200), [&] {
    auto received = this->b.post_receive(std::move(*this->region.take(0, 100)));
    std::array<Words, 2> list{std::move(*this->region.take(100, 40)), std::move(*this->region.take(200, 30))};
    auto sent = this->a.post_send_with_immediate(std::move(list), 5);
    return sent.wait(this->limit()) == Status::kOk && received.wait(this->limit()) == Status::kOk &&
           received.arrival()->bytes == 560;
  });
  expect_sealed("dropped", this->rounds(200), [&] {
    { const auto dropped = this->a.post_write(std::move(*this->region.take(0, 100)), this->there); }
    return this->region.take(0, 1).error() == Status::kBusy && this->a.settle(this->limit()) == Status::kOk &&
           this->region.held() == 0;
  });
  expect_sealed("refused", this->rounds(200), [&] {
    return this->a.post_write(Words(), this->there).status() == Status::kBadArgument &&
           this->a.post_write(std::move(*this->region.take()), this->there).status() == Status::kBadArgument;
  });
}

TYPED_TEST(SealedQueuePair, UnsignaledPosts) {
  const Words words = std::move(*this->region.take(0, 30));
  expect_sealed("unsignaled", this->rounds(1000), [&] {
    Status posted = Status::kAgain;
    for (const Deadline end = this->limit(); posted == Status::kAgain && !end.passed();)
      posted = this->a.unsafe_post_write(words, this->there);
    return posted == Status::kOk;
  });
}

TYPED_TEST(SealedQueuePair, Batches) {
  auto batch = this->a.template batch<std::uint64_t>(16);
  ASSERT_TRUE(batch.has_value()) << batch.error().text();
  for (std::size_t i = 0; i < 16; ++i)
    ASSERT_EQ(batch->add_write(std::move(*this->region.take(i * 10, 10)), this->there), Status::kOk);
  expect_sealed("batch", this->rounds(300), [&] {
    return batch->use(0, [](std::span<std::uint64_t> all) { ++all[0]; }) == Status::kOk &&
           batch->post() == Status::kOk && batch->wait(this->limit()) == Status::kOk;
  });
}

template <class Type>
coroutine::Task<Status> await_message(coroutine::Loop& /*loop*/, Ready<Type>& over, Words into) {
  const auto received = co_await coroutine::receive(over, std::move(into));
  co_return received.status;
}
template <class Type>
coroutine::Task<Status> await_send(coroutine::Loop& /*loop*/, Ready<Type>& over, Words what) {
  const auto sent = co_await coroutine::send(over, std::move(what));
  co_return sent.status;
}
template <class Type>
coroutine::Task<Status> write_and_pass(coroutine::Loop& loop, Ready<Type>& from, Ready<Type>& to, Words mine,
                                       Words room, RemoteSegment<std::uint64_t> there) {
  auto written = co_await coroutine::write(from, std::move(mine), there);
  if (written.status != Status::kOk) co_return written.status;
  const auto [received, sent] = co_await coroutine::when_all(await_message(loop, to, std::move(room)),
                                                             await_send(loop, from, std::move(written.segment)));
  co_return received != Status::kOk ? received : sent;
}

TYPED_TEST(SealedQueuePair, Awaits) {
  auto loop = coroutine::Loop::make({.frames = {.frames = 16, .frame_bytes = 4096}});
  ASSERT_TRUE(loop.has_value()) << loop.error().text();
  expect_unallocated("awaits", this->rounds(300), [&] {
    auto mine = this->region.take(0, 100);
    auto room = this->region.take(100, 100);
    return mine && room &&
           sync_wait(**loop, write_and_pass(**loop, this->a, this->b, std::move(*mine), std::move(*room), this->there),
                     this->limit()) == Status::kOk;
  });
}

}  // namespace
}  // namespace verbena::typed
