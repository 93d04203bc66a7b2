// Coroutines, sealed: tasks are made, awaited, dropped and cancelled, and so is what they wait for.
#include "sealed.hpp"

#include <transport.hpp>

#include <verbena/coroutines.hpp>

#include <memory>
#include <utility>

namespace verbena::coroutine {
namespace {

using test::expect_sealed;
using test::expect_unallocated;
using Numbers = typed::Segment<std::uint64_t>;
using Remote = typed::RemoteSegment<std::uint64_t>;

class SealedCoroutines : public testing::Test {
 protected:
  static constexpr std::size_t kCount = 512;

  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    rdma::Options options{
        .transport = test::transport_under_test(), .address = test::is_soft_under_test() ? "127.0.0.1" : "", .port = 0};
    auto opened = rdma::Node::open({.transport = options.transport, .address = options.address});
    ASSERT_TRUE(opened.has_value()) << opened.error().text();
    node_ = std::move(*opened);
    options.node = node_.get();
    auto started = rdma::Listener::start(options);
    ASSERT_TRUE(started.has_value()) << started.error().text();
    listener_ = std::move(*started);
    options.port = listener_->port();
    auto connected = rdma::Connection::connect(options);
    ASSERT_TRUE(connected.has_value()) << connected.error().text();
    auto accepted = listener_->accept(limit());
    ASSERT_TRUE(accepted.has_value()) << to_string(accepted.error());
    auto made = typed::Link::over(std::move(*connected));
    ASSERT_TRUE(made.has_value()) << made.error().text();
    link = std::move(*made);
    auto theirs = typed::Link::over(std::move(*accepted));
    ASSERT_TRUE(theirs.has_value()) << theirs.error().text();
    peer = std::move(*theirs);
    auto allocated = typed::MemoryRegion<std::uint64_t>::allocate(*node_, 2 * kCount);
    ASSERT_TRUE(allocated.has_value()) << allocated.error().text();
    region = std::move(*allocated);
    auto loop_made = Loop::make({.frames = {.frames = 16, .frame_bytes = 4096}});
    ASSERT_TRUE(loop_made.has_value()) << loop_made.error().text();
    loop = std::move(*loop_made);
  }
  [[nodiscard]] static Deadline limit() { return Deadline::after(std::chrono::seconds{20}); }
  [[nodiscard]] static Remote there(const typed::Link& of) { return *Remote::of(of.peer_window(), 0, kCount); }
  [[nodiscard]] static std::uint64_t rounds(std::uint64_t count) {
    return test::device_under_test() == nullptr ? count : count / 50 + 1;
  }

  typed::Link link;
  typed::Link peer;
  typed::MemoryRegion<std::uint64_t> region;
  std::unique_ptr<Loop> loop;

 private:
  std::unique_ptr<rdma::Node> node_;
  std::unique_ptr<rdma::Listener> listener_;
};

Task<Status> nothing(Loop& /*loop*/) { co_return co_await yield(); }
Task<Status> all_three(Loop& loop) {
  const auto [a, b, c] = co_await when_all(nothing(loop), nothing(loop), nothing(loop));
  co_return a == b ? c : a;
}
Task<Status> within_time(Loop& loop, Deadline deadline) { co_return co_await within(deadline, all_three(loop)); }
Task<Status> forever(Loop& /*loop*/) { co_return co_await reached(Deadline::after(std::chrono::seconds{20})); }
Task<Status> one_of_two(Loop& loop) {
  const auto first = co_await when_any(nothing(loop), forever(loop));
  co_return first.result;
}
Task<Status> read_and_write(Loop& /*loop*/, typed::Link& over, Numbers mine, Remote there) {
  auto done = co_await read(over, std::move(mine), there);
  if (done.status == Status::kOk) done = co_await write(over, std::move(done.segment), there);
  co_return done.status;
}
Task<Status> echo_once(Loop& /*loop*/, typed::Link& in, Numbers room) {
  auto arrived = co_await receive(in, std::move(room));
  if (arrived.status != Status::kOk) co_return arrived.status;
  co_return (co_await send(in, std::move(arrived.segment))).status;
}
Task<Status> ask(Loop& /*loop*/, typed::Link& out, Numbers mine) {
  auto sent = co_await send(out, std::move(mine));
  if (sent.status != Status::kOk) co_return sent.status;
  co_return (co_await receive(out, std::move(sent.segment))).status;
}
Task<Status> ask_and_echo(Loop& loop, typed::Link& out, typed::Link& in, Numbers mine, Numbers room) {
  const auto [asked, echoed] = co_await when_all(ask(loop, out, std::move(mine)), echo_once(loop, in, std::move(room)));
  co_return asked == Status::kOk ? echoed : asked;
}

TEST_F(SealedCoroutines, Tasks) {
  expect_sealed("tasks", 500, [&] { return sync_wait(*loop, within_time(*loop, limit()), limit()) == Status::kOk; });
  expect_sealed("any", 500, [&] { return sync_wait(*loop, one_of_two(*loop), limit()) == Status::kOk; });
  expect_sealed("spawned and dropped", 500, [&] {
    if (loop->spawn(forever(*loop)) != Status::kOk) return false;
    loop->drop_all();
    return loop->frames().counts().in_use == 0;
  });
}

TEST_F(SealedCoroutines, Operations) {
  const auto run = [&](typed::Link& over) {
    auto segment = region.take(0, kCount);
    return segment &&
           sync_wait(*loop, read_and_write(*loop, over, std::move(*segment), there(over)), limit()) == Status::kOk;
  };
  expect_sealed("read and write", rounds(500), [&] { return run(link); });
  expect_unallocated("by the library's thread", rounds(500), [&] { return run(peer); });
}

TEST_F(SealedCoroutines, Messages) {
  expect_unallocated("echo", rounds(500), [&] {
    auto mine = region.take(0, 4);
    auto room = region.take(kCount, 4);
    return mine && room &&
           sync_wait(*loop, ask_and_echo(*loop, link, peer, std::move(*mine), std::move(*room)), limit()) ==
               Status::kOk;
  });
}

}  // namespace
}  // namespace verbena::coroutine
