// Connections of the C++ API, sealed: a client that drives its own in this thread, and the listener's thread, which is
// counted with it.
#include "sealed.hpp"

#include <pattern.hpp>
#include <transport.hpp>

#include <verbena/rdma.hpp>

#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace verbena::rdma {
namespace {

using test::expect_sealed;

/// Asks the other side to export memory by physical address; it answers with the address.
constexpr std::uint32_t kExport = 99;

/// Sends back what comes.
class Echo final : public Handler {
 public:
  void on_message(Connection& connection, const Message& message) noexcept override {
    if (message.immediate == kExport) return export_memory(connection);
    if (connection.send(message.data) != Status::kOk) connection.close();
  }

 private:
  void export_memory(Connection& connection) noexcept {
    auto memory = connection.allocate(1 << 20);
    if (memory) exported_ = std::move(*memory);
    const auto first = connection.export_physical(exported_);
    const std::uint64_t address = first ? *first : 0;
    if (connection.send(std::as_bytes(std::span(&address, 1))) != Status::kOk) connection.close();
  }
  Memory exported_;
};

class SealedBlocking : public testing::Test {
 protected:
  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    Options options{.transport = test::transport_under_test(),
                    .address = test::is_soft_under_test() ? "127.0.0.1" : "",
                    .port = 0,
                    .handler = &echo_,
                    .receive = Receive::kHandler};
    auto listener = Listener::start(options);
    ASSERT_TRUE(listener.has_value()) << listener.error().text();
    listener_ = std::move(*listener);
    options.port = listener_->port();
    options.handler = nullptr;
    options.receive = Receive::kQueue;
    auto connected = Connection::connect(options);
    ASSERT_TRUE(connected.has_value()) << connected.error().text();
    client = std::move(*connected);
    auto memory = client->allocate(1 << 20);
    ASSERT_TRUE(memory.has_value()) << memory.error().text();
    memory_ = std::move(*memory);
  }
  void TearDown() override { test::why_calls_are_due.clear(); }
  [[nodiscard]] static std::uint64_t rounds(std::uint64_t count) {
    return test::device_under_test() == nullptr ? count : count / 50 + 1;
  }
  [[nodiscard]] Local here(std::size_t length) const { return memory_.at(0, length); }
  [[nodiscard]] Remote there(std::size_t length) const { return client->peer_window().at(0, length); }

  std::unique_ptr<Connection> client;

 private:
  Echo echo_;
  std::unique_ptr<Listener> listener_;
  Memory memory_;
};

