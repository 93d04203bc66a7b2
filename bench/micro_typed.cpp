// Micro-benchmarks of the typed API beside what it checks: elements, parts and blocking reads of 8 bytes, on the soft
// NIC. A listener of this process, whose thread sleeps, and a client that this thread drives.
#include <verbena/typed.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace {

using namespace verbena;

constexpr std::size_t kCount = 512;

/// A connected link, a region and the peer's window; empty when that failed, with the reason in `why`.
struct Typed {
  explicit Typed(benchmark::State& state) {
    rdma::Options options{
        .transport = {.device = "soft"}, .address = "127.0.0.1", .port = 0, .window_bytes = kCount * 8};
    if (!keep(state, rdma::Node::open({.transport = options.transport, .address = options.address}), node)) return;
    options.node = node.get();
    if (!keep(state, rdma::Listener::start(options), listener)) return;
    options.port = listener->port();
    std::unique_ptr<rdma::Connection> connection;
    if (!keep(state, rdma::Connection::connect(options), connection)) return;
    if (!keep(state, typed::Link::over(std::move(connection)), link)) return;
    if (!keep(state, typed::MemoryRegion<std::uint64_t>::allocate(*node, kCount), region)) return;
    there = typed::RemoteSegment<std::uint64_t>::of(link.peer_window()).value_or(there);
    if (auto taken = region.take()) segment = std::move(*taken);
  }
  template <class Value>
  static bool keep(benchmark::State& state, Result<Value>&& result, Value& into) {
    if (!result) return state.SkipWithError(result.error().text()), false;
    into = std::move(*result);
    return true;
  }

  std::unique_ptr<rdma::Node> node;
  std::unique_ptr<rdma::Listener> listener;
  typed::Link link;
  typed::MemoryRegion<std::uint64_t> region;
  typed::Segment<std::uint64_t> segment;
  typed::RemoteSegment<std::uint64_t> there;
};

void typed_get(benchmark::State& state) {
  const Typed typed(state);
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(at);
    benchmark::DoNotOptimize(typed.segment.get(at));
  }
}
BENCHMARK(typed_get);

void typed_unsafe_get(benchmark::State& state) {
  const Typed typed(state);
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(at);
    benchmark::DoNotOptimize(typed.segment.unsafe_get(at));
  }
}
BENCHMARK(typed_unsafe_get);

void typed_part(benchmark::State& state) {
  const Typed typed(state);
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(at);
    benchmark::DoNotOptimize(typed.there.part(at, 1));
  }
}
BENCHMARK(typed_part);

void typed_unsafe_part(benchmark::State& state) {
  const Typed typed(state);
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(at);
    benchmark::DoNotOptimize(typed.there.unsafe_part(at, 1));
  }
}
BENCHMARK(typed_unsafe_part);

/// A segment of its own for a part, and the part given back: two changes of the region's bookkeeping.
void typed_split_and_join(benchmark::State& state) {
  Typed typed(state);
  while (state.KeepRunning()) {
    auto back = typed.segment.split_at(kCount / 2);
    if (!back || typed.segment.join(std::move(*back)) != Status::kOk) return state.SkipWithError("split");
  }
}
BENCHMARK(typed_split_and_join);

/// The same part without one.
void typed_unsafe_local(benchmark::State& state) {
  Typed typed(state);
  std::size_t at = kCount / 2;
  for (auto _ : state) {
    benchmark::DoNotOptimize(at);
    benchmark::DoNotOptimize(typed.segment.unsafe_local(at, kCount / 2));
  }
}
BENCHMARK(typed_unsafe_local);

void typed_share(benchmark::State& state) {
  Typed typed(state);
  const typed::ConstSegment<std::uint64_t> shared = std::move(typed.segment).freeze();
  for (auto _ : state) {
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): the copy is what is measured.
    const typed::ConstSegment<std::uint64_t> copy = shared;
    benchmark::DoNotOptimize(copy);
  }
}
BENCHMARK(typed_share);

void typed_read(benchmark::State& state) {
  Typed typed(state);
  const auto word = typed.there.part(0, 1);
  while (state.KeepRunning())
    if (typed.link.read(typed.segment, *word) != Status::kOk) return state.SkipWithError("read");
}
BENCHMARK(typed_read);

/// Reads the same memory by rdma::Connection, without the checks of typed_read.
void typed_unsafe_read(benchmark::State& state) {
  Typed typed(state);
  rdma::Connection& connection = typed.link.unsafe_connection();
  const rdma::Local local = typed.segment.unsafe_local(0, 1);
  const rdma::Remote remote = typed.there.unsafe_part(0, 1).remote();
  while (state.KeepRunning())
    if (connection.read(local, remote) != Status::kOk) return state.SkipWithError("read");
}
BENCHMARK(typed_unsafe_read);

void typed_started_read(benchmark::State& state) {
  Typed typed(state);
  const auto word = typed.there.part(0, 1);
  while (state.KeepRunning()) {
    auto [status, segment] = typed.link.start_read(std::move(typed.segment), *word).finish();
    typed.segment = std::move(segment);
    if (status != Status::kOk) return state.SkipWithError("read");
  }
}
BENCHMARK(typed_started_read);

void plain_started_read(benchmark::State& state) {
  Typed typed(state);
  rdma::Connection& connection = typed.link.unsafe_connection();
  const rdma::Local local = typed.segment.unsafe_local(0, 1);
  const rdma::Remote remote = typed.there.unsafe_part(0, 1).remote();
  while (state.KeepRunning()) {
    if (connection.start_read(local, remote, 1) != Status::kOk) return state.SkipWithError("read");
    if (!connection.complete()) return state.SkipWithError("complete");
  }
}
BENCHMARK(plain_started_read);

}  // namespace
