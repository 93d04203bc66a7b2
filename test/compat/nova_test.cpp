// verbena/compat/nova.hpp: each defect that RDMALib had, and each call with what it refuses.
#include "servers.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>

namespace verbena::test {
namespace {

TEST(Nova, HostsOfAList) {
  const auto hosts = nova::convert_hosts("node-0:11211,,10.0.0.7:1,[fe80::1]:65535,");
  ASSERT_EQ(hosts.size(), 3U);
  EXPECT_EQ(hosts[0].ip, "node-0");
  EXPECT_EQ(hosts[0].port, 11211);
  EXPECT_EQ(hosts[1].server_id, 1U);
  EXPECT_EQ(hosts[2].ip, "fe80::1");
  EXPECT_EQ(hosts[2].port, 65535);
  EXPECT_TRUE(nova::convert_hosts("").empty());
  for (const char* const wrong :
       {"node", ":1", "[]:1", "node:", "node:x", "node:1x", "node:65536", "node:-1", "fe80::1:1"})
    EXPECT_EQ(status_of([&] { (void)nova::convert_hosts(wrong); }), Status::kBadArgument) << wrong;
}

// A batch larger than the ring would never be full.
TEST(Nova, RefusesWhatCannotWorkWhenItIsMade) {
  std::array<char, 64> memory{};
  nova::DummyNovaMsgCallback callback;
  struct Parameters {
    int thread_id = 0;
    std::vector<QPEndPoint> endpoints = endpoints_at("127.0.0.1", {0, 1}, 0);
    std::uint32_t max_num_sends = 8, max_msg_size = 64, batch = 1, id = 0;
    char* mr_buf = nullptr;
    std::uint64_t mr_size = 64, port = kPort;
    nova::NovaMsgCallback* callback = nullptr;
  };
  const auto make = [&](const std::function<void(Parameters&)>& change) {
    Parameters p{.mr_buf = memory.data(), .callback = &callback};
    change(p);
    return status_of([&] {
      const NovaRDMARCStore store(nullptr, p.thread_id, p.endpoints, p.max_num_sends, p.max_msg_size, p.batch, p.id,
                                  p.mr_buf, p.mr_size, p.port, p.callback);
    });
  };
  EXPECT_EQ(make([](Parameters&) {}), Status::kOk);
  EXPECT_EQ(make([](Parameters& p) { p.batch = 8; }), Status::kOk);
  EXPECT_EQ(make([](Parameters& p) { p.endpoints.clear(); }), Status::kOk);
  const std::vector<std::function<void(Parameters&)>> wrong{
      [](Parameters& p) { p.batch = 9; },
      [](Parameters& p) { p.batch = 0; },
      [](Parameters& p) { p.max_num_sends = 0; },
      [](Parameters& p) { p.max_num_sends = 2001; },
      [](Parameters& p) { p.max_msg_size = 0; },
      [](Parameters& p) { p.max_msg_size = mesh::kMaxMessageBytes + 1; },
      [](Parameters& p) { p.thread_id = -1; },
      [](Parameters& p) { p.thread_id = mesh::kMaxThreads; },
      [](Parameters& p) { p.mr_buf = nullptr; },
      [](Parameters& p) { p.mr_size = 0; },
      [](Parameters& p) { p.callback = nullptr; },
      [](Parameters& p) { p.id = 1; },
      [](Parameters& p) { p.endpoints.push_back(p.endpoints[0]); },
      [](Parameters& p) { p.endpoints[0].thread_id = 1; },
      [](Parameters& p) { p.port = 65535; },
      [](Parameters& p) { p.port = 0; },
  };
  for (std::size_t i = 0; i < wrong.size(); ++i) EXPECT_EQ(make(wrong[i]), Status::kBadArgument) << i;
  for (const auto& [id, port] : std::vector<std::pair<int, int>>{{-1, 1}, {0, 0}, {0, 65536}, {1, 65535}, {1 << 30, 1}})
    EXPECT_EQ(status_of([&] { const RdmaCtrl ctrl(id, port); }), Status::kBadArgument) << id << ' ' << port;
}

TEST(Nova, InitComesFirstAndOnce) {
  Server server;
  server.open({3}, 3, {}, own_address(), options_at(own_address()));
  NovaRDMARCStore& store = *server.store;
  EXPECT_EQ(status_of([&] { (void)store.GetSendBuf(0); }), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { (void)store.PollSQ(); }), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { (void)store.PollRQ(); }), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { store.FlushPendingSends(); }), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { (void)store.lane(); }), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { store.Init(nullptr); }), Status::kBadArgument);
  RdmaCtrl other(4, kPort);
  EXPECT_EQ(status_of([&] { store.Init(&other); }), Status::kBadArgument);
  EXPECT_EQ(other.mesh(), nullptr);
  store.Init(server.ctrl.get());
  EXPECT_NE(server.ctrl->mesh(), nullptr);
  EXPECT_EQ(status_of([&] { store.Init(server.ctrl.get()); }), Status::kBadArgument);
  EXPECT_EQ(store.PollSQ() + store.PollRQ(), 0U);
  // Others of the same server: the same thread, one that there is not, and one with other limits.
  const auto with = [&](int thread, std::uint32_t max_num_sends) {
    NovaRDMARCStore another(nullptr, thread, {}, max_num_sends, 256, 1, 3, server.memory.data(), 64, kPort,
                            &server.callback);
    return status_of([&] { another.Init(server.ctrl.get()); });
  };
  EXPECT_EQ(with(0, 8), Status::kBusy);
  EXPECT_EQ(with(1, 8), Status::kBadArgument);
  EXPECT_EQ(with(0, 9), Status::kBadArgument);
}

