// Tasks by themselves: frames, results, exceptions, and what is made of several.
#include "fixture.hpp"

#include <array>
#include <atomic>
#include <expected>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace verbena::coroutine {
namespace {

using Number = std::expected<int, Status>;

class Tasks : public testing::Test {
 protected:
  void SetUp() override {
    loop = loop_of({.frames = {.frames = 16, .frame_bytes = 2048}, .waits = 16});
    ASSERT_NE(loop, nullptr);
  }
  void TearDown() override {
    if (loop == nullptr) return;
    loop->drop_all();
    EXPECT_EQ(loop->frames().counts().in_use, 0u);
    EXPECT_EQ(loop->waiting(), 0u);
  }
  std::unique_ptr<Loop> loop;
};

Task<Number> give(Loop& /*loop*/, int value) { co_return value; }
Task<Number> add(Loop& loop, int a, int b) {
  const Number first = co_await give(loop, a);
  const Number second = co_await give(loop, b);
  if (!first || !second) co_return std::unexpected(Status::kLimit);
  co_return *first + *second;
}
Task<Number> fail_with(Loop& /*loop*/, std::string why) {
  if (!why.empty()) throw std::runtime_error(why);
  co_return 0;
}
Task<Status> nap(Loop& /*loop*/, Deadline until) { co_return co_await reached(until); }
Task<Status> nap_and_count(Loop& /*loop*/, Deadline until, int& count) {
  const Status slept = co_await reached(until);
  ++count;
  co_return slept;
}

TEST_F(Tasks, ATaskIsLazyAndReturnsWhatItsBodyReturns) {
  {
    const auto never = add(*loop, 1, 2);
    EXPECT_EQ(loop->frames().counts().in_use, 1u);
    EXPECT_FALSE(never.is_over());
  }
  EXPECT_EQ(loop->frames().counts().in_use, 0u);
  EXPECT_EQ(sync_wait(*loop, add(*loop, 40, 2), soon()), 42);
  EXPECT_GE(loop->frames().counts().highest, 2u);
}

TEST_F(Tasks, AMovedTaskIsTheOnlyOne) {
  auto first = give(*loop, 7);
  auto second = std::move(first);
  // NOLINTBEGIN(bugprone-use-after-move): what was moved from says so.
  EXPECT_EQ(first.status(), Status::kBadArgument);
  EXPECT_EQ(sync_wait(*loop, std::move(first), soon()).error(), Status::kBadArgument);
  // NOLINTEND(bugprone-use-after-move)
  second = give(*loop, 8);
  EXPECT_EQ(loop->frames().counts().in_use, 1u) << "the task that it was is gone";
  EXPECT_EQ(sync_wait(*loop, std::move(second), soon()), 8);
}

TEST_F(Tasks, ManyAwaitsInOneTask) {
  const auto sum = [](Loop& of) -> Task<Number> {
    int all = 0;
    for (int i = 0; i < 2000; ++i) all += (co_await give(of, i)).value();
    co_return all;
  };
  EXPECT_EQ(sync_wait(*loop, sum(*loop), soon()), 1999 * 1000);
}

TEST_F(Tasks, AnExceptionReachesWhoAwaits) {
  const auto outer = [](Loop& of, bool& seen) -> Task<Number> {
    try {
      co_return co_await fail_with(of, "inner");
    } catch (const std::runtime_error& error) {
      seen = std::string(error.what()) == "inner";
    }
    co_return co_await fail_with(of, "outer");
  };
  bool seen = false;
  EXPECT_THROW((void)sync_wait(*loop, outer(*loop, seen), soon()), std::runtime_error);
  EXPECT_TRUE(seen);
}

TEST_F(Tasks, AnExceptionOfASpawnedTaskReachesWhoRunsTheLoop) {
  const auto body = [](Loop& /*of*/) -> Task<Status> {
    (void)co_await yield();
    throw std::runtime_error("spawned");
  };
  ASSERT_EQ(loop->spawn(body(*loop)), Status::kOk);
  ASSERT_EQ(loop->spawn(nap(*loop, in_ms(1))), Status::kOk);
  EXPECT_THROW((void)loop->run_until([] { return false; }, in_ms(1000)), std::runtime_error);
  EXPECT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk) << "the other one goes on";
}

