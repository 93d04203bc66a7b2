// The C++ API, as its users call it: registered memory, windows, atomics, what is started, physical addresses.
#include "fixture.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

namespace verbena::rdma {
namespace {

class RdmaCxxMemory : public RdmaCxx {
 protected:
  void SetUp() override {
    start();
    client = connect();
    peer = accept();
    ASSERT_TRUE(client && peer);
  }
  [[nodiscard]] static Memory allocate(Connection& connection, std::size_t bytes, std::uint64_t seed) {
    auto memory = connection.allocate(bytes);
    EXPECT_OK(memory);
    if (!memory) return {};
    fill(memory->bytes(), seed);
    return std::move(*memory);
  }
  [[nodiscard]] static bool equal(const Memory& a, const Memory& b) { return std::ranges::equal(a.bytes(), b.bytes()); }

  ConnectionPtr client;
  ConnectionPtr peer;
};

// --- blocking

TEST_F(RdmaCxxMemory, RegisteredMemoryIsWrittenAndRead) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{8}, std::size_t{4097}, std::size_t{3'000'001}}) {
    const Memory mine = allocate(*client, size, 1);
    const Memory theirs = allocate(*peer, size, 2);
    ASSERT_EQ(client->write(mine.at(), theirs.window().at()), Status::kOk);
    EXPECT_TRUE(equal(mine, theirs));
    fill(theirs.bytes(), 3);
    ASSERT_EQ(client->read(mine.at(), theirs.window().at(), patience()), Status::kOk);
    EXPECT_TRUE(equal(mine, theirs));
    // The server's side, whose thread does it.
    fill(theirs.bytes(), 4);
    ASSERT_OK(peer->import(mine.window()));
    ASSERT_EQ(peer->write(theirs.at(), mine.window().at()), Status::kOk);
    EXPECT_TRUE(equal(mine, theirs));
    EXPECT_OK(peer->release(mine.window()));
  }
}

