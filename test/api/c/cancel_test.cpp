// Threads that are cancelled in calls of the library: the request waits until the call has returned.
#include "every_call.hpp"

#include <cancelled.hpp>

#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <thread>

namespace verbena::test {
namespace {

using namespace std::chrono_literals;

/// The call that is under way, for the one who looks at a test that was ended by it.
std::atomic<const char*> last_call = "none";

/// Every call of `all` and its end, in a thread that is cancelled.
template <class All, class... Timeout>
bool every_call_returns(All& all, Timeout... timeout) {
  return runs_while_cancelled([&] {
    all.each(timeout..., [](const char* call, const Outcome&) { last_call = call; });
    all.end([](const char* call) { last_call = call; });
  });
}

TEST(Cancel, CallsOfCReturnFirst) {
  Echo echo;
  EveryCallOfC all(echo);
  EXPECT_TRUE(every_call_returns(all, 50u));
}

TEST(Cancel, CallsOfCThatAThreadCarriesOutReturnFirst) {
  Echo echo;
  Mailbox<int> ended;
  EveryCallOfC all(echo, &ended);
  EXPECT_TRUE(every_call_returns(all, 50u));
}

TEST(Cancel, CallsOfCxxReturnFirst) {
  Echo echo;
  EveryCallOfCxx all(echo);
  EXPECT_TRUE(every_call_returns(all, 50ms));
}

TEST(Cancel, CallsOfTheStoreReturnFirst) {
  EveryCallOfTheStore all;
  EXPECT_TRUE(every_call_returns(all));
}

// The peer is lost under the call, which tears the connection down.
TEST(Cancel, ACallWhoseConnectionEndsReturnsFirst) {
  auto echo = std::make_unique<Echo>();
  const auto connection = connect_to(echo->port());
  ASSERT_TRUE(connection);
  std::atomic<bool> is_called = false;
  std::thread stop([&] {
    is_called.wait(false);
    echo.reset();
  });
  std::array<std::byte, 64> bytes{};
  Status status = Status::kOk;
  EXPECT_TRUE(runs_while_cancelled([&] {
    is_called = true;
    is_called.notify_one();
    const auto received = connection->receive(bytes, Deadline::after(20s));
    status = received ? Status::kOk : received.error();
  }));
  stop.join();
  EXPECT_EQ(status, Status::kClosed);
}

TEST(Cancel, AThreadThatWaitsIsCancelledWhenItsCallReturns) {
  Echo echo;
  const auto connection = connect_to(echo.port());
  ASSERT_TRUE(connection);
  struct Run {
    rdma::Connection& connection;
    std::atomic<bool> is_called = false;
    Status status = Status::kOk;
  } run{.connection = *connection};
  pthread_t thread{};
  const auto wait = [](void* argument) -> void* {
    auto& of = *static_cast<Run*>(argument);
    std::array<std::byte, 64> bytes{};
    of.is_called = true;
    of.is_called.notify_one();
    const auto received = of.connection.receive(bytes, Deadline::after(200ms));
    of.status = received ? Status::kOk : received.error();
    pthread_testcancel();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, wait, &run), 0);
  run.is_called.wait(false);
  ASSERT_EQ(pthread_cancel(thread), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_EQ(run.status, Status::kTimedOut);
  EXPECT_TRUE(connection->is_connected());
}

}  // namespace
}  // namespace verbena::test

int main(int argc, char** argv) {
  std::set_terminate([] {
    std::fprintf(stderr, "cancelled inside the library; the last call that returned: %s\n",
                 verbena::test::last_call.load());
    std::abort();
  });
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
