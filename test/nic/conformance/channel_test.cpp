// Completion channels: who arms, polls once more and then waits never misses a completion.
#include "fixture.hpp"

#include <atomic>
#include <set>
#include <thread>

namespace verbena::nic::conformance {
namespace {

class Channels : public Pair {
 protected:
  /// Waits for a completion of `cq` as a sleeper has to: poll, arm, poll, wait. Polls no other queue.
  static bool sleep_for_one(Side& side, ibv_cq* cq, ibv_wc& wc, Deadline deadline) {
    while (!deadline.passed()) {
      if (ibv_poll_cq(cq, 1, &wc) == 1) return true;
      if (ibv_req_notify_cq(cq, 0) != 0) return false;
      if (ibv_poll_cq(cq, 1, &wc) == 1) return true;
      const auto event = side.nic->wait(side.channel.get(), deadline);
      if (!event) return false;
    }
    return false;
  }
  /// Takes events until none comes for a while, and counts them. Events may be spurious, so tests of their absence
  /// complete more than can be explained so.
  static int count_events(Side& side) {
    int count = 0;
    while (count < 100 && side.nic->wait(side.channel.get(), Deadline::after(10ms))) ++count;
    return count;
  }
  static constexpr int kSpurious = 2;
  /// Waits for an event of `cq`, and passes over those of others.
  static testing::AssertionResult event_of(Side& side, const ibv_cq* cq) {
    const Deadline deadline = soon();
    for (;;) {
      const auto event = side.nic->wait(side.channel.get(), deadline);
      if (!event) return test::is_ok(event);
      if (*event == cq) return testing::AssertionSuccess();
    }
  }
};
VERBENA_FOR_EVERY_NIC(Channels);

TEST_P(Channels, DeadlineOfAWait) {
  EXPECT_LE(count_events(a), kSpurious);
  EXPECT_STATUS(a.nic->wait(a.channel.get(), Deadline::now()), Status::kTimedOut);
  ASSERT_EQ(ibv_req_notify_cq(a.recv_cq.get(), 0), 0);
  EXPECT_LE(count_events(a), kSpurious);
}

TEST_P(Channels, EventOnASendCompletion) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND}) {
    SCOPED_TRACE(testing::Message() << "opcode " << opcode);
    if (opcode == IBV_WR_SEND) {
      ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
    }
    ASSERT_EQ(ibv_req_notify_cq(a.send_cq.get(), 0), 0);
    a.poll();
    Request request(opcode, 2);
    request.gather(a.sge(0, 64));
    if (opcode != IBV_WR_SEND) request.remote(b, kTarget);
    ASSERT_EQ(request.post(a), 0);
    ASSERT_TRUE(event_of(a, a.send_cq.get()));
    EXPECT_EQ(sent(a).wr_id, 2U);
  }
}

TEST_P(Channels, EventOnAReceive) {
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    SCOPED_TRACE(testing::Message() << "opcode " << opcode);
    ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
    b.poll();
    ASSERT_TRUE(b.received.empty());
    Request request(opcode, 2);
    request.gather(a.sge(0, 64));
    if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) request.remote(b, kTarget);
    ASSERT_EQ(request.post(a), 0);
    ASSERT_TRUE(event_of(b, b.recv_cq.get()));
    EXPECT_EQ(received(b).wr_id, 1U);
    EXPECT_EQ(sent(a).wr_id, 2U);
  }
}

// The sleeper is in the kernel, most likely, when the other thread posts.
TEST_P(Channels, ReceiveFromAnotherThread) {
  VERBENA_SKIP_IN_SIMULATION();
  for (std::uint64_t round = 0; round < 50; ++round) {
    ASSERT_EQ(b.post_recv(round, b.sge(0, 64)), 0);
    std::thread sender([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
      EXPECT_EQ(Request(IBV_WR_SEND, round).gather(a.sge(0, 64)).post(a), 0);
      ibv_wc wc{};
      EXPECT_TRUE(sleep_for_one(a, a.send_cq.get(), wc, soon()));
      EXPECT_TRUE(succeeded(wc, round, IBV_WC_SEND));
    });
    ibv_wc wc{};
    EXPECT_TRUE(sleep_for_one(b, b.recv_cq.get(), wc, soon()));
    EXPECT_TRUE(succeeded(wc, round, IBV_WC_RECV));
    sender.join();
  }
}

