// Physical addressing between two NICs: splitting, refusals here and by the NIC, many runs, limits, privileges. The
// frames behind the pages are the test's own where they matter: to a NIC they are names.
#include "../channel/fixture.hpp"
#include "../host/child.hpp"
#include "session/physical_export.hpp"
#include "session/physical_peer.hpp"

#include <capability.hpp>
#include <page_map.hpp>
#include <process.hpp>

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace verbena::session {
namespace {

using namespace verbena::test;
using channel::Connection;
using channel::LocalSpan;
using channel::Patience;
using channel::RemoteSpan;
using channel::test::Side;

constexpr std::uint32_t kRights = PhysicalTable::kRights;
constexpr int kLocalOnly = IBV_ACCESS_LOCAL_WRITE;
constexpr std::size_t kPage = 4096;

/// Page of the exported memory -> frame: 0x100 to 0x102 follow one another in physical memory, in two runs.
constexpr std::uint64_t kFrames[] = {0x100, 0x101, 0x50, 0x102, 0x300};
constexpr std::size_t kPages = std::size(kFrames);

/// A table arrives, in two pieces, as tables come.
void arrive(const PhysicalTable& table, PhysicalPeer& peer) {
  const std::vector<std::byte> bytes = table.encode();
  const std::size_t first = bytes.size() / 2;
  for (const std::size_t at : {std::size_t{0}, first}) {
    const std::size_t end = at == 0 ? first : bytes.size();
    EXPECT_TRUE(peer.on_table({.kind = wire::Kind::kTable, .total = bytes.size(), .offset = at},
                              std::span(bytes).subspan(at, end - at)));
  }
}

/// A peer's memory by its physical addresses, as a session has it: each part is found, then moved.
class Map {
 public:
  Map(Connection& connection, PhysicalTable table) : connection_(connection), table_(std::move(table)) {
    arrive(table_, peer_);
  }
  [[nodiscard]] const PhysicalTable& table() const noexcept { return table_; }
  [[nodiscard]] Status read(LocalSpan to, std::uint64_t from, const Patience& how) {
    return each(from, to.length, [&](const RemoteSpan& part, std::uint64_t done) {
      return connection_.read(LocalSpan{to.data + done, part.length, to.lkey}, part, how);
    });
  }
  [[nodiscard]] Status write(LocalSpan from, std::uint64_t to, const Patience& how) {
    return each(to, from.length, [&](const RemoteSpan& part, std::uint64_t done) {
      return connection_.write(LocalSpan{from.data + done, part.length, from.lkey}, part, how);
    });
  }
  [[nodiscard]] Status read(std::span<std::byte> to, std::uint64_t from, const Patience& how) {
    return each(from, to.size(), [&](const RemoteSpan& part, std::uint64_t done) {
      return connection_.read(to.subspan(done, part.length), part, how);
    });
  }
  [[nodiscard]] Status write(std::span<const std::byte> from, std::uint64_t to, const Patience& how) {
    return each(to, from.size(), [&](const RemoteSpan& part, std::uint64_t done) {
      return connection_.write(from.subspan(done, part.length), part, how);
    });
  }
  [[nodiscard]] Status fetch_add(std::uint64_t word, std::uint64_t delta, std::uint64_t& old, const Patience& how) {
    return change({.compare_add = delta}, word, old, how);
  }
  [[nodiscard]] Status compare_swap(std::uint64_t word, std::uint64_t expected, std::uint64_t desired,
                                    std::uint64_t& old, const Patience& how) {
    return change(channel::test::swap_of(expected, desired), word, old, how);
  }

 private:
  [[nodiscard]] Status change(const channel::Change& change, std::uint64_t word, std::uint64_t& old,
                              const Patience& how) {
    RemoteSpan part;
    const Status found = peer_.find(connection_, {word, 8, 0}, part);
    return found == Status::kOk ? connection_.change(change, part, old, how) : found;
  }
  template <class Move>
  [[nodiscard]] Status each(std::uint64_t address, std::uint64_t length, const Move& move) {
    for (std::uint64_t done = 0; done < length;) {
      RemoteSpan part;
      if (const Status found = peer_.find(connection_, {address + done, length - done, 0}, part); found != Status::kOk)
        return found;
      if (const Status moved = move(part, done); moved != Status::kOk) return moved;
      done += part.length;
    }
    return Status::kOk;
  }

  Connection& connection_;
  PhysicalTable table_;
  PhysicalPeer peer_;
};

struct Pair {
  explicit Pair(std::size_t pages = kPages) {
    channel::test::connect(a, b, {}, {});
    b.loop->poll();
    // Registered for nobody: that pins it.
    EXPECT_OK(memory.open(
        *b.nic, b.pd.get(),
        {.size_bytes = pages * kPage, .share = host::Share::kReadWrite, .prefault_threads = 1, .name = "physical"},
        {.to = nic::Grant::To::kAnyPeer}, kLocalOnly));
    local = std::make_unique<Region>(*a.nic, a.pd.get(), 64 * 1024);
  }
  [[nodiscard]] Result<PhysicalExport> export_as(std::span<const std::uint64_t> frames,
                                                 std::uint32_t access = kRights) {
    FakePageMap file;
    file.put_all(memory.data(), frames);
    return PhysicalExport::create(*b.nic, memory.mr(), access, file.open());
  }
  /// As a peer gets it.
  [[nodiscard]] std::unique_ptr<Map> import(const PhysicalTable& table) const {
    auto got = PhysicalTable::decode(table.encode());
    EXPECT_OK(got);
    return std::make_unique<Map>(here(), std::move(*got));
  }
  [[nodiscard]] Connection& here() const { return *a.connection; }
  [[nodiscard]] std::span<std::byte> page(std::size_t index) const { return {memory.data() + index * kPage, kPage}; }
  [[nodiscard]] std::uint64_t posted() const { return a.loop->counters().work_requests; }

  Side a;
  Side b;
  nic::RegisteredArena memory;
  std::unique_ptr<Region> local;
};

class Physical : public testing::Test {
 protected:
  void SetUp() override {
    auto made = pair.export_as(kFrames);
    ASSERT_OK(made);
    exported.emplace(std::move(*made));
    map = pair.import(exported->table());
  }
  /// What of the exported memory lies at physical pages 0x100 to 0x102.
  [[nodiscard]] std::span<std::byte> third_page() const { return pair.page(3); }

  Pair pair;
  std::optional<PhysicalExport> exported;
  std::unique_ptr<Map> map;
};

TEST_F(Physical, TableHasTheRunsInTheirOrder) {
  const PhysicalTable& table = map->table();
  ASSERT_EQ(table.size(), 4u);
  const std::uint64_t addresses[] = {0x50000, 0x100000, 0x102000, 0x300000};
  const std::uint64_t lengths[] = {0x1000, 0x2000, 0x1000, 0x1000};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(table.run(i).address, addresses[i]);
    EXPECT_EQ(table.run(i).length, lengths[i]);
  }
  EXPECT_EQ(exported->address_of(pair.memory.data()), 0x100000u);
  EXPECT_EQ(exported->address_of(pair.memory.data() + 0x1fff), 0x101fffu);
  EXPECT_EQ(exported->address_of(pair.memory.data() + 0x2008), 0x50008u);
  EXPECT_EQ(exported->address_of(pair.memory.data() + 0x4fff), 0x300fffu);
  EXPECT_EQ(exported->address_of(pair.memory.data() + 0x5000), std::nullopt);
  EXPECT_EQ(exported->address_of(pair.memory.data() - 1), std::nullopt);
}

TEST_F(Physical, ReadsAndWritesWithinARun) {
  for (std::size_t i = 0; i < kPages; ++i) fill(pair.page(i), i);
  const std::uint64_t before = pair.posted();
  ASSERT_EQ(map->read(pair.local->local(0, 2 * kPage), 0x100000, patience()), Status::kOk);
  EXPECT_TRUE(matches(pair.local->bytes().first(kPage), 0));
  EXPECT_TRUE(matches(pair.local->bytes().subspan(kPage, kPage), 1));
  fill(pair.local->bytes(), 9);
  ASSERT_EQ(map->write(pair.local->local(0, 100), 0x50f9c, patience()), Status::kOk) << "up to the last byte";
  EXPECT_TRUE(matches(pair.page(2).last(100), 9));
  EXPECT_TRUE(matches(pair.page(2).first(kPage - 100), 2));
  EXPECT_TRUE(matches(pair.page(3), 3));
  EXPECT_EQ(pair.posted() - before, 2u) << "one request each";
}

TEST_F(Physical, SplitsWhatCrossesRuns) {
  for (std::size_t i = 0; i < kPages; ++i) fill(pair.page(i), i);
  std::uint64_t before = pair.posted();
  ASSERT_EQ(map->read(pair.local->local(0, 3 * kPage), 0x100000, patience()), Status::kOk);
  EXPECT_EQ(pair.posted() - before, 2u);
  const std::size_t pages[] = {0, 1, 3};  // Of the memory, in physical order.
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(matches(pair.local->bytes().subspan(i * kPage, kPage), pages[i]));
  fill(pair.local->bytes(), 20);
  ASSERT_EQ(map->write(pair.local->local(0, 300), 0x101fff, patience()), Status::kOk);
  EXPECT_TRUE(matches(pair.page(1).last(1), 20));
  EXPECT_TRUE(matches(pair.page(3).first(299), 20, 1));
  EXPECT_TRUE(matches(pair.page(2), 2)) << "its neighbour in virtual memory only";
  // Memory that is not registered.
  std::vector<std::byte> mine(2 * kPage + 77);
  fill(mine, 30);
  ASSERT_EQ(map->write(std::span<const std::byte>(mine), 0x100010, patience()), Status::kOk);
  EXPECT_TRUE(matches(pair.page(0).subspan(0x10), 30));
  EXPECT_TRUE(matches(pair.page(1), 30, kPage - 0x10));
  EXPECT_TRUE(matches(pair.page(3).first(0x10 + 77), 30, 2 * kPage - 0x10));
  std::ranges::fill(mine, std::byte{0});
  before = pair.posted();
  ASSERT_EQ(map->read(std::span(mine), 0x100010, patience()), Status::kOk);
  EXPECT_TRUE(matches(mine, 30));
  EXPECT_EQ(pair.posted() - before, 2u) << "one for each run";
}

TEST_F(Physical, AtomicsByPhysicalAddress) {
  std::uint64_t old = 99;
  EXPECT_EQ(map->fetch_add(0x102ff8, 5, old, patience()), Status::kOk);
  EXPECT_EQ(old, 0u);
  EXPECT_EQ(map->compare_swap(0x102ff8, 5, 70, old, patience()), Status::kOk);
  EXPECT_EQ(old, 5u);
  EXPECT_EQ(map->fetch_add(0x102ff8, 0, old, patience()), Status::kOk);
  EXPECT_EQ(old, 70u);
  std::uint64_t there = 0;
  std::memcpy(&there, pair.page(3).last(8).data(), sizeof there);
  EXPECT_EQ(there, 70u);
  const std::uint64_t before = pair.posted();
  old = 99;
  EXPECT_EQ(map->fetch_add(0x102ff4, 1, old, patience()), Status::kBadArgument);
  EXPECT_EQ(map->compare_swap(0x100001, 1, 1, old, patience()), Status::kBadArgument);
  EXPECT_EQ(map->fetch_add(0x103000, 1, old, patience()), Status::kOutOfRange);
  EXPECT_EQ(map->compare_swap(0xffff8, 1, 1, old, patience()), Status::kOutOfRange);
  EXPECT_EQ(pair.posted(), before);
  EXPECT_EQ(old, 99u);
}

TEST_F(Physical, OutsideIsRefusedBeforeAnythingIsPosted) {
  const std::uint64_t before = pair.posted();
  struct Case {
    std::uint64_t address;
    std::size_t length;
  };
  const Case cases[] = {
      {0xfffff, 1},  {0xfffff, 2},       {0x103000, 1},    {0x102fff, 2},           {0x100000, 0x3001},
      {0x51000, 8},  {0x50ff8, 9},       {0, 8},           {0x200000, 8},           {~std::uint64_t{0}, 8},
      {0x301000, 1}, {0x300000, 0x1001}, {0x7fff0000, 64}, {0x300ff8, 0x10000 - 1}, {~std::uint64_t{7}, 8},
  };
  for (const Case& outside : cases) {
    SCOPED_TRACE(outside.address);
    const engine::LocalSpan span = pair.local->local(0, outside.length);
    EXPECT_EQ(map->read(span, outside.address, patience()), Status::kOutOfRange);
    EXPECT_EQ(map->write(span, outside.address, patience()), Status::kOutOfRange);
    const std::span<std::byte> mine = pair.local->bytes().first(outside.length);
    EXPECT_EQ(map->read(mine, outside.address, patience()), Status::kOutOfRange);
    EXPECT_EQ(map->write(std::span<const std::byte>(mine), outside.address, patience()), Status::kOutOfRange);
  }
  EXPECT_EQ(pair.posted(), before);
  EXPECT_TRUE(pair.here().alive());
}

TEST_F(Physical, TheNicRefusesWhatIsPostedAnyway) {
  const PhysicalRun run = map->table().run(1);
  const PhysicalRun neighbour = map->table().run(2);
  struct Case {
    ibv_wr_opcode opcode;
    std::uint64_t address;
    std::uint32_t length;
    std::uint32_t rkey;
  };
  const Case cases[] = {
      {IBV_WR_RDMA_READ, run.address + run.length - 7, 8, run.rkey},  // One byte past the end.
      {IBV_WR_RDMA_WRITE, run.address + run.length - 7, 8, run.rkey},
      {IBV_WR_RDMA_READ, run.address - 1, 1, run.rkey},
      {IBV_WR_RDMA_WRITE, run.address, 8, neighbour.rkey},
      {IBV_WR_ATOMIC_FETCH_AND_ADD, run.address + run.length, 8, run.rkey},
      {IBV_WR_RDMA_READ, reinterpret_cast<std::uintptr_t>(pair.memory.data()), 8, run.rkey},  // Virtual.
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(testing::Message() << "opcode " << bad.opcode << std::hex << " at " << bad.address);
    Pair other;
    auto shared = other.export_as(kFrames);
    ASSERT_OK(shared);
    const auto imported = other.import(shared->table());
    // The keys are those of another export: by what they name.
    const bool is_neighbours = bad.rkey == neighbour.rkey;
    const std::uint32_t rkey = imported->table().run(is_neighbours ? 2 : 1).rkey;
    ASSERT_EQ(imported->read(other.local->local(0, 8), run.address + run.length - 8, patience()), Status::kOk);
    fill({other.memory.data(), kPages * kPage}, 4);
    ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(other.local->bytes().data()),
                .length = bad.length,
                .lkey = other.local->local(0, 8).lkey};
    ibv_send_wr request{};
    // The connection takes its completion for that of the last request it has queued itself.
    const engine::Counters counters = other.a.loop->counters();
    request.wr_id = (counters.work_requests - counters.direct) << 32 | engine::wr::kNoTag;
    request.sg_list = &sge;
    request.num_sge = 1;
    request.opcode = bad.opcode;
    request.send_flags = IBV_SEND_SIGNALED;
    if (bad.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      request.wr.atomic = {.remote_addr = bad.address, .compare_add = 1, .swap = 0, .rkey = rkey};
    } else {
      request.wr.rdma = {.remote_addr = bad.address, .rkey = rkey};
    }
    ibv_send_wr* rest = nullptr;
    ASSERT_EQ(ibv_post_send(other.here().queue_pair(), &request, &rest), 0);
    ASSERT_TRUE(poll_until({other.a.loop.get(), other.b.loop.get()}, [&] { return !other.here().alive(); }));
    EXPECT_EQ(other.here().failure(), Status::kRemoteAccess);
    EXPECT_TRUE(matches({other.memory.data(), kPages * kPage}, 4)) << "nothing was written";
    EXPECT_EQ(imported->read(other.local->local(0, 8), run.address, patience()), Status::kRemoteAccess) << "dead";
  }
}

