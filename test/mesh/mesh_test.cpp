// Messages, one-sided access, credits and calls of all, between meshes that work; and what is refused.
#include "fixture.hpp"

#include <atomic>
#include <random>
#include <set>

namespace verbena::mesh::test {
namespace {

using Kind = Completion::Kind;

[[nodiscard]] Bytes copy_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

TEST_F(Meshes, OneProcessIsAMesh) {
  ASSERT_NO_FATAL_FAILURE(start(1));
  EXPECT_OK(lane(0).barrier(patience()));
  std::array<Completion, 4> none;
  EXPECT_EQ(lane(0).poll(none), 0U);
  EXPECT_EQ(lane(0).send(0, {}, 1), Status::kBadArgument);
}

TEST_F(Meshes, MessagesArriveInOrderWithTheirImmediates) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  std::mt19937 random(1);
  const std::size_t most = meshes[0]->options().message_bytes;
  const std::vector<std::optional<std::uint32_t>> immediates = {{}, 0U, 1U, ~0U};
  for (std::uint64_t i = 0; i < 500; ++i) {
    const Bytes message = pattern(i < 3 ? i : i == 3 ? most : random() % (most + 1), i);
    const auto immediate = immediates[random() % immediates.size()];
    if (random() % 2 == 0) {
      ASSERT_EQ(patiently([&] { return lane(0).send(1, message, i, immediate); }), Status::kOk);
    } else {
      std::span<std::byte> room;
      ASSERT_TRUE(until([&] { return !(room = lane(0).reserve(1)).empty(); }));
      ASSERT_EQ(room.size(), most);
      std::ranges::copy(message, room.begin());
      ASSERT_EQ(patiently([&] { return lane(0).commit(1, room.first(message.size()), i, immediate); }), Status::kOk);
    }
    const Completion got = next(1);
    ASSERT_EQ(got.kind, Kind::kReceive);
    EXPECT_EQ(got.peer, 0U);
    EXPECT_EQ(got.immediate, immediate);
    ASSERT_EQ(copy_of(got.bytes), message) << i;
    EXPECT_EQ(lane(1).release(got), Status::kOk);
    const Completion sent = next(0);
    EXPECT_EQ(sent.kind, Kind::kSend);
    EXPECT_EQ(sent.status, Status::kOk);
    EXPECT_EQ(sent.cookie, i);
    EXPECT_EQ(sent.bytes.size(), message.size());
  }
}

TEST_F(Meshes, EachThreadReachesItsLikeOfEveryProcess) {
  constexpr unsigned kProcesses = 4, kThreads = 2, kEach = 50;
  ASSERT_NO_FATAL_FAILURE(start(kProcesses, [](Options& options) { options.threads = kThreads; }));
  struct Note {
    unsigned from, to, thread, number;
  };
  std::vector<std::jthread> threads;
  for (unsigned id = 0; id < kProcesses; ++id) {
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, id, thread] {
        Lane& mine = lane(id, thread);
        std::vector<unsigned> sent(kProcesses), received(kProcesses);
        unsigned ended = 0;
        const unsigned due = kEach * (kProcesses - 1);
        for (const Deadline deadline = patience(); !deadline.passed();) {
          unsigned all_received = 0;
          for (unsigned peer = 0; peer < kProcesses; ++peer) {
            all_received += received[peer];
            if (peer == id || sent[peer] == kEach) continue;
            const Note note{id, peer, thread, sent[peer]};
            if (mine.send(peer, std::as_bytes(std::span(&note, 1)), peer) == Status::kOk) ++sent[peer];
          }
          if (ended == due && all_received == due) return;
          mine.poll_each([&](const Completion& completion) {
            EXPECT_EQ(completion.status, Status::kOk);
            if (completion.kind == Kind::kSend) ++ended;
            if (completion.kind != Kind::kReceive) return;
            Note note{};
            ASSERT_EQ(completion.bytes.size(), sizeof note);
            std::memcpy(&note, completion.bytes.data(), sizeof note);
            EXPECT_EQ(note.from, completion.peer);
            EXPECT_EQ(note.to, id);
            EXPECT_EQ(note.thread, thread);
            EXPECT_EQ(note.number, received[note.from]++) << "out of order";
          });
        }
        ADD_FAILURE() << "process " << id << ", thread " << thread << " did not get all";
      });
    }
  }
  threads.clear();
}

