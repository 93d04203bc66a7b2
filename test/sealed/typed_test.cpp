// The typed API, sealed: segments are taken, split and shared, operations started, dropped and completed.
#include "links.hpp"

#include <array>
#include <optional>
#include <utility>

namespace verbena::typed {
namespace {

using test::expect_sealed;
using test::expect_unallocated;
using Numbers = Segment<std::uint64_t>;

constexpr std::size_t kCount = 4096;

class SealedTyped : public test::SealedLinks<kCount> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(SealedLinks::SetUp());
    if (!IsSkipped()) there = window_of(link, kCount);
  }

  RemoteSegment<std::uint64_t> there;
};

TEST_F(SealedTyped, Segments) {
  expect_sealed("take, split, join", 500, [&] {
    auto front = region.take(1, 1000);
    if (!front) return false;
    auto back = front->split_at(400);
    return back && front->join(std::move(*back)) == Status::kOk;
  });
  expect_sealed("chunks", 500, [&] {
    auto all = region.take();
    if (!all) return false;
    auto chunks = std::move(*all).chunks(100);
    std::size_t count = 0;
    for (; auto piece = chunks.next(); ++count) piece->fill(count);
    return count == (kCount + 99) / 100;
  });
  expect_sealed("freeze, share, thaw", 500, [&] {
    auto all = region.take();
    if (!all) return false;
    ConstSegment<std::uint64_t> shared = std::move(*all).freeze();
    {
      const ConstSegment<std::uint64_t> copy = shared;
      if (!copy.part(5, 7) || std::move(shared).thaw().has_value()) return false;
    }
    // NOLINTNEXTLINE(bugprone-use-after-move): a thaw that is refused changes nothing.
    return std::move(shared).thaw().has_value();
  });
}

TEST_F(SealedTyped, Refusals) {
  Numbers all = std::move(*region.take());
  expect_sealed("refusals", 500, [&] {
    return region.take().error() == Status::kBusy && all.get(kCount).error() == Status::kOutOfRange &&
           all.split_at(kCount).error() == Status::kOutOfRange &&
           there.part(1, kCount).error() == Status::kOutOfRange &&
           link.read(all, RemoteSegment<std::uint64_t>()) == Status::kRemoteAccess;
  });
}

TEST_F(SealedTyped, BlockingOperations) {
  Numbers all = std::move(*region.take());
  expect_sealed("read", rounds(500), [&] { return link.read(all, there) == Status::kOk; });
  expect_sealed("write", rounds(500), [&] { return link.write(all, there, limit()) == Status::kOk; });
  if (!link.fetch_add(there, 0)) GTEST_SKIP() << "the device has no atomics";
  expect_sealed("fetch_add", rounds(500), [&] { return link.fetch_add(there, 1).has_value(); });
}

TEST_F(SealedTyped, StartedOperations) {
  expect_sealed("32 reads and writes", rounds(100), [&] {
    std::array<std::optional<Operation<Numbers>>, 32> operations;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      auto segment = region.take(i * 100, 100);
      if (!segment) return false;
      const RemoteSegment<std::uint64_t> part = there.unsafe_part(i * 100, 100);
      operations[i] =
          i % 2 == 0 ? link.start_read(std::move(*segment), part) : link.start_write(std::move(*segment), part);
    }
    for (auto& operation : operations)
      if (operation->wait(limit()) != Status::kOk) return false;
    return true;
  });
  expect_sealed("dropped", rounds(200), [&] {
    auto segment = region.take();
    if (!segment) return false;
    { const auto dropped = link.start_read(std::move(*segment), there); }
    return region.take().error() == Status::kBusy && link.settle(limit()) == Status::kOk && region.held() == 0;
  });
}

TEST_F(SealedTyped, Messages) {
  Numbers first = std::move(*region.take(0, 100));
  Numbers second = std::move(*region.take(100, 100));
  const auto pass = [&](Link& from, Link& to) {
    auto receiving = to.start_receive(std::move(second));
    auto sent = from.start_send_with_immediate(std::move(first), 7).finish(limit());
    auto received = std::move(receiving).finish(limit());
    first = std::move(sent.segment);
    second = std::move(received.segment);
    return sent.status == Status::kOk && received.status == Status::kOk && received.received.count == 100;
  };
  // The listener's thread sleeps and is woken, as for the calls that wait.
  for (const auto& [from, to] : {std::pair{&link, &peer}, std::pair{&peer, &link}}) {
    (void)test::cost_of(20, [&] { return pass(*from, *to); });
    EXPECT_EQ(test::cost_of(rounds(200), [&] { return pass(*from, *to); }).allocations, test::Allocations{});
  }
  expect_unallocated("write with immediate", rounds(200), [&] {
    auto receiving = peer.start_receive(std::move(second));
    auto written = link.start_write_with_immediate(std::move(first), there.unsafe_part(0, 100), 7).finish(limit());
    auto received = std::move(receiving).finish(limit());
    first = std::move(written.segment);
    second = std::move(received.segment);
    return written.status == Status::kOk && received.status == Status::kOk && received.received.count == 100;
  });
  expect_sealed("dropped receives", rounds(200), [&] {
    auto segment = region.take(200, 100);
    if (!segment) return false;
    { const auto dropped = link.start_receive(std::move(*segment)); }
    return link.settle(limit()) == Status::kOk && region.held() == 2;
  });
}

}  // namespace
}  // namespace verbena::typed