// The control plane keeps the owner out of a poll while it changes the queue's lists. A sleeper that counts such a poll
// as an empty one sleeps over what had come before it armed.
TEST_P(Channels, ArmedPollWhileAnotherQueuePairIsReset) {
  VERBENA_SKIP_IN_SIMULATION();
  const std::uint64_t count = rounds(2'000);
  const Qp spare = make_qp(b, b.qp_options);
  std::atomic<bool> is_over{false};
  std::thread control([&] {
    while (!is_over.load()) EXPECT_OK(to_reset(*b.nic, spare.get()));
  });
  ibv_wc wc{};
  bool is_received = true;
  for (std::uint64_t round = 0; round < count && is_received; ++round) {
    for (const bool is_early : {false, true}) {
      EXPECT_EQ(b.post_recv(round, b.sge(0, 64)), 0);
      if (!is_early) {
        EXPECT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
      }
      EXPECT_EQ(Request(IBV_WR_SEND, round).gather(a.sge(0, 64)).post(a), 0);
      EXPECT_TRUE(sleep_for_one(a, a.send_cq.get(), wc, soon()));
      // The soft NIC rings no bell for a message that is there before the arming.
      if (is_early) {
        EXPECT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
      }
      is_received = is_early && ibv_poll_cq(b.recv_cq.get(), 1, &wc) == 1;
      if (!is_received) is_received = event_of(b, b.recv_cq.get()) && sleep_for_one(b, b.recv_cq.get(), wc, soon());
      EXPECT_TRUE(is_received && succeeded(wc, round, IBV_WC_RECV)) << "message " << round << " was slept over";
      // Takes the event of an arming that found its message at once.
      if (is_early) (void)b.nic->wait(b.channel.get(), Deadline::now());
    }
  }
  is_over.store(true);
  control.join();
}

// A sender that sleeps in RNR is woken by its peer's receive.
TEST_P(Channels, SendThatWaitsForAReceive) {
  VERBENA_SKIP_IN_SIMULATION();
  for (std::uint64_t round = 0; round < 20; ++round) {
    const std::size_t size = round % 2 == 0 ? 64 : 100000;
    test::fill(a.bytes(0, size), round);
    std::atomic<bool> posted{false};
    std::thread sender([&] {
      EXPECT_EQ(Request(IBV_WR_SEND, round).gather(a.sge(0, size)).post(a), 0);
      posted.store(true, std::memory_order_release);
      ibv_wc wc{};
      EXPECT_TRUE(sleep_for_one(a, a.send_cq.get(), wc, soon()));
      EXPECT_TRUE(succeeded(wc, round, IBV_WC_SEND));
    });
    while (!posted.load(std::memory_order_acquire)) std::this_thread::yield();
    std::this_thread::sleep_for(1ms);
    EXPECT_EQ(b.post_recv(round, b.sge(0, size)), 0);
    ibv_wc wc{};
    EXPECT_TRUE(sleep_for_one(b, b.recv_cq.get(), wc, soon()));
    EXPECT_TRUE(succeeded(wc, round, IBV_WC_RECV));
    EXPECT_TRUE(test::matches(b.bytes(0, size), round));
    sender.join();
    if (HasFailure()) return;  // The rounds after it would only be off by one.
  }
}

// Errors that only time brings wake a sleeper too.
TEST_P(Channels, RetriesRunOutWhileAsleep) {
  b.qp.reset();
  ASSERT_EQ(Request(IBV_WR_SEND, 1).gather(a.sge(0, 64)).post(a), 0);
  ibv_wc wc{};
  EXPECT_TRUE(sleep_for_one(a, a.send_cq.get(), wc, soon()));
  EXPECT_TRUE(failed(wc, 1, IBV_WC_RETRY_EXC_ERR));
}

TEST_P(Channels, RnrRetriesRunOutWhileAsleep) {
  a.options.rnr_retry = 2;
  ASSERT_NO_FATAL_FAILURE(reconnect());
  ASSERT_EQ(Request(IBV_WR_SEND, 1).gather(a.sge(0, 64)).post(a), 0);
  ibv_wc wc{};
  EXPECT_TRUE(sleep_for_one(a, a.send_cq.get(), wc, soon()));
  EXPECT_TRUE(failed(wc, 1, IBV_WC_RNR_RETRY_EXC_ERR));
}

TEST_P(Channels, FlushWakes) {
  ASSERT_EQ(a.post_recv(1, a.sge(0, 64)), 0);
  ASSERT_EQ(ibv_req_notify_cq(a.recv_cq.get(), 0), 0);
  a.poll();
  ASSERT_OK(to_error(*a.nic, a.qp.get()));
  ASSERT_TRUE(event_of(a, a.recv_cq.get()));
  EXPECT_TRUE(failed(received(a), 1, IBV_WC_WR_FLUSH_ERR));
}

// The responder of a refused access learns of it without polling: its receives are flushed.
TEST_P(Channels, RefusedAccessWakesTheResponder) {
  VERBENA_SKIP_IN_CHAOS();
  ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
  ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
  b.poll();
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(a.sge(0, 8)).remote(b.address(0), ~b.rkey()).post(a), 0);
  ibv_wc wc{};
  EXPECT_TRUE(sleep_for_one(b, b.recv_cq.get(), wc, soon()));
  EXPECT_TRUE(failed(wc, 1, IBV_WC_WR_FLUSH_ERR));
}