// A peer that does not poll holds up its senders, by value, and nobody else; then everything arrives.
TEST_F(Meshes, AFastSenderIsHeldBackByCredit) {
  ASSERT_NO_FATAL_FAILURE(start(3));
  std::uint64_t sent = 0;
  std::array<Completion, 1> one;
  for (int idle = 0; idle < 2000;) {
    const Status status = lane(0).send(1, pattern(100, sent), sent);
    if (status == Status::kOk) {
      ++sent;
      idle = 0;
    } else {
      ASSERT_EQ(status, Status::kAgain);
      ++idle;
    }
    (void)lane(0).poll(one);
    ASSERT_LE(sent, 64U) << "more than depth and operations";
  }
  EXPECT_GE(sent, meshes[0]->options().depth);
  ASSERT_EQ(lane(0).send(2, pattern(100, 7), 7), Status::kOk);
  EXPECT_EQ(copy_of(next(2).bytes), pattern(100, 7));
  for (std::uint64_t i = 0; i < sent; ++i) {
    const Completion got = next(1);
    ASSERT_EQ(got.kind, Kind::kReceive);
    EXPECT_EQ(copy_of(got.bytes), pattern(100, i));
    EXPECT_EQ(lane(1).release(got), Status::kOk);
  }
  EXPECT_EQ(patiently([&] { return lane(0).send(1, pattern(1, 0), 0); }), Status::kOk);
}

// Messages that are kept stay as they are while others come and go.
// Its own sends have ended, and nobody sends it anything: there is no completion to wait for.
TEST_F(Meshes, AWaitEndsWhenTheSenderHasCreditAgain) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  std::array<Completion, 8> ended;
  std::uint64_t sent = 0;
  std::uint64_t done = 0;
  const Bytes message = pattern(100, 1);
  for (int refused = 0; refused < 2000 || done < sent;) {
    const Status status = lane(0).send(1, message, 0);
    ASSERT_TRUE(status == Status::kOk || status == Status::kAgain);
    if (status == Status::kOk)
      ++sent;
    else
      ++refused;
    done += lane(0).poll(ended, Which::kSends);
    ASSERT_LE(sent, 64U) << "more than depth and operations";
  }
  // Its credit may need further polls of its own to be on the way.
  const std::jthread receiver([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) (void)lane(1).poll_each([](const Completion&) {}, Which::kReceives);
  });
  const Deadline deadline = patience();
  Status status = Status::kAgain;
  while ((status = lane(0).send(1, message, 0)) == Status::kAgain && !deadline.passed())
    EXPECT_EQ(lane(0).wait(ended, deadline), 0U);
  EXPECT_EQ(status, Status::kOk);
}

TEST_F(Meshes, KeptMessagesStayAsTheyAre) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  std::vector<std::pair<Completion, std::uint64_t>> kept;
  std::mt19937 random(3);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(patiently([&] { return lane(0).send(1, pattern(1 + i % 4000, i), i); }), Status::kOk);
    Completion got = next(1);
    ASSERT_EQ(got.kind, Kind::kReceive);
    kept.emplace_back(got, i);
    (void)next(0);
    while (kept.size() > 4) {
      const auto one = kept.begin() + static_cast<std::ptrdiff_t>(random() % kept.size());
      EXPECT_EQ(copy_of(one->first.bytes), pattern(1 + one->second % 4000, one->second));
      EXPECT_EQ(lane(1).release(one->first), Status::kOk);
      EXPECT_EQ(lane(1).release(one->first), Status::kBadArgument) << "twice";
      kept.erase(one);
    }
  }
}

// Messages arrive in the same few receives in turn: the handle of a released one must not release its successor.
TEST_F(Meshes, AnOldHandleDoesNotReleaseTheNextMessageInItsPlace) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  const auto receive_one = [&](std::uint64_t number) {
    EXPECT_EQ(patiently([&] { return lane(0).send(1, pattern(8, number), number); }), Status::kOk);
    (void)next(0);
    return next(1);
  };
  const Completion old = receive_one(0);
  ASSERT_EQ(lane(1).release(old), Status::kOk);
  constexpr std::uint64_t kRounds = 1000;
  std::uint64_t round = 1;
  for (; round < kRounds; ++round) {
    const Completion got = receive_one(round);
    ASSERT_EQ(got.kind, Kind::kReceive);
    const bool has_its_place = got.handle.place == old.handle.place;
    if (has_its_place) {
      EXPECT_EQ(lane(1).release(old), Status::kBadArgument);
    }
    EXPECT_EQ(copy_of(got.bytes), pattern(8, round));
    EXPECT_EQ(lane(1).release(got), Status::kOk) << "it is still held";
    if (has_its_place) break;
  }
  EXPECT_LT(round, kRounds) << "no message came to the first one's place";
}