TEST_F(Physical, RightsAreThoseOfTheExport) {
  auto read_only =
      pair.export_as(std::vector<std::uint64_t>{0x700, 0x701, 0x702, 0x703, 0x704}, IBV_ACCESS_REMOTE_READ);
  ASSERT_OK(read_only);
  const auto imported = pair.import(read_only->table());
  std::uint64_t old = 0;
  EXPECT_EQ(imported->read(pair.local->local(0, 8), 0x700000, patience()), Status::kOk);
  const std::uint64_t before = pair.posted();
  EXPECT_EQ(imported->write(pair.local->local(0, 8), 0x700000, patience()), Status::kRemoteAccess);
  EXPECT_EQ(imported->fetch_add(0x700000, 1, old, patience()), Status::kRemoteAccess);
  EXPECT_EQ(pair.posted(), before);
  // The other map of the same memory is not touched by it.
  EXPECT_EQ(map->write(pair.local->local(0, 8), 0x100000, patience()), Status::kOk);
  EXPECT_STATUS(pair.export_as(kFrames, 0), Status::kBadArgument);
  EXPECT_STATUS(pair.export_as(kFrames, kRights | IBV_ACCESS_LOCAL_WRITE), Status::kBadArgument);
}

TEST_F(Physical, AConnectionHasItsOtherWindowsBesides) {
  Region plain(*pair.b.nic, pair.b.pd.get(), 4096);
  ASSERT_OK(pair.here().import_window(plain.window(), patience()));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(map->read(pair.local->local(0, 8), 0x100000, patience()), Status::kOk);
    EXPECT_EQ(pair.here().read(pair.local->local(0, 8), plain.remote(0, 8), patience()), Status::kOk);
    EXPECT_EQ(pair.here().read(pair.local->local(0, 8), plain.remote(4089, 8), patience()), Status::kOutOfRange);
  }
  EXPECT_EQ(map->read(pair.local->local(0, 8), 0x100000, patience()), Status::kOk);
  EXPECT_EQ(pair.here().read(pair.local->local(0, 8), plain.remote(0, 8), patience()), Status::kOk);
  const PhysicalRun run = map->table().run(2);
  const RemoteSpan by_key{.address = run.address, .length = 8, .rkey = run.rkey};
  EXPECT_EQ(pair.here().read(pair.local->local(0, 8), by_key, patience()), Status::kNotFound);
}