TEST(Nova, InitNamesWhoIsMissing) {
  Server server;
  mesh::Options options = options_at(own_address());
  options.join_timeout = 100ms;
  server.open({0, 1}, 0, {}, own_address(), options);
  try {
    server.store->Init(server.ctrl.get());
    FAIL() << "there is nobody";
  } catch (const NovaError& error) {
    EXPECT_EQ(error.status(), Status::kTimedOut);
    EXPECT_NE(std::string_view(error.what()).find("1"), std::string_view::npos) << error.what();
  }
}

// In RDMALib it was the first queue pair's.
TEST_F(Servers, AnUnknownServerIsAnError) {
  ASSERT_NO_FATAL_FAILURE(start({0, 1}));
  NovaRDMARCStore& store = *servers[0]->store;
  char* const memory = servers[0]->memory.data();
  for (const int wrong : {0, 2, -1, 1 << 30}) {
    const std::vector<std::function<void()>> calls{
        [&] { (void)store.GetSendBuf(wrong); },
        [&] { store.CancelSendBuf(memory, wrong); },
        [&] { (void)store.PostSend(memory, 8, wrong, 0); },
        [&] { (void)store.PostRead(memory, 8, wrong, 0, 0, true); },
        [&] { (void)store.PostWrite(memory, 8, wrong, 0, true, 0); },
    };
    for (const auto& call : calls) EXPECT_EQ(status_of(call), Status::kBadArgument) << wrong;
    const Status polled = wrong == 0 ? Status::kOk : Status::kBadArgument;
    EXPECT_EQ(status_of([&] { store.FlushPendingSends(wrong); }), polled);
    EXPECT_EQ(status_of([&] { (void)store.PollSQ(wrong); }), polled);
    EXPECT_EQ(status_of([&] { (void)store.PollRQ(wrong); }), polled);
  }
  servers[0]->poll();
  EXPECT_TRUE(events(0).empty());
  try {
    (void)store.GetSendBuf(9);
  } catch (const NovaError& error) {
    EXPECT_EQ(error.server_id(), 9);
    EXPECT_EQ(error.wr_id(), NovaError::kNoRequest);
  }
}

