// Blocking reads and writes of 8 bytes of registered memory, from C, from C++ and typed; awaited reads; batches.
#include "engine.hpp"
#include "operations.hpp"

#include <verbena/rdma.h>
#include <verbena/coroutines.hpp>
#include <verbena/queue_pair.hpp>
#include <verbena/rdma.hpp>
#include <verbena/typed.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace verbena::budget {

namespace {

constexpr std::size_t kWords = 512;
constexpr std::size_t kAtOnce = 32;

[[nodiscard]] rdma::Options on_soft(std::uint16_t port) {
  return {.transport = {.device = "soft"}, .address = "127.0.0.1", .port = port, .window_bytes = kWords * 8};
}

bool nothing(Meter& meter) {
  return meter.rounds([] { return true; }, [] {}, [] { return true; });
}

// --- C

void require(int code) {
  if (code == RDMA_OK) return;
  std::fprintf(stderr, "budget: %s\n", rdmaErrorDetail());
  std::_Exit(EXIT_FAILURE);
}

/// A client of a listener, its registered memory and the listener's window.
struct ClientInC {
  ClientInC() {
    const Background background;
    RdmaOptions options;
    rdmaOptionsInit(&options);
    options.device = "soft";
    options.window_bytes = kWords * 8;
    RdmaListener* listener = nullptr;
    require(rdmaServer(&listener, "127.0.0.1", 0));
    require(rdmaServerSetOptions(listener, &options));
    require(rdmaServerStart(listener));
    conn = rdmaConn();
    require(rdmaConnSetOptions(conn, &options));
    require(rdmaConnect(conn, "127.0.0.1", rdmaServerPort(listener)));
    memory = rdmaConnRegMem(conn, kWords * 8);
    if (memory == nullptr) require(RDMA_ERR_NO_MEMORY);
    require(rdmaConnPeerWindow(conn, &window));
  }
  RdmaConn* conn = nullptr;
  const RdmaMemory* memory = nullptr;
  RdmaWindow window{};
};

template <int (*kCall)(RdmaConn*, std::uint64_t, std::uint32_t, std::uint64_t, std::uint32_t, std::uint32_t)>
bool in_c(Meter& meter) {
  static const ClientInC client;
  const auto local = reinterpret_cast<std::uintptr_t>(client.memory->addr);
  return meter.alone([&] {
    return kCall(client.conn, local, client.memory->lkey, client.window.addr, client.window.rkey, 8) == RDMA_OK;
  });
}

// --- C++

struct ClientInCxx {
  ClientInCxx() {
    const Background background;
    listener = must(rdma::Listener::start(on_soft(0)));
    conn = must(rdma::Connection::connect(on_soft(listener->port())));
    memory = must(conn->allocate(kWords * 8));
  }
  std::unique_ptr<rdma::Listener> listener;
  std::unique_ptr<rdma::Connection> conn;
  rdma::Memory memory;
};

bool read_in_cxx(Meter& meter) {
  static const ClientInCxx client;
  const rdma::Local local = client.memory.at(0, 8);
  const rdma::Remote remote = client.conn->peer_window().at(0, 8);
  return meter.alone([&] { return client.conn->read(local, remote) == Status::kOk; });
}
bool write_in_cxx(Meter& meter) {
  static const ClientInCxx client;
  const rdma::Local local = client.memory.at(0, 8);
  const rdma::Remote remote = client.conn->peer_window().at(0, 8);
  return meter.alone([&] { return client.conn->write(local, remote) == Status::kOk; });
}

// --- typed

struct ClientTyped {
  ClientTyped() {
    const Background background;
    node = must(rdma::Node::open({.transport = {.device = "soft"}, .address = "127.0.0.1"}));
    rdma::Options options = on_soft(0);
    options.node = node.get();
    listener = must(rdma::Listener::start(options));
    options.port = listener->port();
    link = must(typed::Link::over(must(rdma::Connection::connect(options))));
    region = must(typed::MemoryRegion<std::uint64_t>::allocate(*node, kWords));
    segment = must(region.take(0, 1));
    word = must(must(typed::RemoteSegment<std::uint64_t>::of(link.peer_window())).part(0, 1));
  }
  std::unique_ptr<rdma::Node> node;
  std::unique_ptr<rdma::Listener> listener;
  typed::Link link;
  typed::MemoryRegion<std::uint64_t> region;
  typed::Segment<std::uint64_t> segment;
  typed::RemoteSegment<std::uint64_t> word;
};

bool read_typed(Meter& meter) {
  static ClientTyped client;
  return meter.alone([&] { return client.link.read(client.segment, client.word) == Status::kOk; });
}
bool write_typed(Meter& meter) {
  static ClientTyped client;
  return meter.alone([&] { return client.link.write(client.segment, client.word) == Status::kOk; });
}

coroutine::Task<Status> read_often(coroutine::Loop& /*loop*/, ClientTyped& client, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    auto [status, segment] = co_await coroutine::read(client.link, std::move(client.segment), client.word);
    client.segment = std::move(segment);
    if (status != Status::kOk) co_return status;
  }
  co_return Status::kOk;
}
bool read_awaited(Meter& meter) {
  static ClientTyped client;
  static const auto loop = must(coroutine::Loop::make());
  return meter.series([&](std::uint64_t count) {
    const Deadline limit = Deadline::after(std::chrono::minutes{1});
    return sync_wait(*loop, read_often(*loop, client, count), limit) == Status::kOk;
  });
}