// The short way of a blocking call and the long one, over the same ranges.
TEST_F(Physical, WholeRangesAreFoundAsFindFindsThem) {
  PhysicalPeer peer;
  RemoteSpan whole;
  EXPECT_FALSE(peer.find_whole(pair.here(), {0x100000, 8, 0}, whole));
  arrive(map->table(), peer);
  EXPECT_FALSE(peer.find_whole(pair.here(), {0x100000, 8, 0}, whole)) << "nothing is imported yet";
  RemoteSpan part;
  for (const std::uint64_t run : {0x50000u, 0x100000u, 0x102000u})
    ASSERT_EQ(peer.find(pair.here(), {run, 8, 0}, part), Status::kOk);
  std::size_t found = 0;
  for (const std::uint64_t begin : {0x4ffffu, 0x50000u, 0x50fffu, 0x51000u, 0xfffffu, 0x100000u, 0x101ff8u, 0x101fffu,
                                    0x102000u, 0x102fffu, 0x103000u}) {
    for (const std::uint64_t length : {std::uint64_t{1}, std::uint64_t{8}, std::uint64_t{4096}, std::uint64_t{8192},
                                       std::uint64_t{12288}, ~std::uint64_t{0} - 7}) {
      SCOPED_TRACE(testing::Message() << std::hex << begin << ", " << length);
      const RemoteSpan range{begin, length, 0};
      const bool is_whole = peer.find(pair.here(), range, part) == Status::kOk && part.length == length;
      // Twice: the run used last is tried first.
      for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(peer.find_whole(pair.here(), range, whole), is_whole);
        if (!is_whole) continue;
        ++found;
        EXPECT_EQ(whole.address, part.address);
        EXPECT_EQ(whole.length, part.length);
        EXPECT_EQ(whole.rkey, part.rkey);
        EXPECT_EQ(pair.here().read(std::span(pair.local->bytes()).first(1), {whole.address, 1, whole.rkey}, patience()),
                  Status::kOk);
      }
    }
  }
  EXPECT_GE(found, 20u);
  EXPECT_FALSE(peer.find_whole(pair.here(), {0x300000, 8, 0}, whole)) << "this run was never used";
}

