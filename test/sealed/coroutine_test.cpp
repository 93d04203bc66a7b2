// Coroutines, sealed: tasks are made, awaited, dropped and cancelled, and so is what they wait for.
#include "links.hpp"

#include <verbena/coroutines.hpp>

#include <memory>
#include <utility>

namespace verbena::coroutine {
namespace {

using test::expect_sealed;
using test::expect_unallocated;
using Numbers = typed::Segment<std::uint64_t>;
using Remote = typed::RemoteSegment<std::uint64_t>;

constexpr std::size_t kWords = 512;

class SealedCoroutines : public test::SealedLinks<2 * kWords> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(SealedLinks::SetUp());
    auto made = Loop::make({.frames = {.frames = 16, .frame_bytes = 4096}});
    ASSERT_TRUE(made.has_value()) << made.error().text();
    loop = std::move(*made);
  }

  std::unique_ptr<Loop> loop;
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
    auto segment = region.take(0, kWords);
    return segment && sync_wait(*loop, read_and_write(*loop, over, std::move(*segment), window_of(over, kWords)),
                                limit()) == Status::kOk;
  };
  expect_sealed("read and write", rounds(500), [&] { return run(link); });
  expect_unallocated("by the library's thread", rounds(500), [&] { return run(peer); });
}

TEST_F(SealedCoroutines, Messages) {
  expect_unallocated("echo", rounds(500), [&] {
    auto mine = region.take(0, 4);
    auto room = region.take(kWords, 4);
    return mine && room &&
           sync_wait(*loop, ask_and_echo(*loop, link, peer, std::move(*mine), std::move(*room)), limit()) ==
               Status::kOk;
  });
}

}  // namespace
}  // namespace verbena::coroutine