TEST_F(Tasks, AnEmptyPoolIsAValue) {
  const auto small = loop_of({.frames = {.frames = 2, .frame_bytes = 2048}});
  {
    const auto one = give(*small, 1);
    const auto two = give(*small, 2);
    auto three = give(*small, 3);
    EXPECT_EQ(three.status(), Status::kLimit);
    EXPECT_TRUE(three.is_over());
    EXPECT_NE(std::string(error_detail()).find("all 2 frames"), std::string::npos) << error_detail();
    EXPECT_EQ(sync_wait(*small, std::move(three), soon()).error(), Status::kLimit);
    EXPECT_EQ(small->spawn(nap(*small, soon())), Status::kLimit);
    EXPECT_EQ(small->frames().counts().refused, 2u);
  }
  EXPECT_EQ(sync_wait(*small, add(*small, 1, 2), soon()), 3) << "two frames, one after the other";
  const auto three_deep = [](Loop& of) -> Task<Number> { co_return co_await add(of, 1, 2); };
  EXPECT_EQ(sync_wait(*small, three_deep(*small), soon()).error(), Status::kLimit);
  EXPECT_EQ(small->frames().counts().in_use, 0u);
}

TEST_F(Tasks, ATooLongFrameIsAValue) {
  const auto small = loop_of({.frames = {.frames = 4, .frame_bytes = 1024}});
  const auto long_one = [](Loop& /*of*/) -> Task<Number> {
    std::array<std::byte, 4096> room{};
    (void)co_await yield();
    co_return static_cast<int>(room.size());
  };
  EXPECT_EQ(sync_wait(*small, long_one(*small), soon()).error(), Status::kLimit);
  EXPECT_GT(small->frames().counts().longest, 4096u);
}

TEST_F(Tasks, OptionsOutOfTheirRangeAreRefused) {
  for (const FrameOptions& frames : {FrameOptions{.frames = 0}, FrameOptions{.frames = (1u << 20) + 1},
                                     FrameOptions{.frame_bytes = 63}, FrameOptions{.frame_bytes = (1u << 20) + 1}})
    EXPECT_EQ(FramePool::make(frames).error().status(), Status::kBadArgument);
  EXPECT_EQ(Loop::make({.waits = 0}).error().status(), Status::kBadArgument);
  EXPECT_EQ(Loop::make({.spin = std::chrono::microseconds{-1}}).error().status(), Status::kBadArgument);
}

TEST_F(Tasks, AllAreAwaited) {
  const auto body = [](Loop& of) -> Task<Number> {
    const auto [a, slept, b] = co_await when_all(give(of, 1), nap(of, in_ms(2)), add(of, 2, 3));
    if (slept != Status::kOk) co_return std::unexpected(slept);
    co_return *a + *b;
  };
  EXPECT_EQ(sync_wait(*loop, body(*loop), soon()), 6);
}

TEST_F(Tasks, AllOfThemEndBeforeOneThrows) {
  int naps = 0;
  const auto body = [](Loop& of, int& count) -> Task<Number> {
    const auto [failed, slept] = co_await when_all(fail_with(of, "first"), nap_and_count(of, in_ms(2), count));
    co_return failed;
  };
  EXPECT_THROW((void)sync_wait(*loop, body(*loop, naps), soon()), std::runtime_error);
  EXPECT_EQ(naps, 1);
}

TEST_F(Tasks, AllWithOneThatHasNoFrame) {
  const auto small = loop_of({.frames = {.frames = 2, .frame_bytes = 2048}});
  const auto body = [](Loop& of) -> Task<Number> {
    const auto [one, two] = co_await when_all(give(of, 1), give(of, 2));
    co_return one ? two : one;
  };
  EXPECT_EQ(sync_wait(*small, body(*small), soon()).error(), Status::kLimit);
}

TEST_F(Tasks, TheLosersOfAnyAreCancelledAndAwaited) {
  int ended = 0;
  const auto body = [](Loop& of, int& count) -> Task<Number> {
    const auto first =
        co_await when_any(nap_and_count(of, soon(), count), nap_and_count(of, in_ms(1), count), nap(of, soon()));
    co_return first.result == Status::kOk ? static_cast<int>(first.index) : -1;
  };
  EXPECT_EQ(sync_wait(*loop, body(*loop, ended), soon()), 1);
  EXPECT_EQ(ended, 2) << "a loser goes on to its end";
}