// In RDMALib two calls returned one slot, and a slot was written anew while it was under way.
TEST_F(Servers, ASendBufferIsReserved) {
  ASSERT_NO_FATAL_FAILURE(start({0, 1}));
  NovaRDMARCStore& store = *servers[0]->store;
  std::vector<std::uint64_t> expected;
  const auto send_eight = [&](std::uint64_t first) {
    std::vector<char*> bufs;
    for (std::uint64_t i = 0; i < 8; ++i) {
      bufs.push_back(store.GetSendBuf(1));
      const std::uint64_t number = first + i;
      std::memcpy(bufs.back(), &number, sizeof number);
    }
    EXPECT_EQ(std::set(bufs.begin(), bufs.end()).size(), 8U);
    // Sent in another order than they were reserved; a third goes back instead.
    for (std::uint64_t i = 8; i-- > 0;) {
      if (i % 3 != 0) {
        expected.push_back(first + i);
        (void)store.PostSend(bufs[i], 8, 1, 0);
      } else {
        store.CancelSendBuf(bufs[i], 1);
      }
      EXPECT_EQ(status_of([&] { store.CancelSendBuf(bufs[i], 1); }), Status::kBadArgument) << "it is not reserved";
    }
  };
  while_polling({1}, [&] {
    for (std::uint64_t round = 0; round < 50; ++round) send_eight(8 * round);
    EXPECT_TRUE(until_called_back(0, 1, expected.size()));
  });
  ASSERT_EQ(events(1).size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(events(1)[i].number, expected[i]);
}

TEST_F(Servers, TheCallbackGetsTheCallersBuffer) {
  ASSERT_NO_FATAL_FAILURE(start({0, 1}));
  NovaRDMARCStore& store = *servers[0]->store;
  std::vector<char>& mine = servers[0]->memory;
  std::vector<char>& theirs = servers[1]->memory;
  theirs[100] = 'x';
  mine[8] = 'y';
  std::vector<Event> expected;
  char* const reserved = store.GetSendBuf(1);
  std::memset(reserved, 0, 16);
  expected.push_back({IBV_WC_SEND, store.PostSend(reserved, 16, 1, 7), 1, reserved});
  char* const last = store.GetSendBuf(1);
  std::memset(last, 0, 16);
  expected.push_back({IBV_WC_SEND, store.PostSend(nullptr, 16, 1, 0), 1, last});
  expected.push_back({IBV_WC_SEND, store.PostSend(&mine[8], 8, 1, 0), 1, &mine[8]});
  expected.push_back({IBV_WC_RDMA_READ, store.PostRead(mine.data(), 1, 1, 500, 100, true), 1, &mine[500]});
  expected.push_back({IBV_WC_RDMA_WRITE, store.PostWrite(&mine[8], 1, 1, 200, true, 9), 1, &mine[8]});
  std::set<std::uint64_t> numbers;
  for (const Event& one : expected) numbers.insert(one.wr_id);
  EXPECT_EQ(numbers.size(), expected.size()) << "each operation has a number of its own";
  ASSERT_TRUE(until([&] { return events(0).size() == expected.size() && events(1).size() == 4; }));
  for (const Event& want : expected) {
    const auto found = std::ranges::find(events(0), want.wr_id, &Event::wr_id);
    ASSERT_NE(found, events(0).end());
    EXPECT_EQ(found->type, want.type);
    EXPECT_EQ(found->server, 1);
    EXPECT_EQ(found->buf, want.buf) << want.wr_id;
  }
  EXPECT_EQ(mine[500], 'x');
  EXPECT_EQ(theirs[200], 'y');
  const std::array<std::uint32_t, 4> immediates{7, 0, 0, 9};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(events(1)[i].type, i < 3 ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(events(1)[i].imm, immediates.at(i));
    EXPECT_EQ(events(1)[i].server, 0);
    EXPECT_EQ(events(1)[i].wr_id, i);
  }
  EXPECT_EQ(events(1)[3].buf, &theirs[200]);
}

TEST_F(Servers, ReadsAndWritesByOffsetAndByAddress) {
  ASSERT_NO_FATAL_FAILURE(start({0, 1}));
  NovaRDMARCStore& store = *servers[0]->store;
  std::vector<char>& mine = servers[0]->memory;
  std::vector<char>& theirs = servers[1]->memory;
  const auto address = [&](std::size_t offset) { return reinterpret_cast<std::uintptr_t>(theirs.data()) + offset; };
  const auto done = [&](std::size_t count) { return until([&] { return events(0).size() == count; }); };
  // Longer than any message.
  const std::size_t length = theirs.size() / 2;
  for (std::size_t i = 0; i < length; ++i) mine[i] = static_cast<char>(i * 31 + i / 256);
  (void)store.PostWrite(mine.data(), static_cast<std::uint32_t>(length), 1, address(64), false, 0);
  ASSERT_TRUE(done(1));
  EXPECT_EQ(std::memcmp(theirs.data() + 64, mine.data(), length), 0);
  (void)store.PostRead(mine.data(), 1000, 1, length, 64, true);
  (void)store.PostRead(mine.data(), 1000, 1, length + 1000, address(64), false);
  ASSERT_TRUE(done(3));
  EXPECT_EQ(std::memcmp(mine.data() + length, mine.data(), 1000), 0);
  EXPECT_EQ(std::memcmp(mine.data() + length + 1000, mine.data(), 1000), 0);
  EXPECT_TRUE(events(1).empty()) << "without an immediate nobody hears of it";

  const auto read = [&](std::uint64_t at, bool is_offset, std::uint32_t size = 8) {
    return status_of([&] { (void)store.PostRead(mine.data(), size, 1, 0, at, is_offset); });
  };
  EXPECT_EQ(read(theirs.size() - 7, true), Status::kOutOfRange);
  EXPECT_EQ(read(~std::uint64_t{0}, true), Status::kOutOfRange);
  EXPECT_EQ(read(address(0) - 1, false), Status::kOutOfRange);
  EXPECT_EQ(read(address(theirs.size()), false), Status::kOutOfRange);
  EXPECT_EQ(read(0, true, 0), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { (void)store.PostRead(nullptr, 8, 1, 0, 0, true); }), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { (void)store.PostWrite(nullptr, 8, 1, 0, true, 0); }), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { (void)store.PostWrite(mine.data(), 8, 1, theirs.size(), true, 1); }), Status::kOutOfRange);
  char* const buf = store.GetSendBuf(1);
  EXPECT_EQ(status_of([&] { (void)store.PostWrite(buf, 8, 1, 0, true, 0); }), Status::kBadArgument);
  store.CancelSendBuf(buf, 1);
  EXPECT_EQ(status_of([&] { (void)store.PostSend(nullptr, 8, 1, 0); }), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { (void)store.PostSend(mine.data(), 257, 1, 0); }), Status::kBadArgument);
  servers[0]->poll();
  EXPECT_EQ(events(0).size(), 3U) << "what is refused has no effect";
}