TEST_F(Meshes, ReadsWritesAndChangesPublishedMemory) {
  ASSERT_NO_FATAL_FAILURE(start(3));
  constexpr std::size_t kLength = 1 << 20;
  const auto memory = meshes[1]->allocate(kLength);
  ASSERT_OK(memory);
  ASSERT_OK(meshes[1]->publish("field", *memory));
  EXPECT_STATUS(meshes[1]->publish("field", *memory), Status::kBusy);
  const auto mine = meshes[0]->allocate(kLength);
  ASSERT_OK(mine);
  const Window window = found(0, 1, "field");
  ASSERT_EQ(window.memory.length, kLength);
  Bytes any(kLength);
  for (const std::size_t length : {std::size_t{1}, std::size_t{8}, std::size_t{4096}, kLength - 3}) {
    for (const std::span<std::byte> local : {std::span(any), *mine}) {
      std::ranges::copy(pattern(length, length), local.begin());
      ASSERT_EQ(lane(0).write(window, 3, local.first(length), 1), Status::kOk);
      Completion done = next(0);
      EXPECT_EQ(done.kind, Kind::kWrite);
      EXPECT_EQ(done.status, Status::kOk);
      EXPECT_EQ(done.bytes.data(), local.data());
      EXPECT_EQ(copy_of(memory->subspan(3, length)), pattern(length, length));
      std::ranges::fill(local, std::byte{0});
      ASSERT_EQ(lane(0).read(window, 3, local.first(length), 2), Status::kOk);
      done = next(0);
      EXPECT_EQ(done.kind, Kind::kRead);
      EXPECT_EQ(done.cookie, 2U);
      EXPECT_EQ(copy_of(local.first(length)), pattern(length, length));
    }
  }
  // The place comes with the immediate, behind the bytes.
  ASSERT_EQ(lane(0).write(window, 64, pattern(100, 9), 3, 0U), Status::kOk);
  const Completion written = next(1);
  ASSERT_EQ(written.kind, Kind::kWritten);
  EXPECT_EQ(written.immediate, 0U);
  EXPECT_EQ(written.bytes.data(), memory->data() + 64);
  EXPECT_EQ(copy_of(written.bytes), pattern(100, 9));
  EXPECT_EQ(next(0).cookie, 3U);
  const auto word = [&] {
    std::uint64_t value = 0;
    std::memcpy(&value, memory->data() + 4096, sizeof value);
    return value;
  };
  std::ranges::fill(memory->subspan(4096, 8), std::byte{0});
  ASSERT_EQ(lane(0).fetch_add(window, 4096, 5, 4), Status::kOk);
  EXPECT_EQ(next(0).old, 0U);
  ASSERT_EQ(lane(0).compare_swap(window, 4096, 5, 77, 5), Status::kOk);
  EXPECT_EQ(next(0).old, 5U);
  EXPECT_EQ(word(), 77U);
  ASSERT_EQ(lane(0).compare_swap(window, 4096, 5, 78, 5), Status::kOk);
  EXPECT_EQ(next(0).old, 77U);
  EXPECT_EQ(word(), 77U);
}

// A WRITE with an immediate for which there is no credit goes with the WRITE, and its word follows in order.
TEST_F(Meshes, ImmediatesOfWritesKeepTheirOrderWithoutCredit) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  const Window window = window_of_second();
  std::uint32_t posted = 0;
  std::uint32_t expected = 0;
  unsigned ended = 0;
  for (const Deadline deadline = patience(); (expected < 3000 || ended < 3000) && !deadline.passed();) {
    while (posted < 3000) {
      const Bytes bytes = pattern(16, posted);
      const Status status = posted % 3 == 0 ? lane(0).write(window, 16 * (posted % 256), bytes, posted, posted)
                                            : lane(0).send(1, bytes, posted, posted);
      if (status == Status::kAgain) break;
      ASSERT_EQ(status, Status::kOk);
      ++posted;
    }
    std::array<Completion, 8> some;
    for (std::size_t i = 0, count = lane(0).poll(some); i < count; ++i, ++ended) EXPECT_EQ(some[i].status, Status::kOk);
    for (std::size_t i = 0, count = lane(1).poll(some); i < count; ++i) {
      ASSERT_EQ(some[i].immediate, expected) << "out of order";
      EXPECT_EQ(some[i].kind, expected % 3 == 0 ? Kind::kWritten : Kind::kReceive);
      if (some[i].kind == Kind::kReceive) {
        EXPECT_EQ(lane(1).release(some[i]), Status::kOk);
      }
      ++expected;
    }
  }
  EXPECT_EQ(expected, 3000U);
  EXPECT_EQ(ended, 3000U);
}

