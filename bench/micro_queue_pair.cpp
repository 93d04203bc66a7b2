// Micro-benchmarks of queue pairs of one's own, on the soft NIC: writes of 8 bytes one by one, 32 at a time, and as a
// batch that was made once. Both ends are this process's, and this thread's.
#include <verbena/queue_pair.hpp>

#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace {

using namespace verbena;
using Words = typed::Segment<std::uint64_t>;

constexpr std::size_t kAtOnce = 32;

/// Two queue pairs, and segments for writes of one into memory of the other's.
template <class Type>
struct Written {
  explicit Written(benchmark::State& state) {
    if (!keep(state, rdma::Node::open({.transport = {.device = "soft"}, .address = "127.0.0.1"}), node)) return;
    const auto builder = typed::QueuePairBuilder<Type>().on(*node);
    std::optional<typed::Prepared<Type>> left;
    std::optional<typed::Prepared<Type>> right;
    if (!keep(state, builder.prepare(), left) || !keep(state, builder.prepare(), right)) return;
    const auto of_left = left->describe();
    std::optional<typed::Connecting<Type>> a;
    std::optional<typed::Connecting<Type>> b;
    if (!keep(state, std::move(*left).begin(right->describe()), a) || !keep(state, std::move(*right).begin(of_left), b))
      return;
    const Deadline limit = Deadline::after(std::chrono::seconds{5});
    Status met = Status::kAgain;
    while (met == Status::kAgain && !limit.passed()) {
      const Status of_a = a->step();
      const Status of_b = b->step();
      met = of_a != Status::kOk ? of_a : of_b;
    }
    if (!keep(state, std::move(*a).finish(limit), pair) || !keep(state, std::move(*b).finish(limit), peer)) return;
    if (!keep(state, typed::MemoryRegion<std::uint64_t>::allocate(*node, 2 * kAtOnce), region)) return;
    if (!keep(state, pair.template open<std::uint64_t>(region.window()), all)) return;
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      segments[i] = region.take(i, 1).value_or(Words());
      there[i] = all.unsafe_part(kAtOnce + i, 1);
    }
  }
  template <class Value, class Into>
  static bool keep(benchmark::State& state, Result<Value>&& result, Into& into) {
    if (!result) return state.SkipWithError(result.error().text()), false;
    into = std::move(*result);
    return true;
  }

  std::unique_ptr<rdma::Node> node;
  typed::Ready<Type> pair;
  typed::Ready<Type> peer;
  typed::MemoryRegion<std::uint64_t> region;
  typed::RemoteSegment<std::uint64_t> all;
  std::array<Words, kAtOnce> segments;
  std::array<typed::RemoteSegment<std::uint64_t>, kAtOnce> there;
};

void count(benchmark::State& state, std::int64_t each) { state.SetItemsProcessed(state.iterations() * each); }

template <class Type>
void queue_pair_write(benchmark::State& state) {
  Written<Type> written(state);
  while (state.KeepRunning()) {
    auto [status, segment] = written.pair.post_write(std::move(written.segments[0]), written.there[0]).finish();
    written.segments[0] = std::move(segment);
    if (status != Status::kOk) return state.SkipWithError("write");
  }
  count(state, 1);
}
BENCHMARK(queue_pair_write<typed::Rc>);
BENCHMARK(queue_pair_write<typed::Uc>);

template <class Type>
void queue_pair_writes(benchmark::State& state) {
  Written<Type> written(state);
  std::array<std::optional<typed::Operation<Words>>, kAtOnce> operations;
  while (state.KeepRunning()) {
    for (std::size_t i = 0; i < kAtOnce; ++i)
      operations[i] = written.pair.post_write(std::move(written.segments[i]), written.there[i]);
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      auto [status, segment] = std::move(*operations[i]).finish();
      written.segments[i] = std::move(segment);
      if (status != Status::kOk) return state.SkipWithError("write");
    }
  }
  count(state, kAtOnce);
}
BENCHMARK(queue_pair_writes<typed::Rc>);
BENCHMARK(queue_pair_writes<typed::Uc>);

template <class Type>
void queue_pair_batch(benchmark::State& state) {
  Written<Type> written(state);
  auto batch = written.pair.template batch<std::uint64_t>(kAtOnce);
  if (!batch) return state.SkipWithError("batch");
  for (std::size_t i = 0; i < kAtOnce; ++i)
    if (batch->add_write(std::move(written.segments[i]), written.there[i]) != Status::kOk)
      return state.SkipWithError("add");
  while (state.KeepRunning())
    if (batch->post() != Status::kOk || batch->wait() != Status::kOk) return state.SkipWithError("write");
  count(state, kAtOnce);
}
BENCHMARK(queue_pair_batch<typed::Rc>);
BENCHMARK(queue_pair_batch<typed::Uc>);

template <class Type>
void queue_pair_unsafe_writes(benchmark::State& state) {
  Written<Type> written(state);
  while (state.KeepRunning())
    for (std::size_t i = 0; i < kAtOnce; ++i)
      if (written.pair.unsafe_post_write(written.segments[i], written.there[i]) != Status::kOk)
        return state.SkipWithError("write");
  count(state, kAtOnce);
}
BENCHMARK(queue_pair_unsafe_writes<typed::Rc>);
BENCHMARK(queue_pair_unsafe_writes<typed::Uc>);

}  // namespace