// In RDMALib a callback that posted overran the ring, and spoiled the poll it was called from.
TEST_F(Servers, ACallbackMayPost) {
  ASSERT_NO_FATAL_FAILURE(start({0, 1}, {.max_num_sends = 4}));
  constexpr std::uint64_t kLast = 2000;
  for (const auto& server : servers)
    server->callback.then = [&](const Event& event) {
      if (event.type == IBV_WC_RECV && event.number < kLast) server->send(event.server, event.number + 2);
    };
  // Four balls in the air.
  for (std::uint64_t ball = 0; ball < 4; ++ball) servers[0]->send(1, ball % 2);
  const auto received = [&](std::size_t server) {
    std::vector<std::uint64_t> numbers;
    for (const Event& event : events(server))
      if (event.type == IBV_WC_RECV) numbers.push_back(event.number);
    return numbers;
  };
  const auto is_last = [](const Event& event) { return event.type == IBV_WC_RECV && event.number >= kLast; };
  ASSERT_TRUE(until(
      [&] { return std::ranges::count_if(events(0), is_last) + std::ranges::count_if(events(1), is_last) == 4; }));
  for (const std::size_t server : {0U, 1U}) {
    std::map<std::uint64_t, int> counts;
    for (const std::uint64_t number : received(server)) ++counts[number];
    for (const auto& [number, count] : counts) EXPECT_EQ(count, 2) << number;
    EXPECT_GE(counts.size(), kLast / 2 - 1);
  }
}

