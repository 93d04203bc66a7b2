// Micro-benchmarks of whole operations on the soft NIC: two NICs of this process, one thread for both ends, so that no
// cache line moves. What remains is our instructions.
#include "engine/engine.hpp"
#include "message/message.hpp"
#include "nic/registered_arena.hpp"
#include "remote/remote.hpp"

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

struct End {
  std::unique_ptr<nic::Nic> nic = take_or_die(nic::open_soft({}));
  nic::Pd pd{*nic, take_or_die(nic->alloc_pd())};
  std::unique_ptr<engine::CompletionLoop> loop = take_or_die(engine::CompletionLoop::create(*nic, {}));
};

/// Connects two of a kind, links or channels.
template <class Connection>
void connect(Connection& a, Connection& b) {
  const link::Endpoint end_a = take_or_die(a.local_endpoint({}));
  const link::Endpoint end_b = take_or_die(b.local_endpoint({}));
  or_die(a.connect(end_a, end_b, soon()));
  or_die(b.connect(end_b, end_a, soon()));
}

struct Links {
  Links() {
    constexpr int kAccess =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    connect(*mine, *theirs);
    or_die(here.open(*a.nic, a.pd.get(), {.size_bytes = kBytes}, {}, IBV_ACCESS_LOCAL_WRITE));
    or_die(there.open(*b.nic, b.pd.get(), {.size_bytes = kBytes, .share = host::Share::kReadWrite},
                      {.to = nic::Grant::To::kAnyPeer}, kAccess));
    window = there.window();
    or_die(mine->import_window(window, soon()));
  }
  [[nodiscard]] remote::LocalSpan local(std::size_t bytes) const { return {here.data(), bytes, here.lkey()}; }
  [[nodiscard]] remote::RemoteSpan remote(std::size_t bytes) const { return {window.address, bytes, window.rkey}; }
  static constexpr std::size_t kBytes = 1 << 20;
  End a, b;
  nic::RegisteredArena here, there;
  nic::Window window;
  std::unique_ptr<remote::Link> mine = take_or_die(remote::Link::create(*a.loop, a.pd.get(), {}));
  std::unique_ptr<remote::Link> theirs = take_or_die(remote::Link::create(*b.loop, b.pd.get(), {}));
};

/// Argument: bytes.
void blocking_read(benchmark::State& state) {
  const Links links;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state)
    if (links.mine->read(links.local(bytes), links.remote(bytes), Deadline::never()) != Status::kOk)
      return state.SkipWithError("read");
}
BENCHMARK(blocking_read)->Arg(8)->Arg(4096);

void blocking_write(benchmark::State& state) {
  const Links links;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state)
    if (links.mine->write(links.local(bytes), links.remote(bytes), Deadline::never()) != Status::kOk)
      return state.SkipWithError("write");
}
BENCHMARK(blocking_write)->Arg(8)->Arg(4096);

void blocking_fetch_add(benchmark::State& state) {
  const Links links;
  std::uint64_t old = 0;
  const remote::RemoteWord word{links.window.address, links.window.rkey};
  for (auto _ : state)
    if (links.mine->fetch_add(word, 1, old, Deadline::never()) != Status::kOk) return state.SkipWithError("fetch_add");
}
BENCHMARK(blocking_fetch_add);

/// Argument: operations a doorbell. Time is of one operation.
void started_writes(benchmark::State& state) {
  const Links links;
  const auto batch = static_cast<std::uint64_t>(state.range(0));
  std::array<remote::Completion, 64> done;
  while (state.KeepRunningBatch(static_cast<benchmark::IterationCount>(batch))) {
    {
      const engine::Batch held(*links.mine);
      for (std::uint64_t i = 0; i < batch; ++i)
        if (links.mine->start_write(links.local(8), links.remote(8), i) != Status::kOk)
          return state.SkipWithError("start_write");
    }
    while (links.mine->under_way() != 0) links.a.loop->poll();
    (void)links.mine->take(done);
  }
}
BENCHMARK(started_writes)->Arg(1)->Arg(4)->Arg(16)->Arg(32);

struct Receiver final : message::Handler {
  void on_message(message::Channel&, std::span<const std::byte>) noexcept override { ++count; }
  void on_fragment(message::Channel&, const message::Fragment&) noexcept override {}
  void on_complete(message::Channel&, std::uint64_t, Status) noexcept override {}
  void on_failure(message::Channel&, Status) noexcept override {}
  std::uint64_t count = 0;
};

enum class Sends : std::uint8_t { kOneByOne, kHeld };

/// Arguments: bytes, messages before the receiver's turn. Time is of one message.
template <Sends kSends>
void messages(benchmark::State& state) {
  End a, b;
  Receiver sender, receiver;
  const auto mine = take_or_die(message::Channel::create(*a.loop, a.pd.get(), {.depth = 256}, sender));
  const auto theirs = take_or_die(message::Channel::create(*b.loop, b.pd.get(), {.depth = 256}, receiver));
  connect(*mine, *theirs);
  a.loop->poll();
  b.loop->poll();
  const std::array<std::byte, 1024> bytes{};
  const auto body = std::span(bytes).first(static_cast<std::size_t>(state.range(0)));
  const auto batch = static_cast<std::uint64_t>(state.range(1));
  std::uint64_t sent = 0;
  while (state.KeepRunningBatch(static_cast<benchmark::IterationCount>(batch))) {
    if constexpr (kSends == Sends::kHeld) mine->hold();
    for (std::uint64_t i = 0; i < batch; ++i)
      if (mine->send(body) != Status::kOk) return state.SkipWithError("send");
    if constexpr (kSends == Sends::kHeld) mine->release();
    sent += batch;
    while (receiver.count != sent) b.loop->poll();
    a.loop->poll();
  }
}
BENCHMARK(messages<Sends::kOneByOne>)->Name("messages")->Args({8, 1})->Args({8, 16})->Args({8, 32})->Args({200, 16});
BENCHMARK(messages<Sends::kHeld>)->Name("held_messages")->Args({8, 16})->Args({8, 32})->Args({200, 16});

}  // namespace