TEST_F(Physical, AnAddressThatIsExportedAgainIsUnderItsNewKey) {
  PhysicalPeer peer;
  RemoteSpan part;
  RemoteSpan whole;
  const RemoteSpan word{0x100000, 8, 0};
  const RemoteSpan old_only{0x50000, 8, 0};
  const auto expect_key = [&](const RemoteSpan& range, std::uint32_t rkey) {
    ASSERT_EQ(peer.find(pair.here(), range, part), Status::kOk);
    EXPECT_EQ(part.rkey, rkey);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(peer.find_whole(pair.here(), range, whole));
      EXPECT_EQ(whole.rkey, rkey);
    }
  };
  arrive(map->table(), peer);
  expect_key(word, map->table().run(1).rkey);
  constexpr std::uint64_t kElsewhere[] = {0x100, 0x400, 0x401, 0x402, 0x403};
  const auto again = pair.export_as(kElsewhere);
  ASSERT_OK(again);
  arrive(again->table(), peer);
  EXPECT_FALSE(peer.find_whole(pair.here(), word, whole)) << "its new run is not imported yet";
  expect_key(word, again->table().run(0).rkey);
  // Reaches the old table, and must not hide the new one.
  expect_key(old_only, map->table().run(0).rkey);
  expect_key({0x101000, 8, 0}, map->table().run(1).rkey);
  expect_key(word, again->table().run(0).rkey);
}