// Many more posts from callbacks than a ring has room for, to a server whose callbacks post as many back.
TEST_F(Servers, CallbacksThatAnswerEachOtherAreNotStuck) {
  ASSERT_NO_FATAL_FAILURE(start({0, 1}, {.max_num_sends = 4}));
  constexpr std::uint64_t kIsAnswer = std::uint64_t{1} << 63;
  constexpr std::size_t kRequests = 500;
  std::vector<std::jthread> threads;
  std::array<Status, 2> statuses{};
  std::atomic<unsigned> finished{0};
  for (const std::size_t self : {0U, 1U}) {
    Server& server = *servers[self];
    server.callback.then = [&](const Event& event) {
      if (event.type == IBV_WC_RECV && (event.number & kIsAnswer) == 0)
        server.send(event.server, event.number | kIsAnswer);
    };
    threads.emplace_back([&, self] {
      statuses.at(self) = status_of([&] {
        const auto answers = [&] {
          return static_cast<std::size_t>(std::ranges::count_if(server.callback.events, [](const Event& event) {
            return event.type == IBV_WC_RECV && (event.number & kIsAnswer) != 0;
          }));
        };
        std::size_t sent = 0;
        for (const auto deadline = Deadline::after(kNovaPatience); answers() < kRequests && !deadline.passed();) {
          // As many requests as RDMALib allowed to be without an answer.
          for (; sent < kRequests && sent < answers() + 4; ++sent) server.send(1 - static_cast<int>(self), sent);
          (void)server.store->PollRQ();
        }
        EXPECT_EQ(answers(), kRequests);
        ++finished;
        for (const auto deadline = Deadline::after(kNovaPatience); finished != 2 && !deadline.passed();) server.poll();
      });
    });
  }
  threads.clear();
  for (const Status status : statuses) EXPECT_EQ(status, Status::kOk);
}

TEST_F(Servers, ACallbackMayPollAndThrow) {
  ASSERT_NO_FATAL_FAILURE(start({0, 1}));
  for (std::uint64_t number = 0; number < 8; ++number) servers[0]->send(1, number);
  unsigned depth = 0, deepest = 0;
  Server& server = *servers[1];
  server.callback.then = [&](const Event& event) {
    deepest = std::max(deepest, ++depth);
    if (event.number % 2 == 0) (void)server.store->PollRQ();
    --depth;
    if (event.number == 5) throw std::runtime_error("no fives");
  };
  bool has_thrown = false;
  const auto poll = [&] {
    try {
      (void)server.store->PollRQ();
    } catch (const std::runtime_error&) {
      EXPECT_FALSE(std::exchange(has_thrown, true));
      depth = 0;
    }
    servers[0]->poll();
    return events(1).size() == 8;
  };
  const auto deadline = Deadline::after(kNovaPatience);
  while (!poll() && !deadline.passed()) {}
  EXPECT_TRUE(has_thrown);
  ASSERT_EQ(events(1).size(), 8U) << "the completions behind it come with the next poll";
  for (std::uint64_t number = 0; number < 8; ++number) EXPECT_EQ(events(1)[number].number, number);
  // Each message's memory is back: all credit is there.
  server.callback.then = {};
  while_polling({1}, [&] {
    for (std::uint64_t number = 8; number < 100; ++number) servers[0]->send(1, number);
    EXPECT_TRUE(until_called_back(0, 1, 100));
  });
}

// In RDMALib a sender that was faster than its receiver made the NIC repeat for ever.
TEST_F(Servers, CreditHoldsASenderBack) {
  constexpr std::uint64_t kMessages = 300;
  constexpr std::uint64_t kCredit = 16;  // Twice max_num_sends, and the few that a channel has for itself.
  constexpr std::uint64_t kMost = kCredit + 4;
  ASSERT_NO_FATAL_FAILURE(start({0, 1}));
  std::atomic<std::uint64_t> posted{0};
  Status status = Status::kAgain;
  std::jthread sender([&] {
    status = status_of([&] {
      for (; posted < kMessages; ++posted) servers[0]->send(1, posted);
      for (const auto deadline = Deadline::after(kNovaPatience); events(0).size() < kMessages && !deadline.passed();)
        (void)servers[0]->store->PollSQ();
    });
  });
  // It goes on for as long as there is credit, and no further.
  for (const auto deadline = Deadline::after(kNovaPatience); posted < kCredit && !deadline.passed();)
    std::this_thread::yield();
  EXPECT_GE(posted, kCredit);
  for (const auto deadline = Deadline::after(kNovaPatience); events(1).size() < kMessages && !deadline.passed();) {
    EXPECT_LE(posted, events(1).size() + kMost);
    (void)servers[1]->store->PollRQ(0);
  }
  sender.join();
  EXPECT_EQ(status, Status::kOk);
  ASSERT_EQ(events(1).size(), kMessages);
  for (std::uint64_t number = 0; number < kMessages; ++number) EXPECT_EQ(events(1)[number].number, number);
}