// The notice of a WRITE waits for credit. Where credit has come, and the lane has not sent it yet, nothing else may go.
TEST_F(Meshes, NothingOvertakesTheNoticeOfAWrite) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  const Window window = window_of_second();
  EXPECT_NE(send_without_credit(), 0u);
  ASSERT_EQ(lane(0).write(window, 0, pattern(8, 1), 1, 5U), Status::kOk);
  for (int i = 0; i < 1000; ++i) {
    lane(1).poll_each(
        [](const Completion& one) { EXPECT_EQ(one.kind, Kind::kReceive) << "the notice cannot be here"; });
    static_cast<LaneOfMesh&>(lane(0)).loop().poll();
    ASSERT_EQ(lane(0).send(1, pattern(8, 2), 2), Status::kAgain);
  }
  EXPECT_EQ(patiently([&] { return lane(0).send(1, pattern(8, 2), 2); }), Status::kOk);
  EXPECT_EQ(next(1).kind, Kind::kWritten);
  EXPECT_EQ(next(1).kind, Kind::kReceive);
}

// A wait ends once what was refused may be repeated, also where only the notice of a WRITE has been ahead of it.
TEST_F(Meshes, AWaitEndsWhenThereIsRoomBehindANotice) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  const Window window = window_of_second();
  const unsigned sent = send_without_credit();
  ASSERT_EQ(lane(0).write(window, 0, pattern(8, 1), 1, 5U), Status::kOk);
  std::array<Completion, 8> some;
  while (lane(0).poll(some, Which::kSends) != 0) {}
  ASSERT_EQ(lane(0).send(1, pattern(8, 2), 2), Status::kAgain);
  Status status = Status::kAgain;
  std::atomic<bool> is_sent = false;
  std::jthread sender([&] {
    for (const Deadline limit = patience(); status == Status::kAgain && !limit.passed();) {
      EXPECT_EQ(lane(0).wait(some, limit, Which::kReceives), 0u);
      status = lane(0).send(1, pattern(8, 2), 2);
    }
    is_sent = true;
  });
  unsigned arrived = 0;
  for (const Deadline limit = patience(); arrived < sent + 2 && !limit.passed();) {
    arrived += static_cast<unsigned>(lane(1).poll_each([](const Completion&) {}));
    if (is_sent) static_cast<LaneOfMesh&>(lane(0)).turn();
  }
  sender.join();
  EXPECT_EQ(status, Status::kOk);
  EXPECT_EQ(arrived, sent + 2);
}

TEST_F(Meshes, PollsForOneKindAlone) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  ASSERT_EQ(lane(0).send(1, pattern(5, 0), 11), Status::kOk);
  ASSERT_EQ(lane(1).send(0, pattern(6, 0), 12), Status::kOk);
  EXPECT_EQ(next(0, 0, Which::kReceives).bytes.size(), 6U);
  EXPECT_EQ(next(0, 0, Which::kSends).cookie, 11U);
  EXPECT_EQ(next(1, 0, Which::kSends).cookie, 12U);
  EXPECT_EQ(next(1, 0, Which::kReceives).bytes.size(), 5U);
}

TEST_F(Meshes, AWaitSleepsUntilSomethingCame) {
  ASSERT_NO_FATAL_FAILURE(start(2, [](Options& options) { options.wait = WaitPolicy::kEvent; }));
  std::array<Completion, 1> one;
  EXPECT_EQ(lane(1).wait(one, Deadline::after(5ms)), 0U);
  Completion sent;
  std::jthread sender([&] {
    EXPECT_EQ(lane(0).send(1, pattern(8, 1), 1), Status::kOk);
    EXPECT_EQ(lane(0).wait(std::span(&sent, 1), patience()), 1U);
  });
  EXPECT_EQ(lane(1).wait(one, patience()), 1U);
  EXPECT_EQ(one[0].bytes.size(), 8U);
  sender.join();
  EXPECT_EQ(sent.kind, Kind::kSend);
}

TEST_F(Meshes, HandlersMayPostAndPoll) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  ASSERT_EQ(lane(0).send(1, pattern(8, 0), 0), Status::kOk);
  unsigned depth = 0, deepest = 0, hops = 0;
  const std::function<void(unsigned, const Completion&)> hear = [&](unsigned id, const Completion& completion) {
    if (completion.kind != Kind::kReceive) return;
    deepest = std::max(deepest, ++depth);
    if (++hops < 100) {
      EXPECT_EQ(patiently([&] { return lane(id).send(1 - id, completion.bytes, hops); }), Status::kOk);
    }
    // What this polls is handled inside, and neither is anything lost nor does it come twice.
    if (depth < 5) lane(id).poll_each([&](const Completion& inner) { hear(id, inner); });
    --depth;
  };
  for (const Deadline deadline = patience(); hops < 100 && !deadline.passed();)
    for (const unsigned id : {0U, 1U}) lane(id).poll_each([&](const Completion& one) { hear(id, one); });
  EXPECT_EQ(hops, 100U);
}