TEST_F(Physical, AWordAcrossRunsIsNoWord) {
  // What a peer could make up: runs whose border is inside a word.
  const PhysicalRun run = map->table().run(1);
  auto crooked = PhysicalTable::make({{run.address, 0x104, run.rkey}, {run.address + 0x104, 0x104, run.rkey}}, kRights,
                                     map->table().window(1).memory_id);
  ASSERT_OK(crooked);
  const auto imported = std::make_unique<Map>(pair.here(), std::move(*crooked));
  const std::uint64_t before = pair.posted();
  std::uint64_t old = 0;
  EXPECT_EQ(imported->fetch_add(run.address + 0x100, 1, old, patience()), Status::kBadArgument);
  EXPECT_EQ(imported->fetch_add(run.address + 0x208, 1, old, patience()), Status::kOutOfRange);
  EXPECT_EQ(pair.posted(), before);
  EXPECT_EQ(imported->fetch_add(run.address + 0xf8, 1, old, patience()), Status::kOk);
}

TEST_F(Physical, ClosedExportIsGone) {
  EXPECT_EQ(map->read(pair.local->local(0, 8), 0x100000, patience()), Status::kOk);
  const nic::Nic::Objects with = pair.b.nic->objects();
  ASSERT_OK(exported->close(patience()));
  EXPECT_EQ(pair.b.nic->objects().mrs, with.mrs - 4);
  EXPECT_EQ(exported->address_of(pair.memory.data()), std::nullopt);
  EXPECT_EQ(map->read(pair.local->local(0, 8), 0x100000, patience()), Status::kRemoteAccess) << "by the NIC";
  EXPECT_FALSE(pair.here().alive());
  map.reset();
}

TEST_F(Physical, SaysWhyTheConnectionIsDead) {
  pair.here().fail(Status::kClosed);
  ASSERT_TRUE(poll_until({pair.a.loop.get()}, [&] { return pair.here().drained(); }));
  EXPECT_EQ(map->read(pair.local->local(0, 8), 0x100000, patience()), Status::kClosed);
  std::uint64_t old = 0;
  EXPECT_EQ(map->fetch_add(0x100000, 1, old, patience()), Status::kClosed);
}

TEST(PhysicalExportLimits, APageThatIsThereTwiceIsRefused) {
  Pair pair;
  const nic::Nic::Objects before = pair.b.nic->objects();
  const auto twice = pair.export_as(std::vector<std::uint64_t>{0x10, 0x20, 0x10, 0x30, 0x40});
  ASSERT_STATUS(twice, Status::kBadArgument);
  EXPECT_NE(std::string(twice.error().text()).find("mapped twice"), std::string::npos) << twice.error().text();
  EXPECT_EQ(pair.b.nic->objects(), before);
  // A hole in the page map.
  const auto hole = pair.export_as(std::vector<std::uint64_t>{0x10, 0x20, 0x30, 0x40});
  EXPECT_FALSE(hole);
  EXPECT_EQ(pair.b.nic->objects(), before);
}

TEST(PhysicalExportLimits, HiddenFramesNameTheCapability) {
  Pair pair;
  const auto hidden = pair.export_as(std::vector<std::uint64_t>(kPages, 0));
  ASSERT_STATUS(hidden, Status::kPermission);
  EXPECT_NE(std::string(hidden.error().text()).find("CAP_SYS_ADMIN"), std::string::npos);
}