TEST_F(Servers, AWaitHasADeadline) {
  // One that suffices for Init is longer than a sender without credit has to be shown to wait.
  std::chrono::milliseconds timeout = 500ms;
  for (bool has_started = false; !has_started && timeout < kNovaPatience; timeout *= 2) {
    servers.clear();
    const std::string address = own_address();
    mesh::Options mesh = options_at(address);
    mesh.join_timeout = timeout;
    for (const std::uint32_t id : {0U, 1U})
      servers.emplace_back(std::make_unique<Server>())->open({0, 1}, id, {}, address, mesh);
    Status other = Status::kAgain, own = Status::kAgain;
    std::jthread thread([&] { other = status_of([&] { servers[1]->store->Init(servers[1]->ctrl.get()); }); });
    own = status_of([&] { servers[0]->store->Init(servers[0]->ctrl.get()); });
    thread.join();
    has_started = own == Status::kOk && other == Status::kOk;
  }
  // Nobody takes them.
  std::uint64_t sent = 0;
  const Status status = status_of([&] {
    for (; sent < 1000; ++sent) servers[0]->send(1, sent);
  });
  EXPECT_EQ(status, Status::kTimedOut);
  EXPECT_GE(sent, 16U);
  EXPECT_LE(sent, 20U);
  const std::size_t before = events(1).size();
  ASSERT_TRUE(until([&] { return events(1).size() == before + sent; })) << "it goes on";
}

TEST_F(Servers, PostsAreHeldBackInBatches) {
  ASSERT_NO_FATAL_FAILURE(start({0, 1, 2}, {.max_num_sends = 40, .doorbell_batch_size = 40}));
  NovaRDMARCStore& store = *servers[0]->store;
  for (const int server : {1, 2}) {
    char* const buf = store.GetSendBuf(server);
    std::memset(buf, 0, 16);
    (void)store.PostSend(buf, 8, server, 1);
  }
  store.FlushPendingSends(1);
  store.FlushPendingSends(0);
  ASSERT_TRUE(until([&] { return !events(1).empty(); }));
  store.FlushPendingSends();
  ASSERT_TRUE(until([&] { return !events(2).empty(); }));
  while_polling({1, 2}, [&] {
    for (std::uint64_t number = 0; number < 400; ++number)
      for (const int server : {1, 2}) servers[0]->send(server, number);
    for (const std::size_t server : {1U, 2U}) EXPECT_TRUE(until_called_back(0, server, 401));
  });
}

