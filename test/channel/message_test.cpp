// Messages between two well-behaved channels: order, credits, large messages, READs, budgets.
#include "fixture.hpp"
#include "nic/soft/soft_nic.hpp"

#include <chaos.hpp>
#include <sanitized.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>

namespace verbena::channel::test {
namespace {

TEST_F(ConnectionPair, CarriesMessagesOfEveryLengthGatheredFromThreeParts) {
  open();
  std::uint64_t sent = 0;
  for (const std::size_t length :
       {1u, 2u, 7u, 8u, 56u, 57u, 64u, 65u, 100u, 239u, 240u, 241u, 256u, 257u, 1000u, 4095u, 4096u, 5247u, 5248u}) {
    const Bytes body = pattern(length, ++sent);
    const std::size_t first = length / 3;
    const std::size_t second = length / 2;
    const std::span<const std::byte> all(body);
    ASSERT_EQ(a.connection->send(all.first(first), all.subspan(first, second - first), all.subspan(second)),
              Status::kOk);
    ASSERT_TRUE(until([&] { return b.recorder.messages.size() == sent; }));
    EXPECT_EQ(b.recorder.messages.back(), body);
  }
  EXPECT_TRUE(a.connection->alive());
  EXPECT_TRUE(b.connection->alive());
}

// The completion of what was posted right after `attach` may be there before the loop has read of that.
TEST_F(ConnectionPair, PostsBeforeTheFirstPoll) {
  connect(a, b, {}, {});
  ASSERT_FALSE(HasFatalFailure());
  b.loop->poll();  // Its receives.
  const Bytes body = pattern(8, 1);
  ASSERT_EQ(a.connection->start_send(body, {}, 7), Status::kOk);
  ASSERT_TRUE(until([&] { return a.recorder.completed(0, 7) && b.recorder.messages.size() == 1; }));
  EXPECT_EQ(a.loop->counters().strays, 0u);
}

// Written where the NIC reads them: sent in another order than they were reserved in, of any length, some never.
TEST_F(ConnectionPair, SendsMessagesThatWereWrittenInPlace) {
  constexpr std::uint32_t kReservations = 8;
  open({.eager_bytes = 1024, .reservations = kReservations}, {.eager_bytes = 1024});
  std::mt19937 random(5);
  std::uint64_t sent = 0;
  const std::span<std::byte> held = a.connection->reserve();
  for (int round = 0; round < 200; ++round) {
    std::vector<std::span<std::byte>> reserved;
    ASSERT_TRUE(until([&] {
      const std::span<std::byte> room = a.connection->reserve();
      if (!room.empty()) reserved.push_back(room);
      return reserved.size() == kReservations - 1;
    }));
    EXPECT_TRUE(a.connection->reserve().empty()) << "more than Options::reservations";
    std::ranges::shuffle(reserved, random);
    for (const std::span<std::byte> room : reserved) {
      EXPECT_EQ(room.size(), 1024U);
      if (random() % 8 == 0) {
        a.connection->cancel_reserved(room.data());
        continue;
      }
      const Bytes body = pattern(1 + random() % room.size(), ++sent);
      std::ranges::copy(body, room.begin());
      Status status = Status::kAgain;
      ASSERT_TRUE(until([&] {
        status = a.connection->start_reserved(room.first(body.size()), sent);
        return status != Status::kAgain;
      }));
      ASSERT_EQ(status, Status::kOk);
      ASSERT_TRUE(until([&] { return b.recorder.messages.size() == sent && a.recorder.completions.size() == sent; }));
      EXPECT_EQ(b.recorder.messages.back(), body);
      EXPECT_TRUE(a.recorder.completed(sent - 1, sent));
    }
  }
  EXPECT_TRUE(a.connection->is_reserved(held.data()));
}

// A body that is kept stays as it is, and holds up the sender by its credits, whatever order they come back in.
TEST_F(ConnectionPair, KeepsMessagesUntilTheyAreGivenBack) {
  constexpr std::uint32_t kDepth = 8;
  open({}, {.depth = kDepth, .keeps_messages = true});
  struct Kept {
    std::uint32_t slot;
    std::span<const std::byte> body;
    Bytes was;
  };
  std::vector<Kept> kept;
  std::mt19937 random(6);
  b.recorder.when_message = [&](Connection& connection, std::span<const std::byte> body) {
    if (random() % 3 != 0) kept.push_back({connection.keep_message(), body, Bytes(body.begin(), body.end())});
  };
  std::uint64_t sent = 0;
  for (int round = 0; round < 300; ++round) {
    // Until there is no credit: what is kept is what holds it up.
    for (;;) {
      const Status status = a.connection->send(pattern(1 + random() % 5000, ++sent));
      settle();
      if (status == Status::kAgain) break;
      ASSERT_EQ(status, Status::kOk);
      ASSERT_LE(kept.size(), kDepth + 4U) << "more than there are receives";
    }
    --sent;
    ASSERT_FALSE(kept.empty());
    ASSERT_EQ(b.recorder.message_count, sent);
    std::ranges::shuffle(kept, random);
    const std::size_t left = random() % kept.size();
    while (kept.size() > left) {
      EXPECT_TRUE(std::ranges::equal(kept.back().body, kept.back().was)) << "it was overwritten";
      b.connection->give_back(kept.back().slot);
      kept.pop_back();
    }
    settle();
  }
  for (const Kept& one : kept) b.connection->give_back(one.slot);
  settle();
  EXPECT_EQ(a.connection->send(pattern(9, 9)), Status::kOk);
  EXPECT_TRUE(a.connection->alive() && b.connection->alive());
}

TEST_F(ConnectionPair, RefusesWhatDoesNotFit) {
  open({}, {.eager_bytes = 128});
  EXPECT_EQ(a.connection->longest_send(), 128u);
  EXPECT_EQ(a.connection->send({}), Status::kBadArgument);
  EXPECT_EQ(a.connection->send(pattern(129, 0)), Status::kTooLong);
  EXPECT_EQ(a.connection->send(pattern(100, 0), pattern(29, 0)), Status::kTooLong);
  EXPECT_EQ(a.connection->send(pattern(128, 0)), Status::kOk);
  // b's own limit counts too: it has places for no longer message.
  EXPECT_EQ(b.connection->longest_send(), 128u);
  EXPECT_EQ(b.connection->send(pattern(5248, 1)), Status::kTooLong);
  EXPECT_EQ(b.connection->send(pattern(128, 1)), Status::kOk);
  ASSERT_TRUE(until([&] { return b.recorder.messages.size() == 1 && a.recorder.messages.size() == 1; }));
}

TEST_F(ConnectionPair, RefusesLimitsThatCannotWork) {
  struct Case {
    Options options;
    Status status;
    const char* text;
  };
  const std::uint64_t absurd = std::uint64_t{64} << 30;
  const Case cases[] = {
      {{.depth = 0}, Status::kBadArgument, "depth must be 4 to 4096; got 0"},
      {{.depth = 3}, Status::kBadArgument, "depth must be 4 to 4096; got 3"},
      {{.depth = 4097}, Status::kBadArgument, "got 4097"},
      {{.eager_bytes = 0}, Status::kBadArgument, "eager_bytes must be 64 to 16384; got 0"},
      {{.eager_bytes = 100}, Status::kBadArgument, "a multiple of 64; got 100"},
      {{.eager_bytes = 32768}, Status::kBadArgument, "eager_bytes"},
      {{.lease_bytes = 64}, Status::kBadArgument, "lease_bytes"},
      {{.lease_bytes = absurd + 1}, Status::kBadArgument, "lease_bytes"},
      {{.fragment_bytes = 0}, Status::kBadArgument, "fragment_bytes must be 1024"},
      {{.fragment_bytes = absurd + 1}, Status::kBadArgument, "fragment_bytes"},
      {{.max_reads = 0}, Status::kBadArgument, "max_reads must be 1 to 4096; got 0"},
      {{.max_reads = 4097}, Status::kBadArgument, "max_reads"},
      {{.max_operations = 0}, Status::kBadArgument, "max_operations must be 1 to 4096; got 0"},
      {{.max_operations = ~0u}, Status::kBadArgument, "max_operations"},
      // The loop's queue, of which each channel takes a part.
      {{.depth = 4096}, Status::kLimit, "completion entries, and 0 of 4096 are taken"},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.text);
    const auto made = a.make(bad.options, a.recorder);
    ASSERT_TRUE(has_status(made, bad.status));
    EXPECT_NE(std::string(made.error().text()).find(bad.text), std::string::npos) << made.error().text();
  }
  EXPECT_EQ(a.nic->objects().qps, 0u);
}

TEST_F(ConnectionPair, CarriesUserDataBesideItsOwn) {
  open();
  const Bytes mine = pattern(Connection::kMaxUserBytes, 5);
  const auto endpoint = a.connection->describe(mine);
  ASSERT_OK(endpoint);
  const auto read = Connection::user_data_of(*endpoint);
  ASSERT_OK(read);
  EXPECT_TRUE(std::ranges::equal(*read, mine));
  EXPECT_STATUS(a.connection->describe(pattern(Connection::kMaxUserBytes + 1, 0)), Status::kTooLong);
  // The same QP under the same packet number: a second call must not describe another connection.
  const auto again = a.connection->describe({});
  ASSERT_OK(again);
  EXPECT_EQ(again->qp.psn, endpoint->qp.psn);
  EXPECT_EQ(again->generation, endpoint->generation);
}

TEST_F(ConnectionPair, FullQueueIsAgainAndCreditComesBack) {
  open({}, {.depth = 8});
  const Bytes body = pattern(8, 1);
  unsigned sent = 0;
  while (a.connection->send(body) == Status::kOk) ++sent;
  EXPECT_GE(sent, 8u);
  EXPECT_EQ(a.connection->send(body), Status::kAgain);
  EXPECT_EQ(a.connection->credits(), 0u);
  ASSERT_TRUE(until([&] { return a.connection->credits() >= 8; }));
  EXPECT_EQ(b.recorder.messages.size(), sent);
}

// Nobody sends back: credit comes by updates alone.
TEST_F(ConnectionPair, OneWayTrafficNeverStallsForAnyDepth) {
  for (const std::uint32_t depth : {4u, 5u, 7u, 8u, 33u, 64u}) {
    a.connection.reset();
    b.connection.reset();
    b.recorder.message_count = 0;
    b.recorder.keep = false;
    open({.depth = depth}, {.depth = depth});
    for (int i = 0; i < 3000; ++i) send(*a.connection, pattern(8, 1));
    ASSERT_TRUE(until([&] { return b.recorder.message_count == 3000; })) << depth;
  }
}

TEST_F(ConnectionPair, BothWaysAtOnceInRandomOrderNeverStalls) {
  const std::uint32_t start = 0xffff'ff00;  // Counters wrap early.
  open({.depth = 4, .first_count = start}, {.depth = 6, .first_count = start - 7});
  a.recorder.keep = b.recorder.keep = false;
  std::mt19937 random(7);
  std::uint64_t a_sent = 0;
  std::uint64_t b_sent = 0;
  const Bytes body = pattern(40, 3);
  const Deadline deadline = patience();
  while (a_sent < 5000 || b_sent < 5000) {
    ASSERT_FALSE(deadline.passed());
    switch (random() % 4) {
      case 0: a_sent += a.connection->send(body) == Status::kOk ? 1 : 0; break;
      case 1: b_sent += b.connection->send(body) == Status::kOk ? 1 : 0; break;
      case 2: a.loop->poll(); break;
      default: b.loop->poll(); break;
    }
  }
  ASSERT_TRUE(until([&] { return b.recorder.message_count == a_sent && a.recorder.message_count == b_sent; }));
}

TEST_F(ConnectionPair, HandlerMayAnswerFromInside) {
  open();
  b.recorder.when_message = [](Connection& connection, std::span<const std::byte> body) {
    EXPECT_EQ(connection.send(body), Status::kOk);
  };
  for (std::uint64_t i = 0; i < 500; ++i) {
    const Bytes body = pattern(1 + i * 7 % 5000, i);
    ASSERT_EQ(a.connection->send(body), Status::kOk);
    ASSERT_TRUE(until([&] { return a.recorder.messages.size() == i + 1; }));
    ASSERT_EQ(a.recorder.messages.back(), body);
  }
}

TEST_F(ConnectionPair, LargeMessageIsLargerThanTheLease) {
  open({}, {.lease_bytes = 16 * 1024});
  Region body(*a.nic, a.pd.get(), 300'000);
  for (const std::size_t length : {0u, 1u, 63u, 64u, 4000u, 16'384u, 100'003u, 300'000u}) {
    fill(body.bytes(), length);
    const Bytes head = pattern(length == 0 ? 1 : length % 2048, 9);
    b.recorder.larges.clear();
    a.recorder.completions.clear();
    ASSERT_EQ(a.connection->start_large(head, body.local(0, length), length), Status::kOk);
    ASSERT_TRUE(until([&] { return b.recorder.larges.size() == 1 && a.recorder.completions.size() == 1; })) << length;
    EXPECT_TRUE(a.recorder.completed(0, length, Status::kOk));
    Bytes expected = head;
    expected.insert(expected.end(), body.bytes().begin(), body.bytes().begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_EQ(b.recorder.larges[0], expected) << length;
  }
}

TEST_F(ConnectionPair, LargeAndEagerMessagesInterleaveInOrder) {
  const std::uint32_t start = 0xffff'fff0;
  open({.depth = 8, .lease_bytes = 8192, .first_count = start},
       {.depth = 8, .lease_bytes = 12'352, .first_count = start});
  Region a_body(*a.nic, a.pd.get(), 40'000);
  Region b_body(*b.nic, b.pd.get(), 40'000);
  fill(a_body.bytes(), 1);
  fill(b_body.bytes(), 2);
  std::mt19937 random(3);
  std::vector<std::size_t> a_lengths;
  std::vector<std::size_t> b_lengths;
  std::uint64_t a_eager = 0;
  const Deadline deadline = patience();
  while (a_lengths.size() < 200 || b_lengths.size() < 200 || a_eager < 1000) {
    ASSERT_FALSE(deadline.passed());
    const std::size_t length = 1 + random() % 40'000;
    switch (random() % 6) {
      case 0:
        if (a.connection->start_large({}, a_body.local(0, length), a_lengths.size()) == Status::kOk)
          a_lengths.push_back(length);
        break;
      case 1:
        if (b.connection->start_large({}, b_body.local(0, length), b_lengths.size()) == Status::kOk)
          b_lengths.push_back(length);
        break;
      case 2: a_eager += a.connection->send(std::as_bytes(std::span(&a_eager, 1))) == Status::kOk ? 1 : 0; break;
      case 3: a.loop->poll(); break;
      default: b.loop->poll(); break;
    }
  }
  ASSERT_TRUE(until([&] {
    return b.recorder.larges.size() == a_lengths.size() && a.recorder.larges.size() == b_lengths.size() &&
           b.recorder.message_count == a_eager && a.recorder.completions.size() == a_lengths.size();
  }));
  for (std::size_t i = 0; i < a_lengths.size(); ++i) {
    ASSERT_EQ(b.recorder.larges[i].size(), a_lengths[i]);
    ASSERT_TRUE(matches(b.recorder.larges[i], 1));
    ASSERT_TRUE(a.recorder.completed(i, i, Status::kOk));
  }
  for (std::size_t i = 0; i < b_lengths.size(); ++i) {
    ASSERT_EQ(a.recorder.larges[i].size(), b_lengths[i]);
    ASSERT_TRUE(matches(a.recorder.larges[i], 2));
  }
  for (std::uint64_t i = 0; i < a_eager; ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, b.recorder.messages[i].data(), sizeof value);
    ASSERT_EQ(value, i);
  }
}

TEST_F(ConnectionPair, LargeSendsNeedALeaseAndAFreeOperation) {
  open({.lease_bytes = 4096, .max_operations = 2}, {.max_operations = 2});
  Region body(*b.nic, b.pd.get(), 100'000);
  EXPECT_EQ(a.connection->start_large(pattern(10, 0), {}, 1), Status::kUnsupported);
  EXPECT_EQ(b.connection->start_large({}, {}, 1), Status::kBadArgument);
  EXPECT_EQ(b.connection->start_large(pattern(2049, 0), {}, 1), Status::kTooLong);
  EXPECT_EQ(b.connection->start_large({}, body.local(0, 100'000), 1), Status::kOk);
  EXPECT_EQ(b.connection->start_large({}, body.local(0, 100'000), 2), Status::kOk);
  EXPECT_EQ(b.connection->start_large({}, body.local(0, 100'000), 3), Status::kAgain);
  ASSERT_TRUE(until([&] { return b.recorder.completions.size() == 2; }));
  EXPECT_EQ(b.connection->start_large({}, body.local(0, 1), 3), Status::kOk);
  ASSERT_TRUE(until([&] { return a.recorder.larges.size() == 3; }));
}

TEST_F(ConnectionPair, ReadsQueueUpToTheirLimitAndComplete) {
  open({.max_reads = 4, .max_operations = 64});
  Region source(*b.nic, b.pd.get(), 64 * 1024);
  Region sink(*a.nic, a.pd.get(), 64 * 1024);
  fill(source.bytes(), 11);
  ASSERT_OK(a.connection->import_window(source.window(), patience()));
  for (std::uint64_t i = 0; i < 64; ++i)
    ASSERT_EQ(a.connection->start_read(sink.local(i * 1024, 1024), source.remote(i * 1024, 1024), i), Status::kOk);
  EXPECT_EQ(a.connection->start_read(sink.local(0, 8), source.remote(0, 8), 64), Status::kAgain);
  EXPECT_LE(a.loop->counters().work_requests, 4u);
  ASSERT_TRUE(until([&] { return a.recorder.completions.size() == 64; }));
  EXPECT_TRUE(matches(sink.bytes(), 11));
  for (std::uint64_t i = 0; i < 64; ++i) EXPECT_TRUE(a.recorder.completed(i, i, Status::kOk));
  EXPECT_EQ(a.connection->start_read(sink.local(0, 8), source.remote(0, 8), 65), Status::kOk);
}

// A device takes less in one request than a channel moves in one operation: Soft-RoCE 8 MiB.
TEST_F(ConnectionPair, MovesMoreThanTheNicTakesAtOnce) {
  constexpr std::size_t kBytes = (9u << 20) + 100;
  open({.fragment_bytes = 64u << 20}, {.lease_bytes = 36u << 20});
  Region there(*b.nic, b.pd.get(), kBytes);
  Region here(*a.nic, a.pd.get(), kBytes);
  fill(there.bytes(), 1);
  ASSERT_OK(a.connection->import_window(there.window(), patience()));
  ASSERT_EQ(a.connection->start_read(here.local(0, kBytes), there.remote(0, kBytes), 1), Status::kOk);
  ASSERT_TRUE(until([&] { return a.recorder.completions.size() == 1; }));
  EXPECT_EQ(a.recorder.completions[0].status, Status::kOk);
  EXPECT_TRUE(matches(here.bytes(), 1));
  fill(here.bytes(), 2);
  ASSERT_EQ(a.connection->start_large({}, here.local(0, kBytes), 2), Status::kOk);
  ASSERT_TRUE(until([&] { return a.recorder.completions.size() == 2 && b.recorder.larges.size() == 1; }));
  EXPECT_TRUE(matches(b.recorder.larges[0], 2));
}

TEST_F(ConnectionPair, ReadsAreCheckedBeforeTheyArePosted) {
  open();
  Region source(*b.nic, b.pd.get(), 4096);
  Region sink(*a.nic, a.pd.get(), 8192);
  EXPECT_EQ(a.connection->start_read(sink.local(0, 8), source.remote(0, 8), 1), Status::kNotFound);
  ASSERT_OK(a.connection->import_window(source.window(), patience()));
  EXPECT_EQ(a.connection->start_read(sink.local(0, 7), source.remote(0, 8), 1), Status::kBadArgument);
  EXPECT_EQ(a.connection->start_read(sink.local(0, 8), source.remote(0, 0), 1), Status::kBadArgument);
  EXPECT_EQ(a.connection->start_read(sink.local(0, 8), source.remote(4089, 8), 1), Status::kOutOfRange);
  EXPECT_EQ(a.connection->start_read(sink.local(0, 8), source.remote(~std::size_t{0}, 8), 1), Status::kOutOfRange);
  EXPECT_EQ(a.connection->start_read(sink.local(0, 8192), source.remote(1, ~std::size_t{0}), 1), Status::kBadArgument);
  EXPECT_EQ(a.connection->start_read(sink.local(0, 8), source.remote(4088, 8), 1), Status::kOk);
  ASSERT_TRUE(until([&] { return a.recorder.completions.size() == 1; }));
  EXPECT_TRUE(a.connection->alive());
}

TEST_F(ConnectionPair, WritesAreCheckedBeforeTheyArePosted) {
  open();
  Region sink(*b.nic, b.pd.get(), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  Region readable(*b.nic, b.pd.get(), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  Region source(*a.nic, a.pd.get(), 8192);
  EXPECT_EQ(a.connection->start_write(source.local(0, 8), sink.remote(0, 8), 1), Status::kNotFound);
  ASSERT_OK(a.connection->import_window(sink.window(), patience()));
  ASSERT_OK(a.connection->import_window(readable.window(), patience()));
  EXPECT_EQ(a.connection->start_write(source.local(0, 8), sink.remote(0, 7), 1), Status::kBadArgument);
  EXPECT_EQ(a.connection->start_write(source.local(0, 0), sink.remote(0, 8), 1), Status::kBadArgument);
  EXPECT_EQ(a.connection->start_write(source.local(0, 8), sink.remote(4089, 8), 1), Status::kOutOfRange);
  EXPECT_EQ(a.connection->start_write(source.local(0, 8), readable.remote(0, 8), 1), Status::kRemoteAccess);
  EXPECT_EQ(a.connection->start_write(source.local(0, 8), sink.remote(4088, 8), 1), Status::kOk);
  ASSERT_TRUE(until([&] { return a.recorder.completions.size() == 1; }));
  EXPECT_TRUE(a.connection->alive());
}

// More WRITEs than the send queue takes: what waits for room must not be overtaken by a message for which there is
// room, as there is in the handler of the first completion.
TEST_F(ConnectionPair, AMessageArrivesBehindTheWritesBeforeIt) {
  constexpr std::size_t kWrites = 64;
  open({.depth = 4, .max_reads = 1, .max_operations = kWrites});
  Region sink(*b.nic, b.pd.get(), kWrites * 1024);
  Region source(*a.nic, a.pd.get(), kWrites * 1024);
  fill(source.bytes(), 5);
  ASSERT_OK(a.connection->import_window(sink.window(), patience()));
  const Bytes body = pattern(8, 1);
  bool is_sent = false;
  a.recorder.when_complete = [&](Connection& connection, const Completion&) {
    if (!is_sent) is_sent = connection.send(body) == Status::kOk;
  };
  bool is_whole = false;
  b.recorder.when_message = [&](Connection&, std::span<const std::byte>) { is_whole = matches(sink.bytes(), 5); };
  for (std::uint64_t i = 0; i < kWrites; ++i)
    ASSERT_EQ(a.connection->start_write(source.local(i * 1024, 1024), sink.remote(i * 1024, 1024), i), Status::kOk);
  ASSERT_TRUE(until([&] { return a.recorder.completions.size() == kWrites; }));
  if (!is_sent) send(*a.connection, body);
  ASSERT_TRUE(until([&] { return b.recorder.message_count == 1; }));
  EXPECT_TRUE(is_whole);
  for (std::uint64_t i = 0; i < kWrites; ++i) EXPECT_TRUE(a.recorder.completed(i, i, Status::kOk));
}

// One message is one work request, one doorbell, and almost always nothing else.
TEST_F(ConnectionPair, KeepsItsBudgets) {
  open();
  a.recorder.keep = b.recorder.keep = false;
  b.recorder.when_message = [](Connection& connection, std::span<const std::byte> body) {
    EXPECT_EQ(connection.send(body), Status::kOk);
  };
  const Bytes body = pattern(8, 1);
  settle();
  const engine::Counters before = a.loop->counters();
  constexpr std::uint64_t kRounds = 1000;
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    ASSERT_EQ(a.connection->send(body), Status::kOk);
    ASSERT_TRUE(until([&] { return a.recorder.message_count == i + 1; }));
  }
  const engine::Counters after = a.loop->counters();
  EXPECT_EQ(after.work_requests - before.work_requests, kRounds);
  // The software NIC sends them without a doorbell.
  EXPECT_EQ(after.doorbells - before.doorbells + after.direct - before.direct, kRounds);
  EXPECT_EQ(after.inline_sends - before.inline_sends, kRounds);
  EXPECT_EQ(after.bytes - before.bytes, kRounds * body.size());
  EXPECT_LE(after.receive_refills - before.receive_refills, kRounds / 16);
  EXPECT_LE(after.completions - before.completions, kRounds + kRounds / 16);
  EXPECT_EQ(after.sleeps, before.sleeps);
}

// What is sent together leaves together, and so do the answers to what arrived together.
TEST(Batches, ShareDoorbells) {
  Side a;
  Side b({.batch_on = engine::BatchOn::kEveryNic});
  ASSERT_NO_FATAL_FAILURE(connect(a, b, {}, {}));
  a.recorder.keep = b.recorder.keep = false;
  std::uint64_t answered = 0;
  b.recorder.when_message = [&](Connection& connection, std::span<const std::byte> body) {
    EXPECT_EQ(connection.send(body), Status::kOk);
    ++answered;
  };
  b.loop->poll();
  for (const std::size_t bytes : {8U, 200U, 2000U}) {
    SCOPED_TRACE(bytes);
    const Bytes body = pattern(bytes, 1);
    const Counters before = a.loop->counters();
    const Counters b_before = b.loop->counters();
    const std::uint64_t answers = a.recorder.message_count + 16;
    {
      const engine::Batch batch(*a.connection);
      for (int i = 0; i < 16; ++i) ASSERT_EQ(a.connection->send(body), Status::kOk);
      if (bytes <= engine::kHeldInlineBytes / 2) {
        EXPECT_EQ(a.loop->counters().doorbells, before.doorbells);
      }
    }
    ASSERT_TRUE(poll_until({a.loop.get(), b.loop.get()}, [&] { return a.recorder.message_count == answers; }));
    const Counters after = a.loop->counters();
    // And an update of credits, now and then.
    EXPECT_LE(after.work_requests - before.work_requests, 17u);
    if (bytes > engine::kHeldInlineBytes && a.nic->limits().max_inline >= bytes) continue;  // Each rings for itself.
    EXPECT_LE(after.doorbells - before.doorbells, 2u);
    // The other side polls 16 completions at most at a time; how many are there when it does is the NIC's.
    const Counters b_after = b.loop->counters();
    EXPECT_LE(b_after.work_requests - b_before.work_requests, 17u);
    if (device_under_test() == nullptr && !in_chaos()) {
      EXPECT_LE(b_after.doorbells - b_before.doorbells, 3u);
    }
  }
}

TEST_F(ConnectionPair, BytesOfABatchAreTheCallersAgain) {
  open();
  const engine::Batch batch(*a.connection);
  for (int i = 0; i < 20; ++i) {
    Bytes body = pattern(static_cast<std::size_t>(i) * 40 + 1, static_cast<std::uint64_t>(i));
    ASSERT_EQ(a.connection->send(body), Status::kOk);
    std::ranges::fill(body, std::byte{0});
  }
  ASSERT_TRUE(until([&] { return b.recorder.messages.size() == 20; }));
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(b.recorder.messages[i], pattern(i * 40 + 1, i));
}

TEST_F(ConnectionPair, LeavesNothingBehindOverThousandsOfLives) {
  const auto a_before = a.objects_but_peers();
  const auto b_before = b.objects_but_peers();
  const Options options{.depth = 4, .eager_bytes = 64, .lease_bytes = 4096, .max_reads = 1, .max_operations = 1};
  const std::uint64_t lives = a.rounds(test::unsanitized(1000));
  for (std::uint64_t i = 0; i < lives; ++i) {
    open(options, options);
    ASSERT_FALSE(HasFatalFailure());
    if (i % 3 != 0) {
      send(*a.connection, pattern(8, 1));
      ASSERT_EQ(b.connection->start_large(pattern(100, 2), {}, 1), Status::kOk);
    }
    if (i % 3 == 1) {
      ASSERT_TRUE(until([&] { return !a.recorder.larges.empty(); }));
    }
    a.connection.reset();
    b.connection.reset();
    a.recorder.larges.clear();
    a.recorder.large.clear();
    a.recorder.failures.clear();
    b.recorder.failures.clear();
    a.recorder.completions.clear();
    b.recorder.completions.clear();
  }
  settle();
  EXPECT_EQ(a.objects_but_peers(), a_before);
  EXPECT_EQ(b.objects_but_peers(), b_before);
}

// Many channels on one loop: the table finds each, also after others went.
TEST(ConnectionTable, DispatchesToTheRightChannelWhileOthersComeAndGo) {
  Side server({.max_connections = 40, .cqe = 4096});
  Side client({.max_connections = 40, .cqe = 4096});
  const Options options{.depth = 4, .eager_bytes = 64, .max_reads = 1, .max_operations = 1};
  struct Pair {
    Recorder at_server, at_client;
    std::unique_ptr<Connection> server, client;
  };
  std::vector<std::unique_ptr<Pair>> pairs(40);
  std::mt19937 random(1);
  const std::uint64_t steps = std::max<std::uint64_t>(server.rounds(600), 150);
  for (std::uint64_t step = 0; step < steps; ++step) {
    auto& pair = pairs[random() % pairs.size()];
    if (pair) {
      pair.reset();
      continue;
    }
    pair = std::make_unique<Pair>();
    auto s = server.make(options, pair->at_server);
    auto c = client.make(options, pair->at_client);
    ASSERT_OK(s);
    ASSERT_OK(c);
    pair->server = std::move(*s);
    pair->client = std::move(*c);
    ASSERT_NO_FATAL_FAILURE(join(*pair->server, *pair->client));
    for (auto& other : pairs) {
      if (!other) continue;
      const std::uint64_t before = other->at_server.message_count;
      ASSERT_EQ(other->client->send(pattern(8, 1)), Status::kOk);
      ASSERT_TRUE(poll_until({server.loop.get(), client.loop.get()},
                             [&] { return other->at_server.message_count == before + 1; }));
    }
  }
}

// Two threads, each with its loop, sleeping while there is nothing: messages, then large ones.
TEST(ConnectionThreads, TwoThreadsPassMessagesAndSleepInBetween) {
  Side a({.spin = std::chrono::microseconds{5}});
  Side b({.spin = std::chrono::microseconds{5}});
  connect(a, b, {.lease_bytes = 64 * 1024}, {.lease_bytes = 64 * 1024});
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  std::atomic<bool> stop{false};
  std::thread echo([&] {
    b.recorder.when_message = [](Connection& connection, std::span<const std::byte> body) {
      EXPECT_EQ(connection.send(body), Status::kOk);
    };
    while (!stop.load()) b.loop->wait(patience());
  });
  Region body(*a.nic, a.pd.get(), 200'000);
  fill(body.bytes(), 4);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    Status status = Status::kAgain;
    const Bytes message = pattern(1 + i % 600, i);
    ASSERT_EQ(a.loop->wait_until([&] { return (status = a.connection->send(message)) != Status::kAgain; }, patience()),
              Status::kOk);
    ASSERT_EQ(status, Status::kOk);
    ASSERT_EQ(a.loop->wait_until([&] { return a.recorder.message_count == i + 1; }, patience()), Status::kOk) << i;
    ASSERT_EQ(a.recorder.messages.back(), message);
  }
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(a.connection->start_large({}, body.local(0, 200'000), i), Status::kOk);
    ASSERT_EQ(a.loop->wait_until([&] { return a.recorder.completions.size() == i + 1; }, patience()), Status::kOk);
  }
  stop = true;
  b.loop->wake();
  echo.join();
  ASSERT_TRUE(poll_until({a.loop.get(), b.loop.get()}, [&] { return b.recorder.larges.size() == 20; }));
  for (const Bytes& large : b.recorder.larges) ASSERT_TRUE(matches(large, 4));
}

// A server's shape: another thread makes the channels while the loop's thread polls.
TEST(ConnectionThreads, ChannelsMadeInAnotherThreadServeAtOnce) {
  Side server;
  Side client;
  std::atomic<bool> stop{false};
  std::thread worker([&] {
    while (!stop.load()) server.loop->wait(patience());
  });
  struct Pair {
    Recorder at_server, at_client;
    std::unique_ptr<Connection> server, client;
  };
  std::vector<std::unique_ptr<Pair>> pairs;
  const Options options{.depth = 4, .eager_bytes = 64, .max_reads = 1, .max_operations = 1};
  for (int i = 0; i < 30; ++i) {
    Pair& pair = *pairs.emplace_back(std::make_unique<Pair>());
    pair.at_server.when_message = [](Connection& connection, std::span<const std::byte> body) {
      EXPECT_EQ(connection.send(body), Status::kOk);
    };
    auto s = server.make(options, pair.at_server);
    auto c = client.make(options, pair.at_client);
    ASSERT_OK(s);
    ASSERT_OK(c);
    pair.server = std::move(*s);
    pair.client = std::move(*c);
    const auto s_end = pair.server->describe({});
    const auto c_end = pair.client->describe({});
    ASSERT_OK(pair.server->meet(*c_end));
    ASSERT_OK(pair.client->meet(*s_end));
    ASSERT_OK(pair.server->connect(patience()));
    ASSERT_OK(pair.client->connect(patience()));
    if (i % 10 == 1) {
      pair.server.reset();  // Never attached: any thread may.
      pair.client.reset();
      continue;
    }
    pair.server->attach();
    pair.client->attach();
    ASSERT_EQ(pair.client->send(pattern(8, 2)), Status::kOk);
    ASSERT_EQ(client.loop->wait_until([&] { return pair.at_client.message_count == 1; }, patience()), Status::kOk);
  }
  stop = true;
  server.loop->wake();
  worker.join();
}

}  // namespace
}  // namespace verbena::channel::test
