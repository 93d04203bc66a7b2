// Connections, waits and a store through a jump between the processor's counter and the system's clock: as after a
// virtual machine was moved to another host. The system's clock of this program is the test's to set.
#include "base/clock.hpp"

#include <verbena/log.h>
#include <verbena/kv.hpp>
#include <verbena/rdma.hpp>

#include <transport.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>

namespace {
std::atomic<std::int64_t> added_s = 0;
}

extern "C" {
int __real_clock_gettime(clockid_t clock, timespec* now);
// NOLINTNEXTLINE(bugprone-reserved-identifier): the linker's name for it.
int __wrap_clock_gettime(clockid_t clock, timespec* now) {
  const int result = __real_clock_gettime(clock, now);
  if (clock == CLOCK_MONOTONIC) now->tv_sec += added_s.load();
  return result;
}
}

namespace verbena::test {
namespace {

using namespace std::chrono_literals;

struct Echo final : rdma::Handler {
  void on_message(rdma::Connection& connection, const rdma::Message& message) noexcept override {
    (void)connection.send(message.data);
  }
};

rdma::Options options_of(rdma::Handler* handler, std::uint16_t port) {
  rdma::Options options;
  options.transport = transport_under_test();
  options.address = "127.0.0.1";
  options.port = port;
  options.handler = handler;
  options.receive = handler != nullptr ? rdma::Receive::kHandler : rdma::Receive::kQueue;
  options.timeout = options.connect_timeout = 20s;
  return options;
}

// In one process as one test: a clock that was given up stays so.
TEST(ClockJump, WaitsEndAndConnectionsGoOn) {
  if (std::strstr(clock_description(), "counter, which is invariant") == nullptr)
    GTEST_SKIP() << "the processor's counter does not serve on this machine: " << clock_description();
  static std::string logged;
  static std::mutex mutex;
  verbena_set_log(
      [](verbena_log_level, const char* line, void*) {
        const std::lock_guard lock(mutex);
        logged += line;
      },
      nullptr, VERBENA_LOG_WARNING);
  Echo echo;
  const auto listener = rdma::Listener::start(options_of(&echo, 0));
  ASSERT_TRUE(listener) << listener.error().text();
  const auto connection = rdma::Connection::connect(options_of(nullptr, (*listener)->port()));
  ASSERT_TRUE(connection) << connection.error().text();
  kv::ServerOptions store;
  store.port = 0;
  store.memory_bytes = std::size_t{16} << 20;
  store.pin_workers = false;
  const auto server = kv::Server::start(store);
  ASSERT_TRUE(server) << server.error().text();
  kv::ClientOptions dial;
  dial.port = (*server)->port();
  const auto client = kv::Client::connect(dial);
  ASSERT_TRUE(client) << client.error().text();
  const auto key = std::as_bytes(std::span("key", 3));
  std::array<std::byte, 64> bytes{};
  ASSERT_EQ((*client)->put(key, bytes).status, Status::kOk);

  const std::uint64_t before = ticks_now();
  const Deadline in_two_hours = Deadline::after(2h);
  added_s = 3600;  // By the counter the hour has not passed: it stood still.
  for (int i = 0; i < 20 && std::strstr(clock_description(), "jumped") == nullptr; ++i) {
    const auto received = (*connection)->receive(bytes, Deadline::after(50ms));
    ASSERT_FALSE(received);
    ASSERT_EQ(received.error(), Status::kTimedOut);
  }
  EXPECT_NE(std::strstr(clock_description(), "jumped"), nullptr) << "no wait has seen it";
  {
    const std::lock_guard lock(mutex);
    EXPECT_NE(logged.find("the clock is CLOCK_MONOTONIC"), std::string::npos) << logged;
  }
  const double passed_s = static_cast<double>(ticks_now() - before) / ticks_per_us() * 1e-6;
  EXPECT_GT(passed_s, 3599);
  EXPECT_LT(passed_s, 3800);
  EXPECT_FALSE(in_two_hours.passed());
  EXPECT_LT(in_two_hours.left(), 61min);

  // All that was connected before goes on, and its waits end.
  EXPECT_TRUE((*connection)->is_connected());
  EXPECT_EQ((*connection)->send(bytes), Status::kOk);
  EXPECT_TRUE((*connection)->receive(bytes).has_value());
  EXPECT_EQ((*connection)->receive(bytes, Deadline::after(50ms)).error(), Status::kTimedOut);
  EXPECT_EQ((*client)->get(key, bytes).status, Status::kOk);
  EXPECT_EQ((*client)->put(key, bytes).status, Status::kOk);
  const auto another = rdma::Connection::connect(options_of(nullptr, (*listener)->port()));
  EXPECT_TRUE(another) << another.error().text();
  EXPECT_EQ((*server)->statistics().clients_lost, 0u);
  verbena_set_log(nullptr, nullptr, VERBENA_LOG_WARNING);
}

}  // namespace
}  // namespace verbena::test
