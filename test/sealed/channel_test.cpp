// Messages, sealed: both sides are polled by this thread.
#include "../channel/fixture.hpp"
#include "sealed.hpp"

#include <array>
#include <atomic>
#include <thread>

namespace verbena::channel::test {
namespace {

class SealedConnection : public ConnectionPair {
 protected:
  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    a.recorder.keep = b.recorder.keep = false;
  }
  /// Sends without an assertion, which could allocate.
  [[nodiscard]] bool sends(Connection& connection, std::span<const std::byte> body) {
    Status status = Status::kAgain;
    return until([&] { return (status = connection.send(body)) != Status::kAgain; }) && status == Status::kOk;
  }
  /// Until what `a` sent is there and the credit is back.
  [[nodiscard]] bool drain() {
    settle();
    return a.connection->credits() != 0;
  }
};

TEST_F(SealedConnection, OneEagerMessageAtATime) {
  open();
  b.recorder.when_message = [](Connection& connection, std::span<const std::byte> body) {
    (void)connection.send(body);
  };
  for (const std::size_t length : {1u, 8u, 100u, 1024u, 5248u}) {
    SCOPED_TRACE(length);
    const Bytes body = pattern(length, 1);
    expect_sealed("round trip", a.rounds(1000), [&] {
      const std::uint64_t before = a.recorder.message_count;
      return sends(*a.connection, body) && until([&] { return a.recorder.message_count == before + 1; });
    });
  }
}

TEST_F(SealedConnection, EagerMessagesInBatches) {
  open();
  for (const std::size_t length : {8u, 2000u}) {
    SCOPED_TRACE(length);
    const Bytes body = pattern(length, 1);
    expect_sealed("32 one way", a.rounds(300), [&] {
      const std::uint64_t before = b.recorder.message_count;
      for (int i = 0; i < 32; ++i)
        if (!sends(*a.connection, body)) return false;
      return until([&] { return b.recorder.message_count == before + 32; });
    });
  }
}

TEST_F(SealedConnection, MoreThanThereIsCreditFor) {
  open({.depth = 4}, {.depth = 4});
  const Bytes body = pattern(8, 1);
  expect_sealed("until it is kAgain", a.rounds(300), [&] {
    for (int i = 0; i < 100; ++i)
      if (const Status status = a.connection->send(body); status != Status::kOk)
        return status == Status::kAgain && drain();
    return false;
  });
}

TEST_F(SealedConnection, LargeMessages) {
  open({}, {.lease_bytes = 1 << 20});
  Region body(*a.nic, a.pd.get(), 4 << 20);
  const Bytes head = pattern(100, 1);
  for (const std::size_t length : {std::size_t{0}, std::size_t{10'000}, std::size_t{4} << 20}) {
    SCOPED_TRACE(length);
    expect_sealed("one", a.rounds(50), [&] {
      const std::uint64_t sent = a.recorder.completion_count, got = b.recorder.large_count;
      return a.connection->start_large(head, body.local(0, length), 1) == Status::kOk &&
             until([&] { return a.recorder.completion_count == sent + 1 && b.recorder.large_count == got + 1; });
    });
  }
}

TEST_F(SealedConnection, Reads) {
  open();
  Region source(*b.nic, b.pd.get(), 1 << 20);
  Region sink(*a.nic, a.pd.get(), 1 << 20);
  ASSERT_OK(a.connection->import_window(source.window(), patience()));
  for (const std::size_t length : {std::size_t{8}, std::size_t{1} << 20}) {
    SCOPED_TRACE(length);
    // More than the NIC takes at once, so that some queue up.
    expect_sealed("40 at once", a.rounds(50), [&] {
      const std::uint64_t before = a.recorder.completion_count;
      for (std::uint64_t i = 0; i < 40; ++i)
        if (a.connection->start_read(sink.local(0, length), source.remote(0, length), i) != Status::kOk) return false;
      return until([&] { return a.recorder.completion_count == before + 40; });
    });
  }
}

TEST_F(SealedConnection, BatchesOfOneDoorbell) {
  open();
  const Bytes body = pattern(8, 1);
  expect_sealed("32 one way", a.rounds(300), [&] {
    const std::uint64_t before = b.recorder.message_count;
    {
      const engine::Batch held(*a.connection);
      for (int i = 0; i < 32; ++i)
        if (!sends(*a.connection, body)) return false;
    }
    return until([&] { return b.recorder.message_count == before + 32; });
  });
}

// A side that sleeps makes system calls by right: arming, sleeping, and the other one its wake-up. It allocates
// nothing.
TEST_F(SealedConnection, SleepingSidesAllocateNothing) {
  Side sleeper({.wait = engine::WaitPolicy::kEvent});
  Side waker({.wait = engine::WaitPolicy::kEvent});
  sleeper.recorder.keep = waker.recorder.keep = false;
  ASSERT_NO_FATAL_FAILURE(connect(waker, sleeper, {}, {}));
  sleeper.recorder.when_message = [](Connection& connection, std::span<const std::byte> body) {
    (void)connection.send(body);
  };
  waker.loop->poll();
  std::atomic<bool> stop = false;
  std::thread thread([&] {
    while (!stop) (void)sleeper.loop->wait(Deadline::after(std::chrono::milliseconds{100}));
  });
  const Bytes body = pattern(8, 1);
  const auto round = [&] {
    const std::uint64_t before = waker.recorder.message_count;
    return waker.connection->send(body) == Status::kOk &&
           waker.loop->wait_until([&] { return waker.recorder.message_count == before + 1; }, patience()) ==
               Status::kOk;
  };
  (void)cost_of(50, round);
  const Cost cost = cost_of(200, round);
  EXPECT_EQ(cost.allocations, Allocations{});
  EXPECT_TRUE(!why_not_watched.empty() || cost.calls > 0) << "nobody slept";
  stop = true;
  thread.join();
}

}  // namespace
}  // namespace verbena::channel::test
