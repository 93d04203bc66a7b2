#include "c/listener.hpp"

#include "base/error.hpp"
#include "host/thread.hpp"

#include <new>
#include <utility>

namespace verbena::c {
namespace {

/// For finding the device of an address.
constexpr std::chrono::milliseconds kFabricTimeout{5000};
constexpr std::chrono::seconds kIdle{60};

}  // namespace

Result<void> Listener::start() {
  if (is_running()) return fail(Status::kBusy, "rdmaServerStart", 0, "the listener runs already");
  // Whoever runs as root could read this process anyway.
  constexpr std::array<uid_t, 1> kTrusted{0};
  VERBENA_ASSIGN(auto runtime, Runtime::open({.fabric = {.transport = settings.transport,
                                                         .role = link::Role::kServer,
                                                         .address = address_,
                                                         .port = port_,
                                                         .allowed_uids = kTrusted},
                                              .max_connections = settings.max_connections,
                                              .deadline = Deadline::after(kFabricTimeout)},
                                             Driver::kThread));
  VERBENA_ASSIGN(auto link, runtime->fabric().listen({.port = port_}));
  VERBENA_TRY(runtime->start());
  {
    const std::lock_guard lock(mutex_);
    runtime_ = std::move(runtime);
  }
  link_ = std::move(link);
  auto started = host::start_thread("verbena-accept", [this] { accept_clients(); });
  if (!started) {
    stop();
    return std::unexpected(started.error());
  }
  thread_ = std::move(*started);
  is_running_.store(true, std::memory_order_release);
  return {};
}

void Listener::stop() noexcept {
  if (link_) link_->close();
  if (thread_.joinable()) thread_.join();
  if (runtime_) runtime_->stop();
  link_.reset();
  // Connections that somebody keeps keep it.
  std::shared_ptr<Runtime> stopped;
  {
    const std::lock_guard lock(mutex_);
    stopped = std::move(runtime_);
  }
  stopped.reset();
  is_running_.store(false, std::memory_order_release);
  is_running_.notify_all();
}

void Listener::accept_clients() noexcept {
  for (;;) {
    auto incoming = link_->next(Deadline::after(kIdle));
    if (!incoming) {
      if (incoming.error().status() == Status::kTimedOut) continue;
      return;  // Closed; or the listener's own descriptors are broken, and nobody new can come.
    }
    const auto served = [&]() -> Result<void> {
      try {
        return serve(*incoming);
      } catch (const std::bad_alloc&) {
        return fail(Status::kNoMemory, "rdmaConnect", 0, "the server has no memory for another connection");
      }
    }();
    if (!served) incoming->reject(served.error().status(), served.error().text());
  }
}

// One at a time: a client that stalls holds up the others for the deadline of a step.
Result<void> Listener::serve(link::Incoming& incoming) {
  auto conn = std::make_unique<RdmaConn>(settings, callbacks);
  VERBENA_TRY(conn->accept(runtime_, incoming));
  runtime_->adopt(*conn);
  (void)conn.release();
  return {};
}

}  // namespace verbena::c