/// Frames of which no two follow each other.
[[nodiscard]] std::vector<std::uint64_t> scattered(std::size_t pages) {
  std::vector<std::uint64_t> frames(pages);
  for (std::size_t i = 0; i < pages; ++i) frames[i] = 0x100000 - 2 * i;
  return frames;
}

TEST(PhysicalExportLimits, RegionsOfTheDeviceAreCountedFirst) {
  VERBENA_SKIP_ON_A_DEVICE("its number of regions is what it is");
  auto nic = nic::open_soft({.max_mr = 16});
  ASSERT_OK(nic);
  auto made_pd = (*nic)->alloc_pd();
  ASSERT_OK(made_pd);
  const nic::Pd pd(**nic, *made_pd);
  nic::RegisteredArena memory;
  ASSERT_OK(memory.open(**nic, pd.get(), {.size_bytes = 15 * kPage, .prefault_threads = 1}, {}, kLocalOnly));
  FakePageMap file;
  file.put_all(memory.data(), scattered(15));
  const auto made = PhysicalExport::create(**nic, memory.mr(), IBV_ACCESS_REMOTE_READ, file.open());
  ASSERT_STATUS(made, Status::kLimit);
  EXPECT_NE(std::string(made.error().text()).find("15 pieces"), std::string::npos) << made.error().text();
  EXPECT_NE(std::string(made.error().text()).find("1 regions are in use: soft has 15"), std::string::npos)
      << made.error().text();
  EXPECT_EQ((*nic)->objects().mrs, 1u);
}

TEST(PhysicalExportLimits, PinningIsCountedFirst) {
  if (device_under_test() == nullptr) GTEST_SKIP() << "the soft NIC pins nothing";
  EXPECT_TRUE(in_child([]() -> std::string {
    Pair pair;
    // What is pinned already, the loops' and links' buffers included, is far more.
    rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "no limit can be set";
    if (has_capability(CAP_IPC_LOCK) && !drop_capability(CAP_IPC_LOCK)) return "CAP_IPC_LOCK cannot be dropped";
    const std::uint32_t regions = pair.b.nic->objects().mrs;
    const auto made = pair.export_as(kFrames);
    if (made) return "more was pinned than the limit has";
    if (made.error().status() != Status::kLimit) return made.error().text();
    if (!std::string(made.error().text()).starts_with("20 KiB more would be pinned, ")) return made.error().text();
    return pair.b.nic->objects().mrs == regions ? "" : "a region is left";
  }));
}

TEST(PhysicalMany, ThousandsOfRuns) {
  const std::size_t pages = device_under_test() == nullptr ? 5000 : 600;
  Pair pair(pages);
  const nic::Nic::Objects before = pair.a.nic->objects();
  const nic::Nic::Objects peers_before = pair.b.nic->objects();
  const std::size_t mappings = memfd_mappings("verbena-physical");
  {
    auto exported = pair.export_as(scattered(pages));
    ASSERT_OK(exported);
    ASSERT_EQ(exported->table().size(), pages);
    EXPECT_EQ(pair.b.nic->objects().mrs, peers_before.mrs + pages);
    const auto map = pair.import(exported->table());
    EXPECT_LE(memfd_mappings("verbena-physical"), mappings + 1) << "one mapping, however many windows are in it";
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < 2000 && i < 4 * pages; ++i) {
      const std::size_t page = i * 7919 % pages;
      const std::size_t offset = i * 56 % kPage;
      std::byte* const word = pair.memory.data() + page * kPage + offset;
      const std::uint64_t value = i * 0x9E3779B97F4A7C15U;
      std::memcpy(word, &value, sizeof value);
      std::uint64_t got = 0;
      ASSERT_EQ(map->read(std::as_writable_bytes(std::span(&got, 1)), *exported->address_of(word), patience()),
                Status::kOk);
      ASSERT_EQ(got, value);
      sum += got;
    }
    EXPECT_NE(sum, 0u);
    EXPECT_EQ(map->read(pair.local->local(0, 2 * kPage), *exported->address_of(pair.memory.data()), patience()),
              Status::kOutOfRange)
        << "the next frame is nobody's";
  }
  pair.a.connection.reset();
  EXPECT_EQ(pair.a.nic->objects().imports, before.imports);
  EXPECT_EQ(pair.b.nic->objects(), peers_before);
}

/// Frames that follow one another, so that all of it is one physical range; each page a run of its own, because the
/// memory has them in the other order.
[[nodiscard]] std::vector<std::uint64_t> backwards(std::size_t pages) {
  std::vector<std::uint64_t> frames(pages);
  for (std::size_t i = 0; i < pages; ++i) frames[i] = 0x1000 + pages - 1 - i;
  return frames;
}

