// Servers of the RDMALib interface: in one process, each initialized by a thread, or one each.
#pragma once

#include <device.hpp>

#include <verbena/compat/nova.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace verbena::test {

using namespace std::chrono_literals;
using nova::NovaError;
using nova::NovaMemManager;
using nova::NovaRDMARCStore;
using nova::QPEndPoint;
using rdmaio::RdmaCtrl;

/// For any machine that is only slow.
inline constexpr auto kNovaPatience = 60s;
/// Below the ports that the kernel gives out.
inline constexpr int kPort = 7490;

/// A loopback address of this process's own, so that no other one has its ports.
[[nodiscard]] inline std::string own_address() {
  const auto id = static_cast<unsigned>(getpid());
  return "127." + std::to_string(128 + (id >> 16) % 128) + '.' + std::to_string(id >> 8 & 255) + '.' +
         std::to_string(id & 255);
}

[[nodiscard]] inline mesh::Options options_at(const std::string& address) {
  mesh::Options options{.address = address, .join_timeout = kNovaPatience};
  options.device = device_under_test() != nullptr ? device_under_test() : "soft";
  return options;
}

/// All but `self`.
[[nodiscard]] inline std::vector<QPEndPoint> endpoints_at(const std::string& address,
                                                          const std::vector<std::uint32_t>& ids, std::uint32_t self,
                                                          std::uint32_t thread = 0) {
  std::vector<QPEndPoint> endpoints;
  for (const std::uint32_t id : ids)
    if (id != self)
      endpoints.push_back({.host = {.server_id = id, .ip = address, .port = 0}, .server_id = id, .thread_id = thread});
  return endpoints;
}

/// What a callback was told.
struct Event {
  ibv_wc_opcode type{};
  std::uint64_t wr_id = 0;
  int server = 0;
  char* buf = nullptr;
  std::uint32_t imm = 0;
  std::uint64_t number = 0;  ///< The first 8 bytes of a message.
};

/// Keeps what it is told, then does `then`.
struct Recorder final : nova::NovaMsgCallback {
  bool ProcessRDMAWC(ibv_wc_opcode type, std::uint64_t wr_id, int server, char* buf, std::uint32_t imm) override {
    Event event{.type = type, .wr_id = wr_id, .server = server, .buf = buf, .imm = imm};
    if (type == IBV_WC_RECV) std::memcpy(&event.number, buf, sizeof event.number);
    events.push_back(event);
    count = events.size();
    if (then) then(event);
    return true;
  }
  std::vector<Event> events;
  std::atomic<std::size_t> count{0};  ///< Of `events`, for other threads.
  std::function<void(const Event&)> then;
};

/// The parameters of a store, with values that do.
struct StoreOptions {
  std::uint32_t max_num_sends = 8;
  std::uint32_t max_msg_size = 256;
  std::uint32_t doorbell_batch_size = 1;
};

struct Server {
  std::unique_ptr<RdmaCtrl> ctrl;
  std::vector<char> memory = std::vector<char>(64 * 1024);
  Recorder callback;
  std::unique_ptr<NovaRDMARCStore> store;

  void open(const std::vector<std::uint32_t>& ids, std::uint32_t id, const StoreOptions& options,
            const std::string& address, mesh::Options mesh) {
    ctrl = std::make_unique<RdmaCtrl>(static_cast<int>(id), kPort, std::move(mesh));
    store = std::make_unique<NovaRDMARCStore>(nullptr, 0, endpoints_at(address, ids, id), options.max_num_sends,
                                              options.max_msg_size, options.doorbell_batch_size, id, memory.data(),
                                              memory.size(), kPort, &callback);
  }
  void poll() {
    (void)store->PollSQ();
    (void)store->PollRQ();
  }
  void send(int to, std::uint64_t number, std::uint32_t imm = 0) {
    char* const buf = store->GetSendBuf(to);
    std::memcpy(buf, &number, sizeof number);
    (void)store->PostSend(buf, sizeof number, to, imm);
  }
};

/// The error of a call; kOk: it threw none.
template <class Call>
[[nodiscard]] Status status_of(Call&& call) {
  try {
    call();
  } catch (const NovaError& error) {
    EXPECT_NE(error.what(), std::string());
    return error.status();
  }
  return Status::kOk;
}

class Servers : public testing::Test {
 protected:
  void start(const std::vector<std::uint32_t>& ids, const StoreOptions& options = {},
             std::chrono::milliseconds timeout = kNovaPatience) {
    const std::string address = own_address();
    mesh::Options mesh = options_at(address);
    mesh.join_timeout = timeout;
    for (const std::uint32_t id : ids)
      servers.emplace_back(std::make_unique<Server>())->open(ids, id, options, address, mesh);
    std::vector<std::jthread> threads;
    std::vector<Status> statuses(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i)
      threads.emplace_back(
          [&, i] { statuses[i] = status_of([&] { servers[i]->store->Init(servers[i]->ctrl.get()); }); });
    threads.clear();
    for (const Status status : statuses) ASSERT_EQ(status, Status::kOk) << to_string(status);
  }
  /// All poll until it is so.
  template <class Done>
  [[nodiscard]] bool until(Done&& done) {
    const Deadline deadline = Deadline::after(kNovaPatience);
    while (!done()) {
      if (deadline.passed()) return false;
      for (const auto& server : servers) server->poll();
    }
    return true;
  }
  /// Calls `body` while threads poll others: a post may wait for what their polls do. Their events are theirs
  /// meanwhile.
  template <class Body>
  void while_polling(const std::vector<std::size_t>& others, Body&& body) {
    std::vector<std::jthread> threads;
    for (const std::size_t other : others)
      threads.emplace_back([&server = *servers[other]](const std::stop_token& stop) {
        EXPECT_EQ(status_of([&] {
                    while (!stop.stop_requested()) server.poll();
                  }),
                  Status::kOk);
      });
    body();
  }
  /// Polls one server until another, which a thread polls, has been called back so often.
  [[nodiscard]] bool until_called_back(std::size_t polled, std::size_t other, std::size_t count) {
    const Deadline deadline = Deadline::after(kNovaPatience);
    while (servers[other]->callback.count < count && !deadline.passed()) servers[polled]->poll();
    return servers[other]->callback.count == count;
  }
  [[nodiscard]] std::vector<Event>& events(std::size_t server) { return servers[server]->callback.events; }

  std::vector<std::unique_ptr<Server>> servers;
};

}  // namespace verbena::test