// What others have sent waits for the poll of theirs, in its order.
TEST_F(Servers, PollsOfOneServer) {
  ASSERT_NO_FATAL_FAILURE(start({5, 70'000 % 60'000, 30'000}));
  const std::array<int, 3> ids{5, 10'000, 30'000};
  NovaRDMARCStore& store = *servers[0]->store;
  for (std::uint64_t number = 0; number < 8; ++number)
    for (const std::size_t from : {1U, 2U}) servers[from]->send(5, 100 * from + number);
  for (const auto deadline = Deadline::after(kNovaPatience); events(0).size() < 8 && !deadline.passed();) {
    for (const std::size_t from : {1U, 2U}) servers[from]->poll();
    (void)store.PollRQ(ids[2]);
  }
  ASSERT_EQ(events(0).size(), 8U);
  for (std::uint64_t number = 0; number < 8; ++number) {
    EXPECT_EQ(events(0)[number].server, ids[2]);
    EXPECT_EQ(events(0)[number].number, 200 + number);
  }
  EXPECT_EQ(store.PollRQ(ids[2]), 0U);
  ASSERT_TRUE(until([&] { return events(0).size() == 16; }));
  for (std::uint64_t number = 0; number < 8; ++number) {
    EXPECT_EQ(events(0)[8 + number].server, ids[1]);
    EXPECT_EQ(events(0)[8 + number].number, 100 + number);
  }
  ASSERT_TRUE(until([&] { return events(1).size() == 8; }));
  events(1).clear();
  servers[1]->send(ids[0], 1);
  servers[1]->send(ids[2], 2);
  for (const auto deadline = Deadline::after(kNovaPatience); events(1).empty() && !deadline.passed();)
    (void)servers[1]->store->PollSQ(ids[2]);
  ASSERT_EQ(events(1).size(), 1U);
  EXPECT_EQ(events(1)[0].server, ids[2]);
  ASSERT_TRUE(until([&] { return events(1).size() == 2; }));
  EXPECT_EQ(events(1)[1].server, ids[0]);
}

TEST_F(Servers, OneThatLeavesInOrderIsNoError) {
  ASSERT_NO_FATAL_FAILURE(start({0, 1, 2}));
  servers[1]->send(0, 77);
  ASSERT_TRUE(until([&] { return events(0).size() == 1; }));
  NovaRDMARCStore& store = *servers[0]->store;
  std::atomic<bool> is_gone{false};
  std::jthread ending([&] {
    servers[1]->store.reset();
    servers[1]->ctrl.reset();
    is_gone = true;
  });
  Status status = Status::kOk;
  for (const auto deadline = Deadline::after(kNovaPatience);
       (!is_gone || status == Status::kOk) && !deadline.passed();) {
    EXPECT_EQ(store.PollRQ() + servers[2]->store->PollRQ(), 0U);
    status = store.lane().is_here(1) ? Status::kOk : status_of([&] { (void)store.GetSendBuf(1); });
  }
  EXPECT_TRUE(status == Status::kClosed || status == Status::kPeerLost) << to_string(status);
  EXPECT_EQ(status_of([&] { (void)store.PostSend(servers[0]->memory.data(), 8, 1, 0); }), Status::kClosed);
  ending.join();
  servers.erase(servers.begin() + 1);
  servers[0]->send(2, 78);
  ASSERT_TRUE(until([&] { return !events(1).empty(); }));
}

// Thread i of a server reaches thread i of others.
TEST(NovaThreads, StoresOfOneServerShareItsMesh) {
  const std::string address = own_address();
  constexpr unsigned kThreads = 3;
  std::array<std::vector<char>, 2> memories{std::vector<char>(4096), std::vector<char>(4096)};
  std::vector<std::unique_ptr<RdmaCtrl>> ctrls;
  for (const int id : {0, 1}) {
    mesh::Options options = options_at(address);
    options.threads = kThreads;
    ctrls.push_back(std::make_unique<RdmaCtrl>(id, kPort, options));
  }
  std::array<std::array<Status, kThreads>, 2> statuses{};
  std::array<std::array<Recorder, kThreads>, 2> callbacks;
  std::atomic<unsigned> finished{0};
  std::vector<std::jthread> threads;
  for (const unsigned id : {0U, 1U})
    for (unsigned thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([&, id, thread] {
        Recorder& callback = callbacks.at(id).at(thread);
        statuses.at(id).at(thread) = status_of([&] {
          NovaRDMARCStore store(nullptr, static_cast<int>(thread), endpoints_at(address, {0, 1}, id, thread), 8, 64, 1,
                                id, memories.at(id).data(), 4096, kPort, &callback);
          store.Init(ctrls[id].get());
          EXPECT_EQ(store.thread_id(), thread);
          const std::uint64_t number = 10 * id + thread;
          (void)store.PostSend(reinterpret_cast<const char*>(&number), sizeof number, 1 - static_cast<int>(id), 0);
          char* const place = memories.at(id).data() + 2048 + 8 * thread;
          std::memcpy(place, &number, sizeof number);
          (void)store.PostWrite(place, 8, 1 - static_cast<int>(id), 8 * thread, true, 1);
          const auto is_done = [&] { return callback.events.size() == 4; };
          for (const auto deadline = Deadline::after(kNovaPatience); !is_done() && !deadline.passed();) {
            (void)store.PollSQ();
            (void)store.PollRQ();
          }
          EXPECT_TRUE(is_done());
          ++finished;
          for (const auto deadline = Deadline::after(kNovaPatience); finished != 2 * kThreads && !deadline.passed();)
            (void)store.PollRQ();
        });
      });
  threads.clear();
  for (const unsigned id : {0U, 1U})
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      ASSERT_EQ(statuses.at(id).at(thread), Status::kOk);
      const std::uint64_t expected = 10 * (1 - id) + thread;
      std::uint64_t written = 0;
      std::memcpy(&written, memories.at(id).data() + 8 * thread, sizeof written);
      EXPECT_EQ(written, expected);
      const auto& events = callbacks.at(id).at(thread).events;
      const auto message = std::ranges::find(events, IBV_WC_RECV, &Event::type);
      ASSERT_NE(message, events.end());
      EXPECT_EQ(message->number, expected);
    }
}

}  // namespace
}  // namespace verbena::test