TEST(PhysicalMany, ALongTransferGoesThroughAllItsRuns) {
  constexpr std::size_t kMany = 200;
  Pair pair(kMany);
  auto exported = pair.export_as(backwards(kMany));
  ASSERT_OK(exported);
  ASSERT_EQ(exported->table().size(), kMany);
  const auto map = pair.import(exported->table());
  const Region local(*pair.a.nic, pair.a.pd.get(), kMany * kPage);
  const auto page_of = [&](std::size_t physical) { return pair.page(kMany - 1 - physical); };
  const std::uint64_t base = 0x1000 * kPage;
  fill(local.bytes(), 3);
  const std::uint64_t before = pair.posted();
  ASSERT_EQ(map->write(local.local(0, kMany * kPage - 20), base + 10, patience()), Status::kOk);
  EXPECT_EQ(pair.posted() - before, kMany);
  EXPECT_TRUE(matches(page_of(0).subspan(10), 3));
  for (std::size_t i = 1; i + 1 < kMany; ++i) ASSERT_TRUE(matches(page_of(i), 3, i * kPage - 10)) << i;
  EXPECT_TRUE(matches(page_of(kMany - 1).first(kPage - 10), 3, (kMany - 1) * kPage - 10));
  EXPECT_TRUE(all_are(page_of(kMany - 1).last(10), std::byte{0}));
  std::ranges::fill(local.bytes(), std::byte{0});
  ASSERT_EQ(map->read(local.local(0, kMany * kPage - 20), base + 10, patience()), Status::kOk);
  EXPECT_TRUE(matches(local.bytes().first(kMany * kPage - 20), 3));
  EXPECT_TRUE(pair.here().alive());
}

TEST(PhysicalMany, CallersMemoryIsDrainedOfAllPartsWhenTheTimeIsOver) {
  VERBENA_SKIP_ON_A_DEVICE("the execution of posted requests cannot be held");
  constexpr std::size_t kMany = 20;
  Pair pair(kMany);
  auto exported = pair.export_as(backwards(kMany));
  ASSERT_OK(exported);
  const auto map = pair.import(exported->table());
  fill({pair.memory.data(), kMany * kPage}, 3);
  test::hold_execution(pair.here().queue_pair(), true);
  // The last part is short enough to go inline.
  EXPECT_EQ(
      map->write(pair.local->local(0, 10 * kPage + 8), 0x1000 * kPage, Deadline::after(std::chrono::milliseconds{5})),
      Status::kTimedOut);
  EXPECT_TRUE(pair.here().drained());
  EXPECT_EQ(pair.here().failure(), Status::kTimedOut);
  EXPECT_EQ(pair.a.loop->counters().quarantined, 0u);
  EXPECT_TRUE(matches({pair.memory.data(), kMany * kPage}, 3)) << "and nothing comes later";
  EXPECT_EQ(map->read(pair.local->local(0, 8), 0x1000 * kPage, patience()), Status::kTimedOut) << "dead";
}

TEST_F(Physical, AFailureInTheMiddleEndsTheTransfer) {
  // Neighbours in physical memory, of two exports of which one is taken back.
  auto one = pair.export_as(std::vector<std::uint64_t>{0x900, 0x901, 0x902, 0x903, 0x904});
  auto other = pair.export_as(std::vector<std::uint64_t>{0x905, 0x906, 0x907, 0x908, 0x909});
  ASSERT_OK(one);
  ASSERT_OK(other);
  const PhysicalRun first = one->table().run(0);
  const PhysicalRun second = other->table().run(0);
  auto table = PhysicalTable::make({first, second}, kRights, one->table().window(0).memory_id);
  ASSERT_OK(table);
  const auto both = std::make_unique<Map>(pair.here(), std::move(*table));
  const std::uint64_t border = second.address;
  EXPECT_EQ(both->write(pair.local->local(0, 2 * kPage), border - kPage, patience()), Status::kOk);
  ASSERT_OK(other->close(patience()));
  fill(pair.local->bytes(), 6);
  EXPECT_EQ(both->write(pair.local->local(0, 2 * kPage), border - kPage, patience()), Status::kRemoteAccess);
  EXPECT_TRUE(pair.here().drained()) << "the caller's memory is the caller's again";
  EXPECT_TRUE(matches(pair.page(4), 6)) << "the part before was executed";
}

TEST(PhysicalHostile, TablesOfWhatIsNotThereImportNothing) {
  VERBENA_SKIP_ON_A_DEVICE("a device finds out at the access");
  Pair pair;
  auto exported = pair.export_as(kFrames);
  ASSERT_OK(exported);
  const PhysicalRun run = exported->table().run(0);
  const std::uint64_t memory_id = exported->table().window(0).memory_id;
  const nic::Nic::Objects before = pair.a.nic->objects();
  const auto use = [&](PhysicalRun second, std::uint64_t memory) {
    auto table = PhysicalTable::make({run, second}, kRights, memory);
    EXPECT_OK(table);
    Map map(pair.here(), std::move(*table));
    return map.read(pair.local->local(0, 8), second.address, patience());
  };
  EXPECT_EQ(use({0x900000, 0x1000, 0}, memory_id), Status::kOutOfRange);
  EXPECT_EQ(use({0x900000, 0x1000, ~0U}, memory_id), Status::kOutOfRange);
  EXPECT_EQ(use({0x900000, 0x1000, run.rkey}, memory_id), Status::kOutOfRange);
  EXPECT_EQ(use({0x900000, 0x1000, run.rkey + 1}, memory_id), Status::kNotFound);
  EXPECT_EQ(use(exported->table().run(1), memory_id + 5), Status::kOutOfRange);
  EXPECT_EQ(pair.a.nic->objects(), before);
  EXPECT_TRUE(pair.here().alive());
}

