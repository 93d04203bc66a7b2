// Micro-benchmarks of the typed API beside what it checks: elements, parts and blocking reads of 8 bytes, on the soft
// NIC. A listener of this process, whose thread sleeps, and a client that this thread drives.
#include <verbena/coroutines.hpp>
#include <verbena/typed.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
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

/// The loop of coroutines; null when that failed.
std::unique_ptr<coroutine::Loop> loop_of(benchmark::State& state) {
  std::unique_ptr<coroutine::Loop> loop;
  (void)Typed::keep(state, coroutine::Loop::make(), loop);
  return loop;
}
void run(benchmark::State& state, coroutine::Loop& loop, coroutine::Task<Status> task) {
  const Status status = sync_wait(loop, std::move(task), Deadline::after(std::chrono::minutes{1}));
  if (status != Status::kOk) state.SkipWithError(to_string(status));
}

coroutine::Task<Status> await_reads(coroutine::Loop& /*loop*/, benchmark::State& state, Typed& typed,
                                    typed::RemoteSegment<const std::uint64_t> word) {
  while (state.KeepRunning()) {
    auto [status, segment] = co_await coroutine::read(typed.link, std::move(typed.segment), word);
    typed.segment = std::move(segment);
    if (status != Status::kOk) co_return status;
  }
  co_return Status::kOk;
}
/// The same as typed_read, awaited.
void typed_awaited_read(benchmark::State& state) {
  Typed typed(state);
  const auto word = typed.there.part(0, 1);
  if (const auto loop = loop_of(state); loop != nullptr) run(state, *loop, await_reads(*loop, state, typed, *word));
}
BENCHMARK(typed_awaited_read);

coroutine::Task<Status> await_started_reads(coroutine::Loop& /*loop*/, benchmark::State& state, Typed& typed,
                                            typed::RemoteSegment<const std::uint64_t> word) {
  while (state.KeepRunning()) {
    auto [status, segment] = co_await coroutine::finish(typed.link.start_read(std::move(typed.segment), word));
    typed.segment = std::move(segment);
    if (status != Status::kOk) co_return status;
  }
  co_return Status::kOk;
}
/// The same as typed_started_read, awaited: the coroutine is suspended, and resumed by its loop.
void typed_awaited_started_read(benchmark::State& state) {
  Typed typed(state);
  const auto word = typed.there.part(0, 1);
  if (const auto loop = loop_of(state); loop != nullptr)
    run(state, *loop, await_started_reads(*loop, state, typed, *word));
}
BENCHMARK(typed_awaited_started_read);

void coroutine_frame(benchmark::State& state) {
  std::unique_ptr<coroutine::FramePool> pool;
  if (!Typed::keep(state, coroutine::FramePool::make(), pool)) return;
  for (auto _ : state) {
    void* const frame = pool->allocate(256);
    benchmark::DoNotOptimize(frame);
    coroutine::FramePool::release(frame);
  }
}
BENCHMARK(coroutine_frame);

coroutine::Task<Status> nothing(coroutine::Loop& /*loop*/) { co_return Status::kOk; }
coroutine::Task<Status> await_tasks(coroutine::Loop& loop, benchmark::State& state) {
  while (state.KeepRunning())
    if (const Status status = co_await nothing(loop); status != Status::kOk) co_return status;
  co_return Status::kOk;
}
/// A task of one statement: its frame, its start and its end.
void coroutine_task(benchmark::State& state) {
  if (const auto loop = loop_of(state); loop != nullptr) run(state, *loop, await_tasks(*loop, state));
}
BENCHMARK(coroutine_task);

coroutine::Task<Status> yield_always(coroutine::Loop& /*loop*/, benchmark::State& state) {
  while (state.KeepRunning())
    if (const Status status = co_await coroutine::yield(); status != Status::kOk) co_return status;
  co_return Status::kOk;
}
/// One turn of a loop with one coroutine.
void coroutine_turn(benchmark::State& state) {
  if (const auto loop = loop_of(state); loop != nullptr) run(state, *loop, yield_always(*loop, state));
}
BENCHMARK(coroutine_turn);

}  // namespace