TEST_F(Meshes, GathersFromAllAgainAndAgain) {
  constexpr unsigned kProcesses = 5;
  ASSERT_NO_FATAL_FAILURE(start(kProcesses));
  std::vector<std::jthread> threads;
  for (unsigned id = 0; id < kProcesses; ++id) {
    threads.emplace_back([&, id] {
      for (std::uint64_t round = 0; round < 50; ++round) {
        const std::uint64_t mine = round * 100 + id;
        std::array<std::uint64_t, kProcesses> all{};
        ASSERT_OK(
            lane(id).gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), patience()));
        for (unsigned peer = 0; peer < kProcesses; ++peer) ASSERT_EQ(all[peer], round * 100 + peer);
        ASSERT_OK(lane(id).barrier(patience()));
      }
    });
  }
  threads.clear();
  // One that does not come is named.
  const auto alone = lane(0).barrier(Deadline::after(50ms));
  ASSERT_STATUS(alone, Status::kTimedOut);
  EXPECT_NE(std::string_view(alone.error().text()).find("4 of 4 others: 1, 2, 3, 4"), std::string_view::npos)
      << alone.error().text();
}

// It has made its call, and need not stay until the others have made theirs.
TEST_F(Meshes, AValueThatAProcessGaveBeforeItLeftCounts) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  const std::array<std::uint64_t, 2> given = {11, 22};
  std::array<std::uint64_t, 2> all{};
  const auto gather = [&](unsigned id, Deadline deadline) {
    return lane(id).gather(std::as_bytes(std::span(given).subspan(id, 1)), std::as_writable_bytes(std::span(all)),
                           deadline);
  };
  EXPECT_STATUS(gather(1, Deadline::now()), Status::kTimedOut);
  meshes[1].reset();
  ASSERT_EQ(next(0).kind, Kind::kLeft);
  EXPECT_OK(gather(0, patience()));
  EXPECT_EQ(all, given);
  EXPECT_STATUS(gather(0, patience()), Status::kClosed);
}

// A process tells its windows before it says that it is ready, and many windows may leave no credit for that.
TEST_F(Meshes, AProcessThatComesBackIsReadyHoweverManyWindowsThereAre) {
  constexpr unsigned kDepth = 4;
  ASSERT_NO_FATAL_FAILURE(start(2, [](Options& options) { options.depth = kDepth; }));
  const auto memory = meshes[0]->allocate(4096);
  ASSERT_OK(memory);
  for (unsigned windows = 1; windows <= 4 * kDepth; ++windows) {
    SCOPED_TRACE(windows);
    ASSERT_OK(meshes[0]->publish("w" + std::to_string(windows), *memory));
    meshes[1].reset();
    ASSERT_EQ(next(0).kind, Kind::kLeft);
    Options options = options_for(1, 2);
    options.depth = kDepth;
    Joined joined;
    std::jthread joining([&] { joined = join(options); });
    // All that is told at once is told before the other polls, and the rest as it does.
    EXPECT_EQ(next(0).kind, Kind::kJoined);
    std::jthread polling([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) static_cast<LaneOfMesh&>(lane(0)).turn();
    });
    joining.join();
    polling = {};
    ASSERT_OK(joined);
    meshes[1] = std::move(*joined);
    ASSERT_EQ(next(1).kind, Kind::kJoined);
  }
}