TEST_F(Tasks, WhatIsOverWinsAtOnce) {
  int ended = 0;
  const auto at_once = [](Loop& /*of*/) -> Task<Status> { co_return Status::kBusy; };
  const auto body = [](Loop& of, Task<Status> winner, int& count) -> Task<Status> {
    const auto first = co_await when_any(std::move(winner), nap_and_count(of, soon(), count));
    co_return first.index == 0 ? first.result : Status::kSystem;
  };
  // The loop is not the first argument of a lambda's call operator alone: it may follow the object.
  EXPECT_EQ(sync_wait(*loop, body(*loop, at_once(*loop), ended), soon()), Status::kBusy);
  EXPECT_EQ(ended, 1);
}

TEST_F(Tasks, ALosersExceptionIsNotLost) {
  const auto loser = [](Loop& /*of*/) -> Task<Status> {
    if (co_await reached(soon()) == Status::kCancelled) throw std::runtime_error("loser");
    co_return Status::kOk;
  };
  const auto body = [](Loop& of, Task<Status> other) -> Task<Status> {
    (void)co_await when_any(std::move(other), nap(of, in_ms(1)));
    co_return Status::kOk;
  };
  EXPECT_THROW((void)sync_wait(*loop, body(*loop, loser(*loop)), soon()), std::runtime_error);
}

TEST_F(Tasks, ATimeLimitEndsWaitsInsideIt) {
  const auto twice = [](Loop& /*of*/) -> Task<Number> {
    int timeouts = 0;
    for (int i = 0; i < 2; ++i) timeouts += co_await reached(soon()) == Status::kTimedOut ? 1 : 0;
    co_return timeouts;
  };
  const auto body = [](Loop& of, Task<Number> inner) -> Task<Number> {
    const Number timeouts = co_await within(in_ms(2), std::move(inner));
    const Status after = co_await nap(of, in_ms(1));
    co_return after == Status::kOk ? timeouts : Number(std::unexpected(after));
  };
  EXPECT_EQ(sync_wait(*loop, body(*loop, twice(*loop)), soon()), 2);
}

TEST_F(Tasks, ATimeLimitThatIsNotReachedChangesNothing) {
  const auto body = [](Loop& of) -> Task<Number> { co_return co_await within(soon(), add(of, 1, 1)); };
  EXPECT_EQ(sync_wait(*loop, body(*loop), soon()), 2);
}

TEST_F(Tasks, ASourceCancelsItsTasksAndThoseThatCome) {
  CancelSource source;
  const auto guarded = [](Loop& of, CancelSource& by) -> Task<Status> {
    co_return co_await cancellable(by, nap(of, soon()));
  };
  ASSERT_EQ(loop->spawn(guarded(*loop, source)), Status::kOk);
  ASSERT_EQ(loop->spawn(guarded(*loop, source)), Status::kOk);
  EXPECT_EQ(loop->waiting(), 2u);
  source.cancel();
  EXPECT_EQ(loop->spawned(), 2u) << "nobody is resumed by it";
  EXPECT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
  EXPECT_EQ(loop->failed(), 2u);
  EXPECT_EQ(sync_wait(*loop, guarded(*loop, source), soon()), Status::kCancelled);
}

Task<Status> cancel_soon(Loop& /*of*/, CancelSource& source) {
  (void)co_await reached(in_ms(1));
  source.cancel();
  co_return Status::kOk;
}

Task<Number> guarded_by(Loop& /*of*/, CancelSource& source, Task<Number> inner) {
  co_return co_await cancellable(source, std::move(inner));
}

TEST_F(Tasks, ScopesInsideACancelledOneEnd) {
  CancelSource source;
  const auto deep = [](Loop& of, CancelSource& by) -> Task<Number> {
    const auto both = [](Loop& inner) -> Task<Number> {
      const auto first = co_await when_any(nap(inner, soon()), nap(inner, soon()));
      co_return first.result == Status::kCancelled ? 1 : 0;
    };
    const auto limited = [](Loop& /*inner*/, Task<Number> task) -> Task<Number> {
      co_return co_await within(soon(), std::move(task));
    };
    co_return co_await cancellable(by, limited(of, both(of)));
  };
  auto task = deep(*loop, source);
  ASSERT_EQ(loop->spawn(cancel_soon(*loop, source)), Status::kOk);
  EXPECT_EQ(sync_wait(*loop, std::move(task), soon()), 1);
}

