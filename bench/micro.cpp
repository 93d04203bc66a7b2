// Micro-benchmarks of the parts that each operation of the store goes through, one thread, no peer: the ring, the slab
// pool, the store, the frames. They say where a change went, not what a user sees; bench/kv.sh does that.
// usage: micro [--benchmark_filter=REGEX] [--benchmark_format=json] ...
#include "base/hash.hpp"
#include "base/peer_memory.hpp"
#include "base/ticks.hpp"
#include "host/arena.hpp"
#include "host/slab_pool.hpp"
#include "kv/store.hpp"
#include "kv/wire.hpp"
#include "nic/soft/ring.hpp"

#include <verbena/deadline.hpp>

#include <benchmark/benchmark.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace {

using verbena::host::SlabPool;
using verbena::kv::Store;
namespace soft = verbena::nic::soft;
namespace wire = verbena::kv::wire;

constexpr std::size_t kMebi = std::size_t{1} << 20;

template <class T>
T& or_die(verbena::Result<T>& result) {
  if (result) return *result;
  std::fprintf(stderr, "micro: %s\n", result.error().text());
  std::exit(EXIT_FAILURE);
}

/// One message through the ring, both ends in this thread. Argument: payload bytes.
void ring_message(benchmark::State& state) {
  constexpr std::uint32_t kSlots = 64, kDataBytes = 16 * soft::kSegmentBytes;
  const auto bytes = static_cast<std::uint32_t>(state.range(0));
  const std::size_t data_bytes = bytes <= soft::kSlotPayload ? 0 : bytes;
  auto arena = verbena::host::Arena::create({.size_bytes = kSlots * sizeof(soft::Slot) + kDataBytes});
  std::byte* const memory = or_die(arena).data();
  auto* const slots = reinterpret_cast<soft::Slot*>(memory);
  std::byte* const data = memory + kSlots * sizeof(soft::Slot);
  const auto ends = std::make_unique<std::uint64_t[]>(kSlots);
  soft::RingProducer<soft::RealMemory> producer(slots, kSlots, data, kDataBytes, ends.get(), 0);
  soft::RingConsumer<soft::RealMemory> consumer(slots, kSlots, data, kDataBytes, 0);
  verbena::PeerWord<std::uint64_t> consumed{};
  std::array<std::byte, soft::kSegmentBytes> in{}, out{};
  for (auto _ : state) {
    if (!producer.has_room(data_bytes, &consumed)) return state.SkipWithError("the ring is full");
    std::memcpy(data_bytes == 0 ? producer.slot_payload() : producer.data_payload(bytes), in.data(), bytes);
    producer.publish({soft::SlotKind::kSend, data_bytes == 0 ? std::uint8_t{0} : soft::SlotFlags::kInData, 0, bytes},
                     data_bytes);
    soft::SlotView view;
    if (!consumer.peek(view)) return state.SkipWithError("the message is not there");
    std::memcpy(out.data(), consumer.payload(view), view.length);
    consumer.advance();
    consumer.publish_progress(consumed);
    benchmark::DoNotOptimize(out);
  }
}
BENCHMARK(ring_message)->Arg(8)->Arg(64)->Arg(112)->Arg(1024)->Arg(4096);

/// Allocates and frees a block at random among 1024 live ones of 64 B to 4 KiB.
template <class Allocate, class Free>
void churn(benchmark::State& state, Allocate allocate, Free free) {
  constexpr std::size_t kLive = 1024;
  std::uint64_t random = 88172645463325252U;
  const auto next = [&random] {  // xorshift64 (Marsaglia 2003).
    random ^= random << 13;
    random ^= random >> 7;
    return random ^= random << 17;
  };
  std::vector<decltype(allocate(std::size_t{1}))> live(kLive);
  for (auto& block : live) block = allocate(64 + next() % 4032);
  for (auto _ : state) {
    auto& block = live[next() % kLive];
    free(block);
    block = allocate(64 + next() % 4032);
    benchmark::DoNotOptimize(block);
  }
  for (auto& block : live) free(block);
}
void slab_pool(benchmark::State& state) {
  auto arena = verbena::host::Arena::create({.size_bytes = 64 * kMebi});
  auto pool = SlabPool::create(or_die(arena).bytes());
  SlabPool& of = or_die(pool);
  churn(
      state, [&of](std::size_t bytes) { return of.allocate(bytes); },
      [&of](std::uint64_t block) { (void)of.free(block); });
}
BENCHMARK(slab_pool);
void malloc_free(benchmark::State& state) {
  churn(state, [](std::size_t bytes) { return std::malloc(bytes); }, [](void* block) { std::free(block); });
}
BENCHMARK(malloc_free);

/// A store of `keys` keys of 16 B with values of 64 B.
struct FilledStore {
  explicit FilledStore(std::size_t keys) : names(keys) {
    or_die(arena);
    store = std::move(or_die(made));
    for (std::size_t i = 0; i < keys; ++i) {
      std::memcpy(names[i].data(), &i, sizeof i);
      if (store->put(names[i], value, Store::kAnyVersion).status != verbena::Status::kOk) std::abort();
    }
  }
  verbena::Result<verbena::host::Arena> arena = verbena::host::Arena::create({.size_bytes = 512 * kMebi});
  std::atomic<std::uint64_t> versions{1};
  verbena::Result<std::unique_ptr<Store>> made =
      Store::create({.window = arena->bytes(),
                     .max_items = std::size_t{1} << 20,
                     .max_value_bytes = kMebi,
                     .grace_ticks = verbena::ticks_in(std::chrono::milliseconds{500}),
                     .hash_seed = 1,
                     .versions = &versions});
  std::unique_ptr<Store> store;
  std::vector<std::array<std::byte, 16>> names;
  std::array<std::byte, 64> value{};
};
void store_find(benchmark::State& state) {
  FilledStore filled(static_cast<std::size_t>(state.range(0)));
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(filled.store->find(filled.names[at]));
    at = (at + 7919) % filled.names.size();
  }
}
BENCHMARK(store_find)->Arg(100)->Arg(10'000)->Arg(1'000'000);
void store_put(benchmark::State& state) {
  FilledStore filled(static_cast<std::size_t>(state.range(0)));
  std::size_t at = 0;
  for (auto _ : state) {
    filled.store->set_now(verbena::ticks_now());
    const Store::Change change = filled.store->put(filled.names[at], filled.value, Store::kAnyVersion);
    if (change.status != verbena::Status::kOk) return state.SkipWithError("put failed");
    at = (at + 7919) % filled.names.size();
  }
}
BENCHMARK(store_put)->Arg(100)->Arg(10'000)->Arg(1'000'000);

void decode_request(benchmark::State& state) {
  std::array<std::byte, sizeof(wire::RequestHead) + 16 + 64> frame{};
  const wire::RequestHead head{.op = wire::Op::kPut, .key_length = 16, .id = 1};
  std::memcpy(frame.data(), &head, sizeof head);
  for (auto _ : state) {
    wire::Request request;
    if (wire::decode_request(frame, request) != verbena::Status::kOk) return state.SkipWithError("refused");
    benchmark::DoNotOptimize(request);
  }
}
BENCHMARK(decode_request);

void hash(benchmark::State& state) {
  const std::vector<std::byte> bytes(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(verbena::hash64(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(hash)->Arg(16)->Arg(128)->Arg(4096);

}  // namespace

BENCHMARK_MAIN();