TEST_F(RdmaCxxMemory, AnyMemoryReachesEveryWindow) {
  const Memory theirs = allocate(*peer, 1'000'000, 1);
  const Bytes bytes = pattern(300'000, 2);
  ASSERT_EQ(client->write(bytes, theirs.window().at(5, bytes.size())), Status::kOk);
  EXPECT_TRUE(std::ranges::equal(bytes, theirs.bytes().subspan(5, bytes.size())));
  Bytes back(bytes.size());
  ASSERT_EQ(client->read(back, theirs.window().at(5, bytes.size())), Status::kOk);
  EXPECT_EQ(back, bytes);
}

TEST_F(RdmaCxxMemory, MemoryOfTheUsersOwnHasItsRights) {
  Bytes own = pattern(100'000, 1);
  Bytes there(own.size());
  auto mine = client->register_memory(own);
  ASSERT_OK(mine);
  auto theirs = peer->register_memory(there, Access::kRead | Access::kWrite);
  ASSERT_OK(theirs);
  ASSERT_EQ(client->write(mine->at(), theirs->window().at()), Status::kOk);
  EXPECT_EQ(there, own);
  EXPECT_OK(theirs->deregister());
  EXPECT_FALSE(*theirs);
  theirs = peer->register_memory(there, Access::kRead);
  ASSERT_OK(theirs);
  EXPECT_EQ(client->write(mine->at(), theirs->window().at()), Status::kRemoteAccess);
  EXPECT_EQ(client->read(mine->at(), theirs->window().at()), Status::kOk);
  EXPECT_TRUE(client->is_connected());
}

TEST_F(RdmaCxxMemory, PartsThatAreNotInsideAreRefused) {
  const Memory mine = allocate(*client, 4096, 1);
  const Memory theirs = allocate(*peer, 4096, 2);
  const Window& window = theirs.window();
  EXPECT_EQ(mine.at(4096).size(), 0u);
  EXPECT_EQ(mine.at(4097).size(), 0u);
  EXPECT_EQ(mine.at(1, 4096).size(), 0u);
  EXPECT_EQ(mine.at(1).at(4095, 0).size(), 0u);
  EXPECT_EQ(mine.at(16).at(16, 8).bytes().data(), mine.bytes().data() + 32);
  EXPECT_EQ(window.at(4097).length, 0u);
  EXPECT_EQ(window.at(~std::uint64_t{0}).length, 0u);
  EXPECT_EQ(client->read(mine.at(0, 8), window.at(4097)), Status::kBadArgument);
  EXPECT_EQ(client->read(mine.at(4097), window.at(0, 8)), Status::kBadArgument);
  EXPECT_EQ(client->write(mine.at(0, 8), window.at(0, 7)), Status::kBadArgument);
  EXPECT_EQ(client->write(mine.at(4096), window.at()), Status::kBadArgument);
  ASSERT_EQ(client->read(mine.at(0, 8), window.at(0, 8)), Status::kOk);
  // What no Window says.
  EXPECT_EQ(client->read(mine.at(), Remote{window.address + 1, 4096, window.rkey}), Status::kOutOfRange);
  EXPECT_EQ(client->read(mine.at(), Remote{window.address - 1, 8, window.rkey}), Status::kOutOfRange);
  EXPECT_EQ(client->read(mine.at(), Remote{window.address, 8, window.rkey + 77}), Status::kNotFound);
  Memory gone = allocate(*client, 64, 1);
  const Local part = gone.at();
  EXPECT_OK(gone.deregister());
  EXPECT_EQ(client->read(part, window.at(0, 8)), Status::kLocalAccess);
  EXPECT_EQ(client->start_read(part, window.at(0, 8), 1), Status::kLocalAccess);
  EXPECT_EQ(client->read(Local(), window.at(0, 8)), Status::kBadArgument);
  EXPECT_EQ(client->read(mine.at(0, 8), window.at(4088)), Status::kOk);
  EXPECT_EQ(client->failure(), Status::kOk);
}

TEST_F(RdmaCxxMemory, MemoryOutlivesItsConnectionAsAShell) {
  Memory mine = allocate(*client, 4096, 1);
  Memory listeners;
  {
    auto made = server->allocate(4096);
    ASSERT_OK(made);
    listeners = std::move(*made);
  }
  client.reset();
  EXPECT_OK(mine.deregister());
  server->stop();
  EXPECT_STATUS(server->allocate(64), Status::kClosed);
}

TEST_F(RdmaCxx, MemoryOutlivesAConnectionOfTheListenersAsAShell) {
  Calls calls;
  Memory memory;
  calls.accepted = [&](Connection& connection) {
    auto made = connection.allocate(4096);
    ASSERT_OK(made);
    memory = std::move(*made);
  };
  start(&calls);
  connect().reset();
  EXPECT_EQ(calls.ended.take(), Status::kClosed);
  server->stop();
  EXPECT_OK(memory.deregister());
}

// --- windows

TEST_F(RdmaCxxMemory, NamedWindowsAreFoundFromBothSides) {
  auto made = server->allocate(4096);
  ASSERT_OK(made);
  const Memory all = std::move(*made);
  fill(all.bytes(), 7);
  ASSERT_OK(server->publish("all", all));
  EXPECT_STATUS(server->publish("all", all), Status::kBusy);
  EXPECT_STATUS(server->publish("", all), Status::kBadArgument);
  EXPECT_STATUS(server->publish("none", Memory()), Status::kBadArgument);
  const auto found = client->find("all");
  ASSERT_OK(found);
  EXPECT_EQ(found->length, all.bytes().size());
  EXPECT_TRUE(includes(found->access, Access::kRead | Access::kWrite));
  Bytes back(found->length);
  ASSERT_EQ(client->read(back, found->at()), Status::kOk);
  EXPECT_TRUE(std::ranges::equal(back, all.bytes()));
  EXPECT_OK(server->unpublish("all"));
  EXPECT_STATUS(server->unpublish("all"), Status::kNotFound);
  EXPECT_STATUS(client->find("all", Deadline::after(std::chrono::milliseconds{30})), Status::kNotFound);

  // Published while it is waited for, by a client that drives its connection meanwhile.
  const Memory mine = allocate(*client, 64, 9);
  std::atomic<bool> is_found{false};
  std::thread finder([&] {
    const auto window = peer->find("mine");
    EXPECT_OK(window);
    EXPECT_EQ(window ? window->address : 0, mine.window().address);
    is_found = true;
  });
  ASSERT_OK(client->publish("mine", mine));
  Bytes byte(1);
  while (!is_found)
    EXPECT_EQ(client->receive(byte, Deadline::after(std::chrono::milliseconds{1})).error(), Status::kTimedOut);
  finder.join();
  EXPECT_OK(client->unpublish("mine"));
}

TEST_F(RdmaCxxMemory, TheWindowIsRegisteredMemoryToo) {
  const Local mine = client->window_memory();
  EXPECT_EQ(mine.bytes().data(), client->window().data());
  const Window theirs = client->peer_window();
  fill(mine.at(0, 100).bytes(), 3);
  ASSERT_EQ(client->write(mine.at(0, 100), theirs.at(200, 100)), Status::kOk);
  EXPECT_TRUE(std::ranges::equal(mine.at(0, 100).bytes(), peer->window().subspan(200, 100)));
}

TEST_F(RdmaCxx, AnEmptyWindowOfTheUsersOwnIsNone) {
  start();
  alignas(64) static std::array<std::byte, 64> own{};
  options.window = std::span(own).first(0);
  options.window_bytes = own.size();
  const ConnectionPtr client = connect();
  EXPECT_EQ(client->window().size(), own.size());
  EXPECT_NE(client->window().data(), own.data());
}

TEST_F(RdmaCxx, AWindowOfTheUsersOwn) {
  alignas(64) static std::array<std::byte, 4096> own{};
  options.window = own;
  start();
  options.window = {};
  const ConnectionPtr client = connect();
  const ConnectionPtr other = connect();
  EXPECT_EQ(client->peer_window().length, own.size());
  const Bytes bytes = pattern(64, 5);
  ASSERT_EQ(client->write(bytes, 64), Status::kOk);
  EXPECT_TRUE(std::ranges::equal(bytes, std::span(own).subspan(64, 64)));
  Bytes back(64);
  ASSERT_EQ(other->read(back, 64), Status::kOk);
  EXPECT_EQ(back, bytes);
}

// --- atomics

TEST_F(RdmaCxxMemory, AtomicsReturnWhatWasThere) {
  const Memory theirs = allocate(*peer, 64, 1);
  std::ranges::fill(theirs.bytes(), std::byte{0});
  const Remote word = theirs.window().at(8, 8);
  EXPECT_EQ(client->fetch_add(word, 5), 0u);
  EXPECT_EQ(client->fetch_add(word, 5, patience()), 5u);
  EXPECT_EQ(client->compare_swap(word, 10, 77), 10u);
  EXPECT_EQ(client->compare_swap(word, 10, 78), 77u);
  std::uint64_t now = 0;
  std::memcpy(&now, theirs.bytes().data() + 8, sizeof now);
  EXPECT_EQ(now, 77u);
  EXPECT_EQ(client->fetch_add(theirs.window().at(4, 8), 1).error(), Status::kBadArgument);
  EXPECT_EQ(client->fetch_add(theirs.window().at(8, 16), 1).error(), Status::kBadArgument);
  EXPECT_EQ(client->fetch_add(theirs.window().at(64), 1).error(), Status::kBadArgument);
  EXPECT_EQ(client->fetch_add(client->peer_window().at(0, 8), 1), 0u);
}

// --- without waiting

TEST_F(RdmaCxxMemory, WhatIsStartedCompletesWithItsCookie) {
  constexpr std::size_t kEach = 512;
  const Memory mine = allocate(*client, Connection::kMaxStarted * kEach, 1);
  const Memory theirs = allocate(*peer, mine.bytes().size(), 2);
  EXPECT_EQ(client->complete().error(), Status::kNotFound);
  const auto part = [&](std::size_t i) { return mine.at(i * kEach, kEach); };
  const auto there = [&](std::size_t i) { return theirs.window().at(i * kEach, kEach); };
  for (std::size_t i = 0; i < Connection::kMaxStarted; ++i)
    ASSERT_EQ(client->start_write(part(i), there(i), 1000 + i), Status::kOk);
  EXPECT_EQ(client->start_write(part(0), there(0), 1), Status::kAgain);
  for (std::size_t i = 0; i < Connection::kMaxStarted; ++i) {
    const auto completion = client->complete();
    ASSERT_TRUE(completion.has_value());
    EXPECT_EQ(completion->cookie, 1000 + i);
    EXPECT_EQ(completion->operation, Completion::Operation::kWrite);
    EXPECT_EQ(completion->status, Status::kOk);
  }
  EXPECT_TRUE(equal(mine, theirs));
  fill(theirs.bytes(), 3);
  for (std::size_t i = 0; i < 8; ++i) ASSERT_EQ(client->start_read(part(i), there(i), i), Status::kOk);
  std::array<Completion, 16> completions;
  const Deadline limit = patience();
  std::size_t count = 0;
  while (count < 8 && !limit.passed()) count += client->poll(std::span(completions).subspan(count));
  ASSERT_EQ(count, 8u);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(completions[i].cookie, i);
  EXPECT_TRUE(std::ranges::equal(mine.bytes().first(8 * kEach), theirs.bytes().first(8 * kEach)));
}

TEST_F(RdmaCxxMemory, AServersThreadStartsToo) {
  const Memory mine = allocate(*peer, 64, 1);
  ASSERT_EQ(peer->start_write(mine.at(), peer->peer_window().at(0, 64), 5), Status::kOk);
  EXPECT_EQ(peer->complete()->cookie, 5u);
  EXPECT_TRUE(std::ranges::equal(mine.bytes(), client->window().first(64)));
}

// Handlers post from their completions, and close at the end.
TEST_F(RdmaCxx, CompletionsGoToAHandlerThatPostsAndCloses) {
  start();
  struct Chain final : Handler {
    void on_complete(Connection& connection, const Completion& completion) noexcept override {
      EXPECT_EQ(completion.status, Status::kOk);
      cookies.put(completion.cookie);
      if (completion.cookie == 9) return connection.close();
      EXPECT_EQ(connection.start_read(connection.window_memory().at(0, 64), connection.peer_window().at(0, 64),
                                      completion.cookie + 1),
                Status::kOk);
    }
    Mailbox<std::uint64_t> cookies;
  } chain;
  options.handler = &chain;
  options.complete = Complete::kHandler;
  const ConnectionPtr client = connect();
  const ConnectionPtr peer = accept();
  ASSERT_EQ(client->start_write(client->window_memory().at(0, 64), client->peer_window().at(0, 64), 0), Status::kOk);
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_EQ(chain.cookies.take(), i);
  Bytes byte(1);
  EXPECT_EQ(peer->receive(byte).error(), Status::kClosed);
}

TEST_F(RdmaCxxMemory, TheEndCompletesWhatIsStarted) {
  const Memory mine = allocate(*client, 64, 1);
  // The client hears of it while it waits.
  std::thread stopper([&] { server->stop(); });
  Bytes byte(1);
  EXPECT_EQ(client->receive(byte).error(), Status::kClosed);
  stopper.join();
  EXPECT_EQ(client->start_read(mine.at(), client->peer_window().at(0, 64), 1), Status::kClosed);
  EXPECT_EQ(client->read(mine.at(), client->peer_window().at(0, 64)), Status::kClosed);
  EXPECT_EQ(client->fetch_add(client->peer_window().at(0, 8), 1).error(), Status::kClosed);
  EXPECT_STATUS(client->find("x"), Status::kClosed);
  client->close();
  EXPECT_EQ(client->read(mine.at(), Remote{1, 8, 1}), Status::kClosed);
  EXPECT_EQ(client->send(byte), Status::kClosed);
  EXPECT_STATUS(client->allocate(64), Status::kClosed);
  EXPECT_STATUS(client->import(Window{}), Status::kClosed);
  EXPECT_TRUE(client->window().empty());
}

// --- physical addresses

TEST_F(RdmaCxxMemory, PhysicalAddressesReachWhatWasExportedAndNoMore) {
  const Memory theirs = allocate(*peer, 3 * 4096, 1);
  const auto exported = peer->export_physical(theirs);
  if (!exported && exported.error().status() == Status::kPermission) GTEST_SKIP() << exported.error().text();
  ASSERT_OK(exported);
  const auto first = peer->physical_address_of(theirs.bytes().data());
  ASSERT_OK(first);
  EXPECT_EQ(*first, *exported);
  // The table comes before what is sent after it.
  Bytes byte(1);
  ASSERT_EQ(peer->send(byte), Status::kOk);
  ASSERT_TRUE(client->receive(byte).has_value());
  const Memory mine = allocate(*client, 64, 5);
  const Physical at{*exported + 64};
  ASSERT_EQ(client->write(mine.at(), at), Status::kOk);
  EXPECT_TRUE(std::ranges::equal(mine.bytes(), theirs.bytes().subspan(64, 64)));
  Bytes back(64);
  ASSERT_EQ(client->read(back, at), Status::kOk);
  EXPECT_TRUE(std::ranges::equal(mine.bytes(), back));
  fill(back, 6);
  ASSERT_EQ(client->write(back, at), Status::kOk);
  ASSERT_EQ(client->read(mine.at(), at), Status::kOk);
  EXPECT_TRUE(std::ranges::equal(mine.bytes(), back));
  std::ranges::fill(theirs.bytes().first(8), std::byte{0});
  EXPECT_EQ(client->fetch_add(Physical{*exported}, 3), 0u);
  EXPECT_EQ(client->compare_swap(Physical{*exported}, 3, 9), 3u);
  ASSERT_EQ(client->start_write(mine.at(), at, 1), Status::kOk);
  ASSERT_EQ(client->start_read(mine.at(), at, 2), Status::kOk);
  EXPECT_EQ(client->complete()->cookie, 1u);
  EXPECT_EQ(client->complete()->cookie, 2u);
  // Before the page that no other of its pages is before.
  std::uint64_t lowest = *exported;
  for (std::size_t page = 1; page < 3; ++page) {
    const auto address = peer->physical_address_of(theirs.bytes().data() + page * 4096);
    ASSERT_OK(address);
    lowest = std::min(lowest, *address);
  }
  EXPECT_EQ(client->read(back, Physical{lowest - 1}), Status::kOutOfRange);
  EXPECT_EQ(client->read(mine.at(), Physical{1}), Status::kOutOfRange);
  EXPECT_TRUE(client->is_connected());
}

}  // namespace
}  // namespace verbena::rdma