TEST(PhysicalHostile, OnADeviceTheNicRefusesAtTheAccess) {
  if (device_under_test() == nullptr) GTEST_SKIP() << "the soft NIC refuses the import";
  Pair pair;
  auto exported = pair.export_as(kFrames);
  ASSERT_OK(exported);
  const PhysicalRun run = exported->table().run(0);
  auto table = PhysicalTable::make({{run.address, run.length + 8, run.rkey}}, kRights, 0);
  ASSERT_OK(table);
  const auto map = std::make_unique<Map>(pair.here(), std::move(*table));
  EXPECT_EQ(map->read(pair.local->local(0, 8), run.address + run.length - 8, patience()), Status::kOk);
  EXPECT_EQ(map->read(pair.local->local(0, 8), run.address + run.length - 7, patience()), Status::kRemoteAccess);
}

// --- the kernel's page map

TEST(PhysicalKernel, AddressesOfTheMachine) {
  Pair pair(64);
  const auto pages = host::PageMap::open();
  ASSERT_OK(pages);
  auto exported = PhysicalExport::create(*pair.b.nic, pair.memory.mr(), kRights, *pages);
  if (!may_see_frames()) {
    ASSERT_STATUS(exported, Status::kPermission);
    GTEST_SKIP() << exported.error().text();
  }
  ASSERT_OK(exported);
  const auto map = pair.import(exported->table());
  fill({pair.memory.data(), 64 * kPage}, 1);
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint64_t physical = exported->address_of(pair.page(i).data()).value();
    // A device's pin keeps them true. On the soft NIC they are names, and the kernel may have moved the page since.
    if (device_under_test() != nullptr) {
      const auto now = pages->address_of(pair.page(i).data());
      ASSERT_OK(now);
      EXPECT_EQ(*now, physical);
    }
    ASSERT_EQ(map->read(pair.local->local(0, kPage), physical, patience()), Status::kOk);
    EXPECT_TRUE(matches(pair.local->bytes().first(kPage), 1, i * kPage));
  }
  const std::uint64_t word = exported->address_of(pair.memory.data() + 4088).value();
  std::memset(pair.memory.data() + 4088, 0, 8);
  std::uint64_t old = 1;
  EXPECT_EQ(map->fetch_add(word, 3, old, patience()), Status::kOk);
  EXPECT_EQ(old, 0u);
  EXPECT_EQ(map->write(pair.local->local(0, 8), word, patience()), Status::kOk);
  EXPECT_TRUE(matches({pair.memory.data() + 4088, 8}, 1, 63 * kPage)) << "the first bytes of the last read";
}

TEST(PhysicalKernel, PagesThatTheKernelHasUnmappedAreFaultedIn) {
  if (!may_see_frames()) GTEST_SKIP() << "without CAP_SYS_ADMIN";
  Pair pair;
  const auto pages = host::PageMap::open();
  ASSERT_OK(pages);
  fill(pair.page(0), 5);
  // The page table entries go, as when a hugepage is made of them; the pages stay.
  ASSERT_EQ(madvise(pair.memory.data(), kPages * kPage, MADV_DONTNEED), 0);
  ASSERT_STATUS(pages->address_of(pair.memory.data()), Status::kNotFound);
  const auto exported = PhysicalExport::create(*pair.b.nic, pair.memory.mr(), kRights, *pages);
  ASSERT_OK(exported);
  EXPECT_TRUE(matches(pair.page(0), 5));
}

TEST(PhysicalKernel, WithoutTheCapabilityAllElseGoesOn) {
  EXPECT_TRUE(in_child([]() -> std::string {
    if (has_capability(CAP_SYS_ADMIN) && !drop_capability(CAP_SYS_ADMIN)) return "it cannot be dropped";
    Pair pair;
    const auto pages = host::PageMap::open();
    if (!pages) return pages.error().text();
    const auto exported = PhysicalExport::create(*pair.b.nic, pair.memory.mr(), kRights, *pages);
    if (exported) return "it was exported";
    if (exported.error().status() != Status::kPermission ||
        !std::string(exported.error().text()).contains("CAP_SYS_ADMIN"))
      return exported.error().text();
    Region plain(*pair.b.nic, pair.b.pd.get(), 4096);
    if (!pair.here().import_window(plain.window(), patience())) return "no window";
    if (pair.here().read(pair.local->local(0, 64), plain.remote(0, 64), patience()) != Status::kOk) return "no read";
    // Its peers' exports are another's privilege.
    auto by_another = pair.export_as(kFrames);
    if (!by_another) return by_another.error().text();
    const auto map = pair.import(by_another->table());
    return map->read(pair.local->local(0, 64), 0x100000, patience()) == Status::kOk ? "" : "no physical read";
  }));
}

}  // namespace
}  // namespace verbena::session