// A task that goes on after it was cancelled, as one that cleans up does: what it awaits then is refused, too.
TEST_F(Tasks, ScopesThatBeginInACancelledOneAreCancelled) {
  CancelSource source;
  const auto goes_on = [](Loop& of) -> Task<Number> {
    if (co_await reached(soon()) != Status::kCancelled) co_return -1;
    const auto first = co_await when_any(nap(of, soon()), nap(of, soon()));
    co_return first.result == Status::kCancelled ? 1 : 0;
  };
  auto task = guarded_by(*loop, source, goes_on(*loop));
  ASSERT_EQ(loop->spawn(cancel_soon(*loop, source)), Status::kOk);
  EXPECT_EQ(sync_wait(*loop, std::move(task), soon()), 1);
}

// Its limit passes first, and then its source cancels it: it is told of the limit to its end.
TEST_F(Tasks, AScopeKeepsTheReasonThatItGotFirst) {
  CancelSource source;
  const auto both = [](Loop& /*of*/, CancelSource& by) -> Task<Number> {
    const Status first = co_await reached(soon());
    by.cancel();
    const Status second = co_await reached(soon());
    co_return first == Status::kTimedOut&& second == Status::kTimedOut ? 1 : 0;
  };
  const auto limited = [](Loop& /*of*/, Task<Number> inner) -> Task<Number> {
    co_return co_await within(in_ms(1), std::move(inner));
  };
  EXPECT_EQ(sync_wait(*loop, guarded_by(*loop, source, limited(*loop, both(*loop, source))), soon()), 1);
}

TEST_F(Tasks, SyncWaitEndsAtItsDeadline) {
  EXPECT_EQ(sync_wait(*loop, nap(*loop, soon()), in_ms(2)), Status::kTimedOut);
  const auto stubborn = [](Loop& /*of*/) -> Task<Status> {
    while (true) (void)co_await yield();
  };
  EXPECT_EQ(sync_wait(*loop, nap(*loop, in_ms(1)), soon()), Status::kOk);
  (void)stubborn;
}

TEST_F(Tasks, TooManyWaitsAreRefused) {
  const auto small = loop_of({.waits = 2});
  ASSERT_EQ(small->spawn(nap(*small, soon())), Status::kOk);
  ASSERT_EQ(small->spawn(nap(*small, soon())), Status::kOk);
  EXPECT_EQ(sync_wait(*small, nap(*small, in_ms(1)), soon()), Status::kLimit);
  const auto limited = [](Loop& of) -> Task<Status> { co_return co_await within(soon(), nap(of, in_ms(1))); };
  EXPECT_EQ(sync_wait(*small, limited(*small), soon()), Status::kLimit);
}

TEST_F(Tasks, TheEarliestDeadlineGoesFirst) {
  std::vector<int> order;
  const auto at = [](Loop& /*of*/, Deadline until, int number, std::vector<int>& into) -> Task<Status> {
    const Status slept = co_await reached(until);
    into.push_back(number);
    co_return slept;
  };
  const std::uint64_t base = ticks_now();
  const auto step = static_cast<std::uint64_t>(ticks_per_us() * 500);
  for (const int number : {5, 1, 4, 2, 3, 0})
    ASSERT_EQ(
        loop->spawn(at(*loop, Deadline::at_ticks(base + step * static_cast<std::uint64_t>(number)), number, order)),
        Status::kOk);
  ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST_F(Tasks, DroppedTasksAreGoneWithWhatTheyHold) {
  struct Guard {
    int* count;
    ~Guard() { ++*count; }
  };
  int destroyed = 0;
  const auto holds = [](Loop& of, int& count) -> Task<Status> {
    const Guard guard{&count};
    co_return co_await nap(of, soon());
  };
  for (int i = 0; i < 3; ++i) ASSERT_EQ(loop->spawn(holds(*loop, destroyed)), Status::kOk);
  loop->drop_all();
  EXPECT_EQ(destroyed, 3);
  EXPECT_EQ(loop->spawned(), 0u);
  EXPECT_EQ(loop->waiting(), 0u);
}

/// A thread that runs what is posted to it.
class Worker {
 public:
  void post(Resumption& resumption) noexcept {
    Resumption* latest = first_.load(std::memory_order_relaxed);
    do resumption.next = latest;
    while (!first_.compare_exchange_weak(latest, &resumption, std::memory_order_release));
  }
  ~Worker() { thread_.request_stop(); }

 private:
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (Resumption* at = first_.exchange(nullptr, std::memory_order_acquire); at != nullptr;)
        std::exchange(at, at->next)->run();
      std::this_thread::yield();
    }
  }
  std::atomic<Resumption*> first_{nullptr};
  std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }};
};

