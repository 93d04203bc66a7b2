// Micro-benchmarks of the blocking reads of 8 bytes that users call, from C and from C++, by key and by physical
// address, on the soft NIC: a listener of this process, whose thread sleeps, and a client that this thread drives.
#include <verbena/rdma.h>
#include <verbena/rdma.hpp>

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace {

using namespace verbena;

rdma::Options on_soft(std::uint16_t port) {
  return {.transport = {.device = "soft"}, .address = "127.0.0.1", .port = port, .window_bytes = 4096};
}

void cxx_read(benchmark::State& state) {
  const auto listener = rdma::Listener::start(on_soft(0));
  if (!listener) return state.SkipWithError(listener.error().text());
  const auto conn = rdma::Connection::connect(on_soft((*listener)->port()));
  if (!conn) return state.SkipWithError(conn.error().text());
  std::array<std::byte, 8> bytes{};
  while (state.KeepRunning())
    if ((*conn)->read(std::span(bytes)) != Status::kOk) return state.SkipWithError("read");
}
BENCHMARK(cxx_read);

void cxx_registered_read(benchmark::State& state) {
  const auto listener = rdma::Listener::start(on_soft(0));
  if (!listener) return state.SkipWithError(listener.error().text());
  const auto conn = rdma::Connection::connect(on_soft((*listener)->port()));
  if (!conn) return state.SkipWithError(conn.error().text());
  const auto memory = (*conn)->allocate(4096);
  if (!memory) return state.SkipWithError(memory.error().text());
  const rdma::Local local = memory->at(0, 8);
  const rdma::Remote remote = (*conn)->peer_window().at(0, 8);
  while (state.KeepRunning())
    if ((*conn)->read(local, remote) != Status::kOk) return state.SkipWithError("read");
}
BENCHMARK(cxx_registered_read);

/// Exports memory by physical address to whoever asks, and answers with the address; 0 if it may not.
class Exporter final : public rdma::Handler {
 public:
  void on_message(rdma::Connection& conn, const rdma::Message& /*message*/) noexcept override {
    auto memory = conn.allocate(4096);
    if (memory) memory_ = std::move(*memory);
    const auto exported = conn.export_physical(memory_);
    const std::uint64_t address = exported ? *exported : 0;
    if (conn.send(std::as_bytes(std::span(&address, 1))) != Status::kOk) conn.close();
  }

 private:
  rdma::Memory memory_;
};

void cxx_physical_read(benchmark::State& state) {
  Exporter exporter;
  rdma::Options options = on_soft(0);
  options.handler = &exporter;
  options.receive = rdma::Receive::kHandler;
  const auto listener = rdma::Listener::start(options);
  if (!listener) return state.SkipWithError(listener.error().text());
  const auto conn = rdma::Connection::connect(on_soft((*listener)->port()));
  if (!conn) return state.SkipWithError(conn.error().text());
  std::uint64_t address = 0;
  const auto bytes = std::as_writable_bytes(std::span(&address, 1));
  if ((*conn)->send(bytes) != Status::kOk || !(*conn)->receive(bytes)) return state.SkipWithError("no answer");
  if (address == 0) return state.SkipWithError("the process may not see physical addresses");
  const auto memory = (*conn)->allocate(4096);
  if (!memory) return state.SkipWithError(memory.error().text());
  const rdma::Local local = memory->at(0, 8);
  while (state.KeepRunning())
    if ((*conn)->read(local, rdma::Physical{address}) != Status::kOk) return state.SkipWithError("read");
}
BENCHMARK(cxx_physical_read);

/// A C listener, which exports as Exporter does, and its client; null when that failed, with the reason in
/// rdmaErrorDetail.
class Both {
 public:
  Both() {
    RdmaOptions options;
    rdmaOptionsInit(&options);
    options.device = "soft";
    options.window_bytes = 4096;
    conn_.reset(rdmaConn());
    RdmaListener* listener = nullptr;
    int code = rdmaServer(&listener, "127.0.0.1", 0);
    listener_.reset(listener);
    if (code == RDMA_OK) code = rdmaServerSetOptions(listener, &options);
    if (code == RDMA_OK) code = rdmaServerOnMessage(listener, export_memory, nullptr);
    if (code == RDMA_OK) code = rdmaServerStart(listener);
    if (code == RDMA_OK) code = rdmaConnSetOptions(conn_.get(), &options);
    if (code == RDMA_OK) code = rdmaConnect(conn_.get(), "127.0.0.1", rdmaServerPort(listener));
    if (code != RDMA_OK) conn_.reset();
  }
  [[nodiscard]] RdmaConn* conn() const noexcept { return conn_.get(); }

 private:
  static void export_memory(RdmaConn* conn, const RdmaMessage* /*message*/, void* /*user*/) {
    std::uint64_t address = 0;
    const RdmaMemory* const memory = rdmaConnRegMem(conn, 4096);
    if (memory == nullptr || rdmaPAExport(conn, memory, &address) != RDMA_OK) address = 0;
    if (rdmaConnSend(conn, &address, sizeof address) == 0) rdmaConnClose(conn);
  }
  struct End {
    void operator()(RdmaListener* listener) const noexcept { rdmaServerRelease(listener); }
    void operator()(RdmaConn* conn) const noexcept { rdmaConnClose(conn); }
  };
  std::unique_ptr<RdmaListener, End> listener_;
  std::unique_ptr<RdmaConn, End> conn_;
};

void c_read(benchmark::State& state) {
  const Both both;
  if (both.conn() == nullptr) return state.SkipWithError(rdmaErrorDetail());
  std::array<std::byte, 8> bytes{};
  while (state.KeepRunning())
    if (rdmaConnReadAt(both.conn(), 0, bytes.data(), bytes.size()) != RDMA_OK) return state.SkipWithError("read");
}
BENCHMARK(c_read);

void c_registered_read(benchmark::State& state) {
  const Both both;
  if (both.conn() == nullptr) return state.SkipWithError(rdmaErrorDetail());
  const RdmaMemory* const memory = rdmaConnRegMem(both.conn(), 4096);
  RdmaWindow window;
  if (memory == nullptr || rdmaConnPeerWindow(both.conn(), &window) != RDMA_OK)
    return state.SkipWithError(rdmaErrorDetail());
  const auto local = reinterpret_cast<std::uintptr_t>(memory->addr);
  while (state.KeepRunning())
    if (rdmaSyncReadSignaled(both.conn(), local, memory->lkey, window.addr, window.rkey, 8) != RDMA_OK)
      return state.SkipWithError("read");
}
BENCHMARK(c_registered_read);

void c_physical_read(benchmark::State& state) {
  const Both both;
  if (both.conn() == nullptr) return state.SkipWithError(rdmaErrorDetail());
  std::uint64_t address = 0;
  if (rdmaConnSend(both.conn(), &address, sizeof address) == 0 ||
      rdmaConnRecv(both.conn(), &address, sizeof address, nullptr, -1) != RDMA_OK)
    return state.SkipWithError(rdmaErrorDetail());
  if (address == 0) return state.SkipWithError("the process may not see physical addresses");
  const RdmaMemory* const memory = rdmaConnRegMem(both.conn(), 4096);
  if (memory == nullptr) return state.SkipWithError(rdmaErrorDetail());
  const auto local = reinterpret_cast<std::uintptr_t>(memory->addr);
  while (state.KeepRunning())
    if (rdmaPASyncReadSignaled(both.conn(), local, memory->lkey, address, 8) != RDMA_OK)
      return state.SkipWithError("read");
}
BENCHMARK(c_physical_read);

}  // namespace