// One arming, one event: what completes unarmed makes none.
TEST_P(Channels, UnarmedQueuesMakeNoEvents) {
  const auto write = [&](std::uint64_t wr_id) {
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, wr_id).gather(a.sge(0, 8)).remote(b, kTarget).post(a), 0);
    EXPECT_TRUE(succeeded(sent(a), wr_id, IBV_WC_RDMA_WRITE));
  };
  for (std::uint64_t i = 0; i < 20; ++i) write(i);
  EXPECT_LE(count_events(a), kSpurious);
  ASSERT_EQ(ibv_req_notify_cq(a.send_cq.get(), 0), 0);
  a.poll();
  for (std::uint64_t i = 0; i < 20; ++i) write(i);
  const int events = count_events(a);
  EXPECT_GE(events, 1);
  EXPECT_LE(events, 1 + kSpurious);
}

// Completions from before the arming are found by the poll after it: this is why that poll is there.
TEST_P(Channels, CompletionsBeforeArmingArePolled) {
  for (int round = 0; round < 100; ++round) {
    ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(a.sge(0, 8)).post(a), 0);
    const Deadline deadline = soon();
    while (a.sent.empty() && !deadline.passed()) a.poll();  // Not b.
    ASSERT_FALSE(a.sent.empty());
    a.sent.clear();
    ibv_wc wc{};
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
    ASSERT_TRUE(sleep_for_one(b, b.recv_cq.get(), wc, deadline));
  }
}

// The pattern of ibv_get_cq_event(3): arm, poll until empty, wait; what the polls find does not use up the arming.
TEST_P(Channels, PollingDoesNotDisarm) {
  for (std::uint64_t round = 0; round < 20; ++round) {
    (void)count_events(b);
    ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
    ASSERT_EQ(b.post_recv(2, b.sge(64, 64)), 0);
    const auto send = [&](std::uint64_t wr_id) {
      ASSERT_EQ(Request(IBV_WR_SEND, wr_id).gather(a.sge(0, 8)).post(a), 0);
      const Deadline deadline = soon();
      while (a.sent.empty() && !deadline.passed()) a.poll();  // Not b.
      ASSERT_FALSE(a.sent.empty());
      a.sent.clear();
    };
    ASSERT_NO_FATAL_FAILURE(send(1));
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
    EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
    for (int i = 0; i < 100; ++i) b.poll();
    ASSERT_TRUE(b.received.empty());
    ASSERT_NO_FATAL_FAILURE(send(2));
    ASSERT_TRUE(event_of(b, b.recv_cq.get()));
    EXPECT_TRUE(succeeded(received(b), 2, IBV_WC_RECV));
  }
}

TEST_P(Channels, SolicitedOnly) {
  constexpr std::uint64_t kPlain = 20;
  for (std::uint64_t i = 0; i < kPlain + 2; ++i) ASSERT_EQ(b.post_recv(i, b.sge(i * 64, 64)), 0);
  const auto send = [&](unsigned flags) {
    ASSERT_EQ(Request(IBV_WR_SEND, 1).gather(a.sge(0, 8)).flags(IBV_SEND_SIGNALED | flags).post(a), 0);
    const Deadline deadline = soon();
    while (a.sent.empty() && !deadline.passed()) a.poll();  // Not b.
    ASSERT_FALSE(a.sent.empty());
    a.sent.clear();
  };
  EXPECT_LE(count_events(b), kSpurious);
  for (std::uint64_t i = 0; i < kPlain; ++i) {
    b.poll();
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 1), 0);
    b.poll();
    ASSERT_NO_FATAL_FAILURE(send(0));
    EXPECT_STATUS(b.nic->wait(b.channel.get(), Deadline::now()), Status::kTimedOut);
  }
  EXPECT_LE(count_events(b), kSpurious);
  b.poll();
  ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 1), 0);
  b.poll();
  ASSERT_NO_FATAL_FAILURE(send(IBV_SEND_SOLICITED));
  EXPECT_TRUE(event_of(b, b.recv_cq.get()));
  const auto in = received(b, kPlain + 1);
  for (std::uint64_t i = 0; i <= kPlain; ++i) EXPECT_TRUE(succeeded(in[i], i, IBV_WC_RECV));
  // An error counts as solicited.
  ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 1), 0);
  b.poll();
  ASSERT_OK(to_error(*b.nic, b.qp.get()));
  EXPECT_TRUE(event_of(b, b.recv_cq.get()));
  EXPECT_TRUE(failed(received(b), kPlain + 1, IBV_WC_WR_FLUSH_ERR));
}