// --- batches

/// Two queue pairs of this thread, and a batch of writes of one into memory of the other's.
struct Batch {
  using Rc = typed::Rc;
  Batch() {
    const Background background;
    node = must(rdma::Node::open({.transport = {.device = "soft"}, .address = "127.0.0.1"}));
    const auto builder = typed::QueuePairBuilder<Rc>().on(*node);
    auto left = must(builder.prepare());
    auto right = must(builder.prepare());
    const auto of_left = left.describe();
    auto a = must(std::move(left).begin(right.describe()));
    auto b = must(std::move(right).begin(of_left));
    const Deadline limit = Deadline::after(std::chrono::seconds{30});
    Status met = Status::kAgain;
    while (met == Status::kAgain && !limit.passed()) {
      const Status of_a = a.step();
      const Status of_b = b.step();
      met = of_a != Status::kOk ? of_a : of_b;
    }
    pair = must(std::move(a).finish(limit));
    peer = must(std::move(b).finish(limit));
    region = must(typed::MemoryRegion<std::uint64_t>::allocate(*node, 2 * kAtOnce));
    const auto there = must(pair.open<std::uint64_t>(region.window()));
    writes = must(pair.batch<std::uint64_t>(kAtOnce));
    for (std::size_t i = 0; i < kAtOnce; ++i)
      if (writes->add_write(must(region.take(i, 1)), there.unsafe_part(kAtOnce + i, 1)) != Status::kOk)
        std::_Exit(EXIT_FAILURE);
  }
  std::unique_ptr<rdma::Node> node;
  typed::Ready<Rc> pair;
  typed::Ready<Rc> peer;
  typed::MemoryRegion<std::uint64_t> region;
  std::optional<typed::Batch<Rc, std::uint64_t>> writes;
};

bool batch(Meter& meter) {
  static Batch batch;
  return meter.alone([] { return batch.writes->post() == Status::kOk && batch.writes->wait() == Status::kOk; });
}

constexpr std::array kOneSided = {
    Operation{"nothing", &nothing},
    Operation{"read-c", &in_c<&rdmaSyncReadSignaled>},
    Operation{"write-c", &in_c<&rdmaSyncWriteSignaled>},
    Operation{"read-cxx", &read_in_cxx},
    Operation{"write-cxx", &write_in_cxx},
    Operation{"read-typed", &read_typed},
    Operation{"write-typed", &write_typed},
    Operation{"read-awaited", &read_awaited},
    Operation{"batch-32", &batch},
};

}  // namespace

std::span<const Operation> one_sided_operations() { return kOneSided; }

}  // namespace verbena::budget
