// What the footprints say, beside what is really allocated.
#include "kv/plan.hpp"
#include "../node/fixture.hpp"
#include "channel/bounce.hpp"
#include "channel/connection.hpp"
#include "device.hpp"
#include "kv/client.hpp"
#include "kv/store.hpp"
#include "node/shard.hpp"
#include "result.hpp"
#include "sanitized.hpp"

#include <gtest/gtest.h>

#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace {

/// Bytes of the heap that are in use, by all threads.
std::atomic<std::uint64_t> heap_bytes{0};

}  // namespace

// A sanitizer has its own, whose pairs it checks.
#ifndef VERBENA_IS_SANITIZED
namespace {

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  heap_bytes += malloc_usable_size(memory);
  return memory;
}

void release(void* memory) noexcept {
  heap_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

// The others of the standard library call these.
void* operator new(std::size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto to = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(to, (bytes + to - 1) / to * to));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
#endif

namespace verbena::kv {
namespace {

using host::Footprint;
using host::PoolKind;

/// Bytes of mappings whose name has `name`.
std::uint64_t mapped_bytes(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  std::uint64_t sum = 0;
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t begin = 0, end = 0;
    if (line.find(name) == std::string::npos || std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    sum += end - begin;
  }
  return sum;
}

constexpr std::uint64_t kPage = 4096;
std::uint64_t in_pages(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// What arenas of the footprint take, on small pages.
std::uint64_t arena_bytes(const Footprint& footprint) {
  std::uint64_t sum = 0;
  for (const host::Pool& pool : footprint.pools())
    if (pool.kind == PoolKind::kRegistered) sum += pool.count * in_pages(pool.bytes_each);
  return sum;
}

/// The heap's part of a footprint.
void expect_heap(std::uint64_t actual, const Footprint& footprint) {
  const std::uint64_t told = footprint.bytes(PoolKind::kPrivate);
  EXPECT_GE(actual, told);
  // The allocator rounds up, and NIC and device keep lists of their objects.
  EXPECT_LE(actual, told + told / 50 + 8192);
}

class Footprints : public testing::Test {
 protected:
  void SetUp() override {
    VERBENA_SKIP_ON_A_DEVICE("what its driver allocates is not known");
#ifdef VERBENA_IS_SANITIZED
    GTEST_SKIP() << "the sanitizer has an allocator of its own, whose sizes are not the library's";
#endif
    device_ = node::test::open_device();
    heap_before_ = heap_bytes.load();
  }
  [[nodiscard]] std::uint64_t heap() const { return heap_bytes.load() - heap_before_; }
  std::shared_ptr<node::Device> device_;
  std::uint64_t heap_before_ = 0;
};

class Nobody final : public channel::Handler, public WorkerHost {
 public:
  void on_message(channel::Connection&, std::span<const std::byte>) noexcept override {}
  void on_complete(channel::Connection&, const channel::Completion&) noexcept override {}
  void on_end(channel::Connection&, Status) noexcept override {}
  void add_statistics(StatisticsPart, ServerStatistics&) const noexcept override {}
  void session_ended(std::uint64_t, unsigned, bool) noexcept override {}
  void see_off(node::Acceptor::Leaver&) noexcept override {}
};

TEST_F(Footprints, OfShardsAndTheirLoops) {
  for (const std::uint32_t cqe : {300U, 1000U, 40'000U}) {
    heap_before_ = heap_bytes.load();
    const node::ShardOptions options{.loop = {.max_connections = 100, .cqe = cqe}};
    const auto shard = node::Shard::create(device_, options);
    ASSERT_OK(shard);
    expect_heap(heap(), node::Shard::footprint(nic::Kind::kSoft, options));
  }
}

TEST_F(Footprints, OfConnections) {
  Nobody nobody;
  for (const std::uint32_t depth : {4U, 68U, 500U}) {
    for (const std::uint64_t lease : {0U, 100'000U}) {
      const auto shard = node::Shard::create(device_, {.loop = {.max_connections = 4, .cqe = 4096}});
      ASSERT_OK(shard);
      channel::Options options;
      options.depth = depth;
      options.lease_bytes = lease;
      const Footprint footprint = channel::footprint(nic::Kind::kSoft, device_->nic().limits(), options);
      const std::uint64_t used = device_->buffers().usage().bytes;
      heap_before_ = heap_bytes.load();
      const auto connection = channel::Connection::create((*shard)->loop(), (*shard)->memory(), options, nobody);
      ASSERT_OK(connection);
      EXPECT_EQ(device_->buffers().usage().bytes - used + mapped_bytes("verbena-lease"), arena_bytes(footprint))
          << depth;
      expect_heap(heap(), footprint);
    }
  }
}

TEST_F(Footprints, OfStores) {
  for (const std::size_t items : {std::size_t{1}, std::size_t{1000}, std::size_t{300'000}}) {
    heap_before_ = heap_bytes.load();
    constexpr std::size_t kBytes = std::size_t{8} << 20;
    const std::size_t window = Store::window_bytes(kBytes, items);
    EXPECT_GE(window, kBytes + items * 8 * 10 / 9);
    const std::unique_ptr<std::byte, decltype(&std::free)> memory(
        static_cast<std::byte*>(std::aligned_alloc(4096, window)), &std::free);
    std::atomic<std::uint64_t> versions{1};
    const auto store = Store::create({.window = {memory.get(), window}, .max_items = items, .versions = &versions});
    ASSERT_OK(store);
    expect_heap(heap(), Store::footprint(kBytes, Store::Owners::kNo));
    std::array<Account, 1> accounts;
    heap_before_ = heap_bytes.load();
    const auto owned = Store::create(
        {.window = {memory.get(), window}, .max_items = items, .versions = &versions, .accounts = accounts});
    ASSERT_OK(owned);
    expect_heap(heap(), Store::footprint(kBytes, Store::Owners::kYes));
  }
}

TEST_F(Footprints, OfWorkersAndTheirPlannedMemory) {
  Nobody nobody;
  ServerOptions server;
  server.memory_bytes = std::size_t{9} << 20;
  server.workers = 2;
  server.max_value_bytes = 1 << 20;
  server.max_cells = 3000;
  std::atomic<std::uint64_t> versions{1};
  WorkerOptions options = worker_options(server, 1, {});
  options.versions = &versions;
  const auto worker = Worker::create(device_, options, nobody);
  ASSERT_OK(worker);
  Footprint at_start;
  const Footprint all = Worker::footprint(nic::Kind::kSoft, device_->nic().limits(), options);
  for (const host::Pool& pool : all.pools()) {
    if (pool.when.empty()) at_start.add(pool);
  }
  expect_heap(heap(), at_start);
  const std::uint64_t page = (*worker)->page_report().page_bytes;
  EXPECT_EQ(mapped_bytes("verbena-cells"), in_pages((3000 / 2 * 5 / 4 + 64) * std::uint64_t{64}));
  const std::uint64_t buffers = in_pages(channel::Bounce::footprint({}).bytes(PoolKind::kRegistered));
  const std::uint64_t items =
      arena_bytes(at_start) - mapped_bytes("verbena-cells") - buffers - in_pages(SparePlace::kBytes);
  EXPECT_EQ(mapped_bytes("verbena-items"), (items + page - 1) / page * page);
}

TEST_F(Footprints, OfAServerAreAllItsWorkersAndClients) {
  ServerOptions options;
  options.workers = 3;
  options.max_clients = 10;
  host::Placement placement;
  placement.pollers.resize(3);
  placement.pollers[2].node = 1;
  const Footprint footprint = kv::footprint(options, placement, nic::Kind::kSoft, device_->nic().limits());
  std::uint64_t items = 0, sessions = 0, leases = 0;
  for (const host::Pool& pool : footprint.pools()) {
    EXPECT_FALSE(pool.when.empty()) << pool.name;
    EXPECT_EQ(pool.node.has_value(), pool.kind == PoolKind::kRegistered && pool.name.starts_with("worker 2"))
        << pool.name;
    if (pool.name.ends_with(": items")) items += pool.bytes();
    if (pool.name.ends_with("sessions: session")) sessions += pool.count;
    if (pool.name.ends_with(": lease")) leases += pool.bytes();
  }
  EXPECT_LE(items, options.memory_bytes);
  EXPECT_GT(items, options.memory_bytes - 3 * 4096);
  EXPECT_EQ(sessions, 3U * worker_options(options, 0, {}).max_sessions);
  EXPECT_EQ(leases, sessions * options.lease_bytes);
}

TEST_F(Footprints, OfAServerMustFitTheMachine) {
  Footprint small, large;
  const ServerOptions options;
  const host::Headroom headroom{.bytes = std::size_t{1} << 40, .limit = "this test"};
  small.add({.name = "a", .bytes_each = 4096, .when = "start"});
  large.add({.name = "b", .bytes_each = 1 << 20, .when = "start"});
  large.add({.name = "a",
             .kind = PoolKind::kRegistered,
             .count = 1 << 20,
             .bytes_each = std::uint64_t{1} << 30,
             .when = "start"});
  EXPECT_OK(check_memory(options, small, headroom));
  EXPECT_EQ(memory_warning(options, small, headroom), "");
  const auto refused = check_memory(options, large, headroom);
  EXPECT_STATUS(refused, Status::kNoMemory);
  EXPECT_NE(std::string(refused.error().text()).find("most of it a (1073741824 MiB)"), std::string::npos)
      << refused.error().text();
  EXPECT_OK(check_memory(options, large, {})) << "nobody knows";
  large = {};
  large.add({.name = "a", .kind = PoolKind::kAsUsed, .count = 1 << 20, .bytes_each = std::uint64_t{1} << 30});
  EXPECT_OK(check_memory(options, large, headroom)) << "not there before it is used";
  EXPECT_EQ(memory_warning(options, large, headroom), "");
}

TEST_F(Footprints, OfAServerMayHaveMoreClientsThanMemory) {
  ServerOptions options;
  options.max_clients = 1000;
  host::Placement placement;
  placement.pollers.resize(1);
  const Footprint footprint = kv::footprint(options, placement, nic::Kind::kSoft, device_->nic().limits());
  // 1 GiB of items, and its index; a thousand leases of 2 MiB beside them are too much.
  const host::Headroom headroom{.bytes = std::size_t{1800} << 20, .limit = "this test"};
  EXPECT_OK(check_memory(options, footprint, headroom));
  const std::string warning = memory_warning(options, footprint, headroom);
  EXPECT_TRUE(warning.starts_with("With all 1000 clients the pools take ")) << warning;
  EXPECT_NE(warning.find("1800 MiB are left by this test"), std::string::npos) << warning;
  host::Headroom little{.bytes = std::size_t{1} << 30};
  EXPECT_STATUS(check_memory(options, footprint, little), Status::kNoMemory) << "items alone are that much";
  little.hugepage_bytes = std::size_t{800} << 20;
  EXPECT_OK(check_memory(options, footprint, little)) << "free hugepages are memory, too";
}

TEST(Descriptors, OfAllClientsAreWeighedAgainstTheLimit) {
  ServerOptions options;
  options.max_clients = 10;
  options.workers = 2;
  const nic::Capabilities soft{.maps_windows = true};
  const host::Descriptors enough{.open = 30, .limit = 30 + 10 * 8};
  EXPECT_EQ(descriptor_warning(options, soft, enough), "");
  EXPECT_EQ(descriptor_warning(options, soft, std::nullopt), "");
  const std::string warning = descriptor_warning(options, soft, host::Descriptors{.open = 31, .limit = 30 + 10 * 8});
  EXPECT_NE(warning.find("With all 10 clients the server takes 111 file descriptors, and RLIMIT_NOFILE is 110"),
            std::string::npos)
      << warning;
  EXPECT_EQ(descriptor_warning(options, {}, host::Descriptors{.open = 30, .limit = 50}), "");
  EXPECT_NE(descriptor_warning(options, {}, host::Descriptors{.open = 30, .limit = 49}), "");
}

TEST_F(Footprints, OfClients) {
  ServerOptions serving;
  serving.transport.device = "soft";
  serving.port = 0;
  serving.memory_bytes = std::size_t{8} << 20;
  serving.max_value_bytes = 1 << 20;
  serving.workers = 2;
  serving.max_clients = 4;
  const auto server = Server::start(serving);
  ASSERT_OK(server);
  ClientOptions options;
  options.transport.device = "soft";
  options.port = (*server)->port();
  options.depth = 17;
  options.buffer_bytes = 123'456;
  const auto client = Client::connect(options);
  ASSERT_OK(client);
  const Footprint footprint = PollingClient::footprint(nic::Kind::kSoft, device_->nic().limits(), options, 2);
  std::uint64_t told = 0;
  for (const host::Pool& pool : footprint.pools())
    if (pool.name == "places and buffers") told = in_pages(pool.bytes_each);
  // The server of this process maps it, too. Two MiB pages may hold it, when there are any.
  EXPECT_GE(mapped_bytes("verbena-client"), 2 * told);
  EXPECT_LE(mapped_bytes("verbena-client"), 2 * (told + told / 8));
}

// --- placement

TEST(ServerPlacement, CoresAreClaimedAndNeverShared) {
  ServerOptions options;
  options.transport.device = "soft";
  options.port = 0;
  options.memory_bytes = std::size_t{1} << 20;
  options.max_value_bytes = 1 << 16;
  const auto topology = host::Topology::read();
  ASSERT_OK(topology);
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<unsigned> cores;
  // Servers of other tests may have some: each of these has one of its own, or says that there is none.
  for (std::size_t i = 0; i < topology->cores().size() + 1; ++i) {
    auto server = Server::start(options);
    ASSERT_OK(server);
    const std::string text = (*server)->description();
    const std::size_t at = text.find("poller cores: ");
    ASSERT_NE(at, std::string::npos) << text;
    unsigned cpu = 0;
    if (std::sscanf(text.c_str() + at, "poller cores: %u", &cpu) == 1) {
      EXPECT_EQ(std::count(cores.begin(), cores.end(), cpu), 0) << cpu;
      cores.push_back(cpu);
      const auto core = std::ranges::find(topology->cores(), cpu, &host::Core::cpu);
      ASSERT_NE(core, topology->cores().end());
      EXPECT_STATUS(host::CoreClaim::take(core->id), Status::kBusy);
    } else {
      EXPECT_NE(text.find("waits by the policy `event`: "), std::string::npos) << text;
    }
    servers.push_back(std::move(*server));
  }
  EXPECT_LE(cores.size(), topology->cores().size());
}

TEST(ServerPlacement, PolicyIsTheCallersWhereThereIsACore) {
  ServerOptions options;
  options.wait = WaitPolicy::kSpin;
  options.spin = std::chrono::microseconds{7};
  const auto topology = host::Topology::read();
  ASSERT_OK(topology);
  const auto nic = nic::open_soft({});
  ASSERT_OK(nic);
  EXPECT_EQ(placement_request(options, *topology, **nic).wait, WaitPolicy::kSpin);
  const host::PlacedPoller spinning{.core = host::Core{.cpu = 7}, .wait = WaitPolicy::kSpin};
  EXPECT_EQ(worker_options(options, 0, spinning).wait, WaitPolicy::kSpin);
  EXPECT_EQ(worker_options(options, 0, spinning).spin, options.spin);
  EXPECT_EQ(worker_options(options, 0, {}).wait, WaitPolicy::kEvent);
}

TEST(ServerPlacement, WorkersAreWhereThePlanHasThem) {
  ServerOptions options;
  const host::PlacedPoller place{.core = host::Core{.cpu = 7, .node = 1}, .node = 1, .wait = WaitPolicy::kAdaptive};
  const WorkerOptions worker = worker_options(options, 0, place);
  EXPECT_EQ(worker.cpu, 7U);
  EXPECT_EQ(worker.node, 1U);
  EXPECT_EQ(worker.channel.node, 1U);
  EXPECT_EQ(worker.wait, WaitPolicy::kAdaptive);
}

// --- limits

testing::AssertionResult says(const Result<void>& checked, const std::string& what) {
  if (checked) return testing::AssertionFailure() << "succeeded";
  const std::string text = checked.error().text();
  if (text.find(what) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "says: " << text << "; expected: " << what;
}

struct Wrong {
  const char* what;
  void (*set)(ServerOptions&);
};

TEST(ServerLimits, InconsistentOnesAreRefusedWithTheirSum) {
  const Wrong wrong[] = {
      {"workers must be 1 to 64; got 0", [](ServerOptions& o) { o.workers = 0; }},
      {"workers must be 1 to 64; got 65", [](ServerOptions& o) { o.workers = 65; }},
      {"max_clients must be 1 to 1024; got 0", [](ServerOptions& o) { o.max_clients = 0; }},
      {"depth must be 1 to 1024; got 1025", [](ServerOptions& o) { o.depth = 1025; }},
      {"memory_bytes must be 1048576 to 1099511627776; got 0", [](ServerOptions& o) { o.memory_bytes = 0; }},
      {"more than a worker's share of the memory, 1048576 (67108864 bytes over 64 workers)",
       [](ServerOptions& o) {
         o.memory_bytes = o.max_value_bytes = std::size_t{64} << 20;
         o.workers = 64;
       }},
      {"max_items is 1099511627776: with at least 64 bytes an item they take 67108864 MiB, and memory_bytes is 1024 "
       "MiB",
       [](ServerOptions& o) { o.max_items = std::size_t{1} << 40; }},
      {"max_items is 20000: with at least 64 bytes an item they take 2 MiB, and memory_bytes is 1 MiB",
       [](ServerOptions& o) {
         o.memory_bytes = std::size_t{1} << 20;
         o.max_value_bytes = 1000;
         o.max_items = 20'000;
       }},
      {"a worker's items and its index take 1095 GiB, and one can have 1024",
       [](ServerOptions& o) { o.memory_bytes = std::size_t{1} << 40; }},
      {"they take 1125899906842624 MiB", [](ServerOptions& o) { o.max_items = ~std::size_t{0}; }},
      {"max_value_bytes is 7, and max_cells is 1: a cell is an item with a value of 8 bytes: raise max_value_bytes",
       [](ServerOptions& o) {
         o.max_value_bytes = 7;
         o.max_cells = 1;
       }},
      {"grace (ms) must be 1 to 60000; got 0", [](ServerOptions& o) { o.grace = std::chrono::milliseconds{0}; }},
      {"wait (a policy) must be 0 to 2; got 3", [](ServerOptions& o) { o.wait = WaitPolicy{3}; }},
      {"spin (us) must be 0 to 1000000; got 18446744073709551615",
       [](ServerOptions& o) { o.spin = std::chrono::microseconds{-1}; }},
  };
  EXPECT_OK(check_options({}));
  for (const Wrong& one : wrong) {
    ServerOptions options;
    one.set(options);
    const auto checked = check_options(options);
    EXPECT_STATUS(checked, Status::kBadArgument) << one.what;
    EXPECT_TRUE(says(checked, one.what));
    EXPECT_STATUS(Server::start(options), Status::kBadArgument) << one.what;
  }
  ServerOptions least;
  least.max_value_bytes = 7;
  EXPECT_OK(check_options(least)) << "without cells";
  least.max_value_bytes = 8;
  least.max_cells = 1;
  EXPECT_OK(check_options(least));
}

TEST(ServerLimits, BeyondTheDeviceAreRefusedWithTheirSum) {
  const nic::Limits plenty{
      .max_qp = 1 << 16, .max_cq = 1 << 10, .max_mr = 1 << 18, .max_qp_wr = 1 << 14, .max_cqe = 1 << 22};
  ServerOptions options;
  options.workers = 4;
  EXPECT_OK(check_device(options, plenty));
  const auto sessions = worker_options(options, 0, {}).max_sessions;
  const auto expect = [&](const nic::Limits& limits, const std::string& what) {
    const auto checked = check_device(options, limits);
    EXPECT_STATUS(checked, Status::kLimit) << what;
    EXPECT_TRUE(says(checked, what));
  };
  nic::Limits limits = plenty;
  limits.max_cqe = channel::completions_needed(worker_options(options, 0, {}).channel) * sessions - 1;
  expect(limits, std::to_string(limits.max_cqe + 1) + " completion entries of one worker are needed");
  limits.max_cqe += 1;
  EXPECT_OK(check_device(options, limits));
  limits = plenty;
  limits.max_qp = 4 * 64 - 1;
  expect(limits, "256 queue pairs are needed (4 x 64)");
  limits = plenty;
  limits.max_mr = 4 * (1 + 2 * 64) - 1;
  expect(limits, "memory regions are needed");
  limits = plenty;
  limits.max_cq = 3;
  expect(limits, "4 completion queues are needed");
  limits = plenty;
  limits.max_qp_wr = 100;
  expect(limits, "work requests in one queue");
}

}  // namespace
}  // namespace verbena::kv