TEST_F(Meshes, WrongCallsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(start(2, [](Options& options) { options.message_bytes = 100; }));
  const Bytes bytes = pattern(101, 0);
  EXPECT_EQ(lane(0).send(2, bytes, 0), Status::kBadArgument);
  EXPECT_NE(std::string_view(error_detail()).find("got 2"), std::string_view::npos) << error_detail();
  EXPECT_EQ(lane(0).send(0, bytes, 0), Status::kBadArgument) << "to itself";
  EXPECT_EQ(lane(0).send(~0U, bytes, 0), Status::kBadArgument);
  EXPECT_EQ(lane(0).send(1, bytes, 0), Status::kTooLong);
  EXPECT_TRUE(lane(0).reserve(7).empty());
  const std::span<std::byte> room = lane(0).reserve(1);
  ASSERT_EQ(room.size(), 100U);
  EXPECT_EQ(lane(0).commit(1, room.subspan(1), 0), Status::kBadArgument);
  EXPECT_EQ(lane(0).cancel(1, room.subspan(8)), Status::kBadArgument);
  EXPECT_EQ(lane(0).cancel(1, room), Status::kOk);
  EXPECT_EQ(lane(0).cancel(1, room), Status::kBadArgument) << "twice";
  EXPECT_EQ(lane(0).commit(1, room, 0), Status::kBadArgument) << "given back";
  EXPECT_EQ(lane(0).release({}), Status::kBadArgument);
  EXPECT_STATUS(lane(0).find(5, "x", Deadline::now()), Status::kBadArgument);
  EXPECT_STATUS(lane(0).find(1, "x", Deadline::now()), Status::kNotFound);
  const auto memory = meshes[1]->allocate(64);
  ASSERT_OK(memory);
  EXPECT_STATUS(meshes[1]->publish("", *memory), Status::kBadArgument);
  EXPECT_STATUS(meshes[1]->publish(std::string(65, 'x'), *memory), Status::kBadArgument);
  Bytes elsewhere(64);
  EXPECT_STATUS(meshes[1]->publish("x", elsewhere), Status::kOutOfRange);
  static Bytes mine(64);  // It stays as long as the mesh.
  ASSERT_OK(meshes[1]->add(mine, rdma::Access::kLocal));
  EXPECT_STATUS(meshes[1]->publish("x", mine), Status::kOutOfRange) << "no right";
  static Bytes readable = pattern(64, 5);
  ASSERT_OK(meshes[1]->add(readable, rdma::Access::kRead));
  ASSERT_OK(meshes[1]->publish("readable", readable));
  const Window to_read = found(0, 1, "readable");
  EXPECT_EQ(lane(0).write(to_read, 0, pattern(8, 1), 0), Status::kRemoteAccess);
  Bytes seen(64);
  ASSERT_EQ(lane(0).read(to_read, 0, seen, 0), Status::kOk);
  EXPECT_EQ(next(0).status, Status::kOk);
  EXPECT_EQ(seen, readable);
  ASSERT_OK(meshes[1]->publish("x", *memory));
  const Window window = found(0, 1, "x");
  Bytes local(64);
  EXPECT_EQ(lane(0).read(window, 1, local, 0), Status::kOutOfRange);
  EXPECT_EQ(lane(0).read(window, ~std::uint64_t{0}, std::span(local).first(2), 0), Status::kOutOfRange);
  EXPECT_EQ(lane(0).read(window, 0, {}, 0), Status::kBadArgument);
  EXPECT_EQ(lane(0).fetch_add(window, 60, 1, 0), Status::kOutOfRange);
  EXPECT_NE(lane(0).fetch_add(window, 4, 1, 0), Status::kOk) << "misaligned";
  EXPECT_STATUS(meshes[0]->allocate(0), Status::kBadArgument);
  Bytes all(9);
  EXPECT_STATUS(lane(0).gather(std::span(local).first(5), all, Deadline::now()), Status::kBadArgument);
  // Nothing of that has hurt the connection.
  EXPECT_EQ(patiently([&] { return lane(0).send(1, pattern(4, 4), 0); }), Status::kOk);
  EXPECT_EQ(copy_of(next(1).bytes), pattern(4, 4));
}

TEST_F(Meshes, OptionsThatCannotWorkAreRefused) {
  const auto refused = [&](auto&& spoil, const char* text) {
    Options options = options_for(0, 1);
    spoil(options);
    const auto joined = join(options);
    EXPECT_STATUS(joined, Status::kBadArgument);
    if (joined) return;
    EXPECT_NE(std::string_view(joined.error().text()).find(text), std::string_view::npos) << joined.error().text();
  };
  refused([](Options& o) { o.processes = 0; }, "processes must be 1 to 16384; got 0");
  refused([](Options& o) { o.processes = kMaxProcesses + 1; }, "processes");
  refused([](Options& o) { o.id = 1; }, "id must be 0 to 0; got 1");
  refused([](Options& o) { o.threads = 0; }, "threads");
  refused([](Options& o) { o.message_bytes = 0; }, "message_bytes");
  refused([](Options& o) { o.message_bytes = kMaxMessageBytes + 1; }, "message_bytes");
  refused([](Options& o) { o.depth = 3; }, "depth must be 4 to 4096; got 3");
  refused([](Options& o) { o.operations = 0; }, "operations");
  refused([](Options& o) { o.reservations = 1025; }, "reservations");
  refused([](Options& o) { o.batch = 0; }, "batch");
  refused([](Options& o) { o.batch = 33; }, "batch");
  refused([](Options& o) { o.operations = 4, o.batch = 5; }, "batch must be 1 to 4; got 5");
  refused([](Options& o) { o.spin = -1us; }, "spin");
  refused([](Options& o) { o.join_timeout = 0ms; }, "join_timeout");
  EXPECT_STATUS(Mesh::join(options_for(0, 1), nullptr), Status::kBadArgument);
  EXPECT_STATUS(directory_carrier(directory.path(), "../x"), Status::kBadArgument);
  EXPECT_STATUS(directory_carrier(directory.path(), ""), Status::kBadArgument);
  EXPECT_STATUS(directory_carrier(directory.path() + "/none", "x"), Status::kNotFound);
  for (const char* entry : {"", "host", "host:", ":1", "host:0", "host:70000", "host:1x", "::1:80", "[]:80"}) {
    const std::array<std::string, 1> hosts{entry};
    EXPECT_STATUS(host_list_carrier(hosts), Status::kBadArgument) << entry;
  }
}