TEST_F(Tasks, ATaskGoesOnElsewhereAndComesBack) {
  Worker worker;
  const auto body = [](Loop& of, Worker& on) -> Task<Number> {
    const auto here = std::this_thread::get_id();
    co_await resume_on(on);
    const auto there = std::this_thread::get_id();
    const Status refused = co_await reached(in_ms(1));
    const bool is_away = !of.is_here();
    co_await resume_on(of);
    const bool is_right =
        here != there && refused == Status::kBusy && is_away && of.is_here() && here == std::this_thread::get_id();
    co_return is_right ? 1 : 0;
  };
  for (int i = 0; i < 50; ++i) ASSERT_EQ(sync_wait(*loop, body(*loop, worker), soon()), 1);
}

TEST_F(Tasks, ATaskThatEndsElsewhereEndsInItsLoop) {
  Worker worker;
  const auto away = [](Loop& /*of*/, Worker& on, bool throws) -> Task<Number> {
    co_await resume_on(on);
    if (throws) throw std::runtime_error("away");
    co_return 3;
  };
  const auto body = [](Loop& of, Task<Number> inner) -> Task<Number> {
    const Number number = co_await std::move(inner);
    co_return of.is_here() ? number : Number(std::unexpected(Status::kSystem));
  };
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(sync_wait(*loop, body(*loop, away(*loop, worker, false)), soon()), 3);
    EXPECT_THROW((void)sync_wait(*loop, body(*loop, away(*loop, worker, true)), soon()), std::runtime_error);
  }
}

TEST_F(Tasks, AnotherThreadTakesTheLoopOver) {
  for (int i = 0; i < 3; ++i) {
    Status spawned = Status::kSystem;
    Status slept = Status::kSystem;
    std::jthread([&] {
      spawned = loop->spawn(nap(*loop, in_ms(1)));
      slept = sync_wait(*loop, nap(*loop, in_ms(2)), soon());
    }).join();
    EXPECT_EQ(spawned, Status::kOk);
    EXPECT_EQ(slept, Status::kOk);
    EXPECT_EQ(sync_wait(*loop, nap(*loop, in_ms(1)), soon()), Status::kOk);
    EXPECT_EQ(loop->failed(), 0u);
  }
}

TEST_F(Tasks, AnotherThreadWakesASleepingLoop) {
  std::atomic<bool> is_set{false};
  std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
    is_set = true;
    loop->wake();
  });
  EXPECT_EQ(loop->run_until([&] { return is_set.load(); }, soon()), Status::kOk);
}

TEST_F(Tasks, FramesAreTakenAndGivenBackByManyThreads) {
  const auto made = FramePool::make({.frames = 8, .frame_bytes = 64});
  ASSERT_OK(made);
  FramePool& pool = **made;
  std::atomic<std::uint64_t> taken{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 20'000; ++i) {
          void* const frame = pool.allocate(64);
          if (frame == nullptr) continue;
          auto& word = *static_cast<std::uint64_t*>(frame);
          word = static_cast<std::uint64_t>(t);
          std::atomic_signal_fence(std::memory_order_seq_cst);
          if (word == static_cast<std::uint64_t>(t)) taken.fetch_add(1, std::memory_order_relaxed);
          FramePool::release(frame);
        }
      });
  }
  EXPECT_EQ(pool.counts().in_use, 0u);
  EXPECT_EQ(taken + pool.counts().refused, 80'000u);
  EXPECT_LE(pool.counts().highest, 4u);
}

}  // namespace
}  // namespace verbena::coroutine