TEST_F(SealedBlocking, BlockingOneSidedCalls) {
  std::vector<std::byte> own(200'000);
  for (const std::size_t length : {std::size_t{8}, std::size_t{4096}, own.size()}) {
    SCOPED_TRACE(length);
    const std::uint64_t count = rounds(length > 4096 ? 50 : 500);
    const std::span<std::byte> bytes = std::span(own).first(length);
    expect_sealed("read", count, [&] { return client->read(here(length), there(length)) == Status::kOk; });
    expect_sealed("write", count, [&] { return client->write(here(length), there(length)) == Status::kOk; });
    expect_sealed("read within", count, [&] {
      return client->read(here(length), there(length), Deadline::after(std::chrono::seconds{20})) == Status::kOk;
    });
    expect_sealed("read of any memory", count, [&] { return client->read(bytes) == Status::kOk; });
    expect_sealed("write of any memory", count, [&] { return client->write(bytes) == Status::kOk; });
    expect_sealed("read of a part", count, [&] { return client->read(bytes, there(length)) == Status::kOk; });
  }
}

TEST_F(SealedBlocking, ByPhysicalAddress) {
  std::uint64_t address = 0;
  const std::span<std::byte> answer = std::as_writable_bytes(std::span(&address, 1));
  ASSERT_EQ(client->send_with_immediate(answer, kExport), Status::kOk);
  ASSERT_TRUE(client->receive(answer).has_value());
  if (address == 0) GTEST_SKIP() << "this process may not see physical addresses: that takes CAP_SYS_ADMIN";
  const Physical first{address};
  std::vector<std::byte> own(4096);
  ASSERT_EQ(client->read(own, first), Status::kOk);  // Imports the run.
  for (const std::size_t length : {std::size_t{8}, std::size_t{64}, own.size()}) {
    SCOPED_TRACE(length);
    const std::span<std::byte> bytes = std::span(own).first(length);
    expect_sealed("read", rounds(500), [&] { return client->read(here(length), first) == Status::kOk; });
    expect_sealed("write", rounds(500), [&] { return client->write(here(length), first) == Status::kOk; });
    expect_sealed("read of any memory", rounds(500), [&] { return client->read(bytes, first) == Status::kOk; });
    expect_sealed("write of any memory", rounds(500), [&] { return client->write(bytes, first) == Status::kOk; });
  }
  expect_sealed("fetch_add", rounds(500), [&] { return client->fetch_add(first, 1).has_value(); });
  expect_sealed("compare_swap", rounds(500), [&] { return client->compare_swap(first, 0, 0).has_value(); });
  expect_sealed("started", rounds(100), [&] {
    return client->start_write(here(64), first, 1) == Status::kOk && client->complete().has_value() &&
           client->start_read(here(64), first, 2) == Status::kOk && client->complete().has_value();
  });
}

TEST_F(SealedBlocking, Atomics) {
  expect_sealed("fetch_add", rounds(500), [&] { return client->fetch_add(there(8), 1).has_value(); });
  expect_sealed("compare_swap", rounds(500), [&] { return client->compare_swap(there(8), 0, 0).has_value(); });
}

TEST_F(SealedBlocking, WhatIsStarted) {
  std::array<Completion, 32> completions;
  expect_sealed("32 writes and reads", rounds(100), [&] {
    for (std::uint64_t i = 0; i < completions.size(); ++i) {
      const Status status =
          i % 2 == 0 ? client->start_write(here(64), there(64), i) : client->start_read(here(64), there(64), i);
      if (status != Status::kOk) return false;
    }
    const Deadline limit = Deadline::after(std::chrono::seconds{20});
    std::size_t count = 0;
    while (count < completions.size() && !limit.passed()) count += client->poll(std::span(completions).subspan(count));
    return count == completions.size();
  });
}

TEST_F(SealedBlocking, TransfersAndMessagesThatGrow) {
  std::vector<std::byte> own(1 << 20);
  const std::span<std::byte> all(own);
  ASSERT_EQ(client->send(all.first(1)), Status::kOk);
  ASSERT_TRUE(client->receive(all).has_value());
  test::expect_unallocated_as_it_grows("echo", own.size(), [&](std::size_t length) {
    return client->send(all.first(length)) == Status::kOk && client->receive(all).has_value();
  });
  test::expect_unallocated_as_it_grows("written", own.size(), [&](std::size_t length) {
    return client->write_with_immediate(all.first(length), 1) == Status::kOk && client->receive(all).has_value();
  });
  test::expect_unallocated_as_it_grows(
      "read", own.size(), [&](std::size_t length) { return client->read(all.first(length)) == Status::kOk; });
  test::expect_unallocated_as_it_grows(
      "write", own.size(), [&](std::size_t length) { return client->write(all.first(length)) == Status::kOk; });
  test::expect_unallocated_as_it_grows("registered", own.size(), [&](std::size_t length) {
    return client->read(here(length), there(length)) == Status::kOk;
  });
}

// The listener's thread may sleep meanwhile: its system calls are its right.
TEST_F(SealedBlocking, MessagesAndTheirHandler) {
  test::why_calls_are_due = "the listener's thread waits for what comes";
  std::vector<std::byte> own(60'000);
  for (const std::size_t length : {std::size_t{8}, std::size_t{4096}, own.size()}) {
    SCOPED_TRACE(length);
    const std::span<std::byte> bytes = std::span(own).first(length);
    expect_sealed("echo", rounds(200),
                  [&] { return client->send(bytes) == Status::kOk && client->receive(bytes).has_value(); });
    expect_sealed("written", rounds(200), [&] {
      return client->write_with_immediate(bytes, 1) == Status::kOk && client->receive(own).has_value();
    });
  }
}

}  // namespace
}  // namespace verbena::rdma
