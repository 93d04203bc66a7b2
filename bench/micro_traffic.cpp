// Micro-benchmarks of whole operations on the soft NIC: two NICs of this process, one thread for both ends, so that no
// cache line moves. What remains is our instructions.
#include "channel/bounce.hpp"
#include "channel/connection.hpp"
#include "engine/loop.hpp"
#include "nic/buffer_pool.hpp"
#include "nic/registered_arena.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace {

using namespace verbena;

template <class T>
T take_or_die(Result<T>&& result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "micro: %s\n", result.error().text());
  std::exit(EXIT_FAILURE);
}
void or_die(Result<void>&& result) {
  if (result) return;
  std::fprintf(stderr, "micro: %s\n", result.error().text());
  std::exit(EXIT_FAILURE);
}
[[nodiscard]] Deadline soon() { return Deadline::after(std::chrono::seconds{10}); }

/// Counts what it is told.
struct Counter final : channel::Handler {
  void on_message(channel::Connection&, std::span<const std::byte>) noexcept override { ++messages; }
  void on_complete(channel::Connection&, const channel::Completion&) noexcept override { ++completions; }
  void on_end(channel::Connection&, Status) noexcept override {}
  std::uint64_t messages = 0;
  std::uint64_t completions = 0;
};

struct End {
  explicit End(const channel::Options& options = {}) {
    or_die(bounce.open(buffers, {}));
    connection = take_or_die(
        channel::Connection::create(*loop, {.pd = pd.get(), .buffers = &buffers, .bounce = &bounce}, options, counter));
  }
  std::unique_ptr<nic::Nic> nic = take_or_die(nic::open_soft({}));
  nic::Pd pd{*nic, take_or_die(nic->alloc_pd())};
  std::unique_ptr<engine::CompletionLoop> loop = take_or_die(engine::CompletionLoop::create(*nic, {}));
  nic::BufferPool buffers{*nic, pd.get()};
  channel::Bounce bounce;
  Counter counter;
  std::unique_ptr<channel::Connection> connection;
};

void connect(End& a, End& b) {
  const link::Endpoint end_a = take_or_die(a.connection->describe({}));
  const link::Endpoint end_b = take_or_die(b.connection->describe({}));
  or_die(a.connection->meet(end_b));
  or_die(b.connection->meet(end_a));
  or_die(a.connection->connect(soon()));
  or_die(b.connection->connect(soon()));
  a.connection->attach();
  b.connection->attach();
  a.loop->poll();
  b.loop->poll();
}

struct Memories {
  Memories() {
    constexpr int kAccess =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    connect(a, b);
    or_die(here.open(*a.nic, a.pd.get(), {.size_bytes = kBytes}, {}, IBV_ACCESS_LOCAL_WRITE));
    or_die(there.open(*b.nic, b.pd.get(), {.size_bytes = kBytes, .share = host::Share::kReadWrite},
                      {.to = nic::Grant::To::kAnyPeer}, kAccess));
    window = there.window();
    or_die(mine().import_window(window, soon()));
  }
  [[nodiscard]] channel::Connection& mine() const noexcept { return *a.connection; }
  [[nodiscard]] channel::LocalSpan local(std::size_t bytes) const { return {here.data(), bytes, here.lkey()}; }
  [[nodiscard]] channel::RemoteSpan remote(std::size_t bytes) const { return {window.address, bytes, window.rkey}; }
  static constexpr std::size_t kBytes = 1 << 20;
  End a, b;
  nic::RegisteredArena here, there;
  nic::Window window;
};

/// Argument: bytes.
void blocking_read(benchmark::State& state) {
  const Memories of;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state)
    if (of.mine().read(of.local(bytes), of.remote(bytes), Deadline::never()) != Status::kOk)
      return state.SkipWithError("read");
}
BENCHMARK(blocking_read)->Arg(8)->Arg(4096);

void blocking_write(benchmark::State& state) {
  const Memories of;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state)
    if (of.mine().write(of.local(bytes), of.remote(bytes), Deadline::never()) != Status::kOk)
      return state.SkipWithError("write");
}
BENCHMARK(blocking_write)->Arg(8)->Arg(4096);

void blocking_fetch_add(benchmark::State& state) {
  const Memories of;
  std::uint64_t old = 0;
  for (auto _ : state)
    if (of.mine().change({.compare_add = 1}, of.remote(8), old, Deadline::never()) != Status::kOk)
      return state.SkipWithError("fetch_add");
}
BENCHMARK(blocking_fetch_add);

/// Argument: operations a doorbell. Time is of one operation.
void started_writes(benchmark::State& state) {
  const Memories of;
  const auto batch = static_cast<std::uint64_t>(state.range(0));
  std::uint64_t started = 0;
  while (state.KeepRunningBatch(static_cast<benchmark::IterationCount>(batch))) {
    {
      const engine::Batch held(of.mine());
      for (std::uint64_t i = 0; i < batch; ++i)
        if (of.mine().start_write(of.local(8), of.remote(8), i) != Status::kOk)
          return state.SkipWithError("start_write");
    }
    started += batch;
    while (of.a.counter.completions != started) of.a.loop->poll();
  }
}
BENCHMARK(started_writes)->Arg(1)->Arg(4)->Arg(16)->Arg(32);

enum class Sends : std::uint8_t { kOneByOne, kHeld };

/// Arguments: bytes, messages before the receiver's turn. Time is of one message.
template <Sends kSends>
void messages(benchmark::State& state) {
  End a({.depth = 256});
  End b({.depth = 256});
  connect(a, b);
  channel::Connection& mine = *a.connection;
  const std::array<std::byte, 1024> bytes{};
  const auto body = std::span(bytes).first(static_cast<std::size_t>(state.range(0)));
  const auto batch = static_cast<std::uint64_t>(state.range(1));
  std::uint64_t sent = 0;
  while (state.KeepRunningBatch(static_cast<benchmark::IterationCount>(batch))) {
    if constexpr (kSends == Sends::kHeld) mine.hold();
    for (std::uint64_t i = 0; i < batch; ++i)
      if (mine.send(body) != Status::kOk) return state.SkipWithError("send");
    if constexpr (kSends == Sends::kHeld) mine.release();
    sent += batch;
    while (b.counter.messages != sent) b.loop->poll();
    a.loop->poll();
  }
}
BENCHMARK(messages<Sends::kOneByOne>)->Name("messages")->Args({8, 1})->Args({8, 16})->Args({8, 32})->Args({200, 16});
BENCHMARK(messages<Sends::kHeld>)->Name("held_messages")->Args({8, 16})->Args({8, 32})->Args({200, 16});

}  // namespace