TEST_F(Meshes, BatchesShareDoorbells) {
  constexpr unsigned kBatch = 8;
  ASSERT_NO_FATAL_FAILURE(start(2, [](Options& options) {
    options.batch = kBatch;
    options.depth = 64;
    options.operations = 64;
  }));
  turn();
  const auto before = lane(0).counters();
  for (std::uint64_t i = 0; i < 4 * kBatch; ++i) ASSERT_EQ(lane(0).send(1, pattern(16, i), i), Status::kOk);
  const auto after = lane(0).counters();
  EXPECT_EQ(after.work_requests - before.work_requests, 4 * kBatch);
  EXPECT_EQ(after.doorbells - before.doorbells, 4U);
  ASSERT_EQ(lane(0).send(1, pattern(16, 99), 99), Status::kOk);
  EXPECT_EQ(lane(0).counters().doorbells, after.doorbells) << "it waits for others";
  lane(0).flush(1);
  EXPECT_EQ(lane(0).counters().doorbells, after.doorbells + 1);
  for (std::uint64_t i = 0; i < 4 * kBatch; ++i) {
    const Completion got = next(1);
    EXPECT_EQ(copy_of(got.bytes), pattern(16, i));
    EXPECT_EQ(lane(1).release(got), Status::kOk);
  }
}

// --- who does not fit ---------------------------------------------------------------------------------------------

TEST_F(Meshes, DifferentLimitsAreRefusedByName) {
  struct Case {
    std::function<void(Options&)> change;
    const char* text;
  };
  const std::vector<Case> cases = {
      {[](Options& o) { o.message_bytes = 64; }, "message_bytes ="},
      {[](Options& o) { o.threads = 2; }, "threads ="},
      {[](Options& o) { o.processes = 3; }, "processes ="},
  };
  for (const Case& one : cases) {
    std::vector<Options> options = {options_for(0, 2), options_for(1, 2)};
    one.change(options[1]);
    // Chaos may cut off the one that is refused before it hears why, and then nobody is there any more.
    if (in_chaos()) options[1].join_timeout = 2s;
    const auto joined = join_all(options);
    for (const auto& side : joined) {
      if (in_chaos() && &side != joined.data() && has_status(side, Status::kTimedOut)) continue;
      ASSERT_STATUS(side, Status::kRejected);
      EXPECT_NE(std::string_view(side.error().text()).find(one.text), std::string_view::npos) << side.error().text();
    }
  }
}

TEST_F(Meshes, AProcessOfAnotherJobEndsItsOwnJoinAlone) {
  std::vector<Options> options = {options_for(0, 2), options_for(1, 2), options_for(1, 2)};
  options[1].job = "other";
  Joined stranger, friendly;
  std::jthread first([&] {
    auto joined = join(options[0]);
    ASSERT_OK(joined);
    meshes.push_back(std::move(*joined));
  });
  stranger = join(options[1]);
  ASSERT_STATUS(stranger, Status::kRejected);
  EXPECT_NE(std::string_view(stranger.error().text()).find("another job"), std::string_view::npos)
      << stranger.error().text();
  friendly = join(options[2]);
  EXPECT_OK(friendly);
}