TEST_P(Channels, SolicitedWriteWithImmediate) {
  ASSERT_EQ(b.post_recv(1, {}), 0);
  ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 1), 0);
  b.poll();
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE_WITH_IMM, 2)
                .gather(a.sge(0, 8))
                .remote(b, kTarget)
                .flags(IBV_SEND_SIGNALED | IBV_SEND_SOLICITED)
                .post(a),
            0);
  EXPECT_TRUE(event_of(b, b.recv_cq.get()));
  EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV_RDMA_WITH_IMM));
}

// Arming for all completions after arming for solicited ones widens; the other way round does not narrow.
TEST_P(Channels, ArmingForAllPrevails) {
  for (const bool solicited_first : {false, true}) {
    ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), solicited_first ? 1 : 0), 0);
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), solicited_first ? 0 : 1), 0);
    b.poll();
    ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(a.sge(0, 8)).post(a), 0);
    EXPECT_TRUE(event_of(b, b.recv_cq.get()));
    EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
  }
}

TEST_P(Channels, WakeIsSticky) {
  a.nic->wake(a.channel.get());
  EXPECT_TRUE(event_of(a, nullptr));
  for (int i = 0; i < 20; ++i) a.nic->wake(a.channel.get());
  EXPECT_TRUE(event_of(a, nullptr));
  EXPECT_LE(count_events(a), kSpurious);  // Taken: all of them at once.
}

TEST_P(Channels, WakeFromAnotherThread) {
  VERBENA_SKIP_IN_SIMULATION();
  for (int round = 0; round < 20; ++round) {
    std::thread waker([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(round * 50));
      a.nic->wake(a.channel.get());
    });
    EXPECT_TRUE(event_of(a, nullptr));
    waker.join();
  }
}

TEST_P(Channels, WakeDoesNotHideAnEvent) {
  ASSERT_EQ(ibv_req_notify_cq(a.send_cq.get(), 0), 0);
  a.poll();
  a.nic->wake(a.channel.get());
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 8)).remote(b, kTarget).post(a), 0);
  std::set<ibv_cq*> seen;
  const Deadline deadline = soon();
  while (!(seen.contains(nullptr) && seen.contains(a.send_cq.get())) && !deadline.passed()) {
    const auto event = a.nic->wait(a.channel.get(), deadline);
    ASSERT_OK(event);
    seen.insert(*event);
  }
  // Others may be spurious.
  EXPECT_TRUE(seen.contains(nullptr) && seen.contains(a.send_cq.get()));
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
}

TEST_P(Channels, SeveralQueuesOnOneChannel) {
  VERBENA_SKIP_IN_CHAOS();
  // send_cq and recv_cq of a side share its channel already; both have something at once.
  ASSERT_EQ(a.post_recv(1, a.sge(0, 64)), 0);
  ASSERT_EQ(ibv_req_notify_cq(a.send_cq.get(), 0), 0);
  ASSERT_EQ(ibv_req_notify_cq(a.recv_cq.get(), 0), 0);
  a.poll();
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(a.sge(0, 8)).remote(b, kTarget).post(a), 0);
  ASSERT_EQ(Request(IBV_WR_SEND, 3).gather(b.sge(0, 8)).post(b), 0);
  std::set<ibv_cq*> seen;
  const Deadline deadline = soon();
  while (seen.size() < 2 && !deadline.passed()) {
    const auto event = a.nic->wait(a.channel.get(), deadline);
    ASSERT_OK(event);
    if (*event != nullptr) seen.insert(*event);
  }
  EXPECT_EQ(seen, (std::set<ibv_cq*>{a.send_cq.get(), a.recv_cq.get()}));
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(succeeded(received(a), 1, IBV_WC_RECV));
  EXPECT_TRUE(succeeded(sent(b), 3, IBV_WC_SEND));
}