TEST_F(Meshes, WhoIsMissingIsNamed) {
  const auto says = [](const Joined& joined, const char* text) {
    return has_status(joined, Status::kTimedOut) &&
           std::string_view(joined.error().text()).find(text) != std::string_view::npos;
  };
  // Process 2 gives up first; on a busy machine the two need longer to find each other.
  bool found = false;
  for (auto timeout = 200ms; !found && timeout < kPatience; timeout *= 2) {
    std::vector<Options> options = {options_for(0, 4), options_for(2, 4)};
    options[0].join_timeout = 3 * timeout;
    options[1].join_timeout = timeout;
    const auto joined = join_all(options);
    EXPECT_TRUE(says(joined[0], "1, ")) << joined[0].error().text();
    found = says(joined[1], "2 of 3 others are missing: 1, 3");
  }
  EXPECT_TRUE(found);
}

using Lie = std::function<Result<Blob>(unsigned)>;

/// Brings what it was told to, or nothing.
class LyingCarrier final : public Carrier {
 public:
  explicit LyingCarrier(Lie what) : lie(std::move(what)) {}
  Result<void> publish(unsigned, const Blob& blob, Deadline) override {
    mine = blob;
    return {};
  }
  Result<Blob> find(unsigned id) override { return lie(id); }
  Blob mine{};
  Lie lie;
};

TEST_F(Meshes, CarriersThatFailOrLieLeadToANamedPeer) {
  const auto joins = [&](Lie lie) {
    Options options = options_for(1, 2);
    options.join_timeout = 200ms;
    return Mesh::join(options, std::make_unique<LyingCarrier>(std::move(lie)));
  };
  const auto says = [](const Result<std::unique_ptr<Mesh>>& joined, const char* text) {
    ASSERT_STATUS(joined, Status::kTimedOut);
    EXPECT_NE(std::string_view(joined.error().text()).find("others are missing: 0"), std::string_view::npos);
    EXPECT_NE(std::string_view(joined.error().text()).find(text), std::string_view::npos) << joined.error().text();
  };
  says(joins([](unsigned) -> Result<Blob> {
         return std::unexpected(Error(Status::kSystem, "carrier", 0, "the carrier is broken"));
       }),
       "the carrier is broken");
  says(joins([](unsigned) -> Result<Blob> { return Blob{}; }), "no process's blob");
  // Where nobody listens, and where it is the process itself.
  says(joins([](unsigned) -> Result<Blob> {
         return wire::encode({.id = 0, .port = 1, .incarnation = 1, .address = "127.0.0.1"});
       }),
       "nothing listens at 127.0.0.1:1");
  says(joins([](unsigned) -> Result<Blob> {
         return wire::encode({.id = 5, .port = 1, .incarnation = 1, .address = "127.0.0.1"});
       }),
       "process 5 for process 0");
}

// A file of a job before this one may name a port that is this process's own now.
TEST_F(Meshes, AProcessThatDialsItselfLooksForItsPeerAgain) {
  auto carrier = std::make_unique<LyingCarrier>(Lie{});
  LyingCarrier& lying = *carrier;
  std::atomic<int> lies = 0;
  lying.lie = [&](unsigned id) -> Result<Blob> {
    if (++lies <= 2) {
      VERBENA_ASSIGN(wire::Card card, wire::decode(lying.mine));
      card.id = id;
      return wire::encode(card);
    }
    return directory_carrier(directory.path(), "test").value()->find(id);
  };
  Joined other;
  std::jthread first([&] { other = join(options_for(0, 2)); });
  const auto joined = Mesh::join(options_for(1, 2), std::move(carrier));
  first.join();
  EXPECT_OK(joined);
  EXPECT_OK(other);
  EXPECT_GE(lies, 3);
}

TEST_F(Meshes, AListOfHostsIsACarrier) {
  // Ports that were free a moment ago.
  std::vector<std::string> hosts;
  std::vector<Options> options;
  {
    std::vector<std::unique_ptr<link::Listener>> listeners;
    for (unsigned id = 0; id < 3; ++id) {
      listeners.push_back(link::Listener::open({.address = "127.0.0.1"}).value());
      options.push_back(options_for(id, 3));
      options.back().address = "127.0.0.1";
      options.back().port = listeners.back()->port();
      hosts.push_back("127.0.0.1:" + std::to_string(options.back().port));
    }
  }
  std::vector<Joined> joined(3);
  {
    std::vector<std::jthread> threads;
    for (unsigned id = 0; id < 3; ++id)
      threads.emplace_back([&, id] { joined[id] = Mesh::join(options[id], host_list_carrier(hosts).value()); });
  }
  for (const auto& one : joined) EXPECT_OK(one);
  joined.clear();
  options[0].port = 0;
  const auto elsewhere = Mesh::join(options[0], host_list_carrier(hosts).value());
  ASSERT_STATUS(elsewhere, Status::kBadArgument);
}

}  // namespace
}  // namespace verbena::mesh::test