// A completion queue without a channel can be polled, and does not disturb others.
TEST_P(Channels, QueueWithoutAChannel) {
  const auto made = a.nic->create_cq(16, nullptr);
  ASSERT_OK(made);
  const Cq cq(*a.nic, *made);
  QpOptions options = a.qp_options;
  options.send_cq = options.recv_cq = *made;
  const Qp here = make_qp(a, options);
  const Qp there = make_qp(b, b.qp_options);
  ASSERT_TRUE(here && there);
  ASSERT_NO_FATAL_FAILURE(connect(a, here.get(), b, there.get()));
  ASSERT_OK(a.nic->import_window(here.get(), b.nic->window_of(b.mr.get()), soon()));
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 8)).remote(b, 0).post(here.get()), 0);
  ibv_wc wc{};
  const Deadline deadline = soon();
  int count = 0;
  while (count == 0 && !deadline.passed()) count = ibv_poll_cq(*made, 1, &wc);
  EXPECT_EQ(count, 1);
  EXPECT_TRUE(succeeded(wc, 1, IBV_WC_RDMA_WRITE));
  EXPECT_LE(count_events(a), kSpurious);
}

// A stream to a receiver that sleeps by the pattern of ibv_get_cq_event(3): it arms only after an event.
TEST_P(Channels, SleepingReceiverOfAStream) {
  VERBENA_SKIP_IN_SIMULATION();
  const std::uint64_t count = rounds(5000);
  const Deadline deadline = Deadline::after(20s);
  for (std::uint64_t i = 0; i < 16; ++i) ASSERT_EQ(b.post_recv(i, b.sge(i * 64, 64)), 0);
  std::thread sender([&] {
    for (std::uint64_t i = 0; i < count && !deadline.passed(); ++i) {
      EXPECT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, i % 64)).post(a), 0);
      while (a.sent.empty() && !deadline.passed()) a.poll();
      a.sent.clear();
      if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 50));
    }
  });
  std::uint64_t arrived = 0;
  const auto poll_until_empty = [&] {
    ibv_wc wc{};
    while (ibv_poll_cq(b.recv_cq.get(), 1, &wc) == 1) {
      EXPECT_TRUE(succeeded(wc, arrived % 16, IBV_WC_RECV));
      EXPECT_EQ(wc.byte_len, arrived % 64);
      EXPECT_EQ(b.post_recv(arrived % 16, b.sge(arrived % 16 * 64, 64)), 0);
      ++arrived;
    }
  };
  EXPECT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
  poll_until_empty();
  while (arrived < count) {
    const auto event = b.nic->wait(b.channel.get(), deadline);
    EXPECT_OK(event);
    if (!event) break;
    if (*event != b.recv_cq.get()) continue;
    EXPECT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
    poll_until_empty();
  }
  sender.join();
  EXPECT_EQ(arrived, count);
}

// Two sides that sleep for every message: a lost wake-up would stop them.
TEST_P(Channels, SleepingPingPong) {
  VERBENA_SKIP_IN_SIMULATION();
  VERBENA_SKIP_IN_CHAOS();
  const std::uint64_t total = rounds(3000);
  const Deadline deadline = Deadline::after(60s);
  for (Side* side : {&a, &b})
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_EQ(side->post_recv(i, side->sge(i * 64, 64)), 0);
  std::atomic<bool> failed_once{false};
  const auto run = [&](Side& side, bool serves) {
    const auto send = [&](std::uint64_t round) {
      side.word(4096) = round;
      return Request(IBV_WR_SEND, round)
                 .gather(side.sge(4096, 8))
                 .flags(round % 16 == 0 ? IBV_SEND_INLINE | IBV_SEND_SIGNALED : IBV_SEND_INLINE)
                 .post(side) == 0;
    };
    const auto receive = [&](std::uint64_t round) {
      ibv_wc wc{};
      return sleep_for_one(side, side.recv_cq.get(), wc, deadline) && wc.status == IBV_WC_SUCCESS &&
             wc.wr_id == round % 4 && side.word(round % 4 * 64) == round &&
             side.post_recv(round % 4, side.sge(round % 4 * 64, 64)) == 0;
    };
    for (std::uint64_t round = 0; round < total; ++round) {
      ibv_wc wc{};
      while (ibv_poll_cq(side.send_cq.get(), 1, &wc) == 1) {}
      const bool well = serves ? send(round) && receive(round) : receive(round) && send(round);
      if (well) continue;
      EXPECT_TRUE(well) << (serves ? "server" : "client") << ", round " << round;
      failed_once = true;
      return;
    }
  };
  std::thread client([&] { run(b, false); });
  run(a, true);
  client.join();
  EXPECT_FALSE(failed_once);
}

}  // namespace
}  // namespace verbena::nic::conformance
