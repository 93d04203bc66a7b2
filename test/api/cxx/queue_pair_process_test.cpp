// Queue pairs between two processes, of which one is killed.
#include "ends.hpp"

#include <verbena/queue_pair.hpp>

#include <peer.hpp>
#include <result.hpp>
#include <transport.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace verbena::rdma {
namespace {

/// What the peer prints, a byte a line: where its queue pair is, and its window.
struct Told {
  typed::QueuePairEndpoint endpoint{};
  Window window{};
};

Result<std::unique_ptr<Node>> open_node() {
  return Node::open(
      {.transport = test::transport_under_test(), .address = test::is_soft_under_test() ? "127.0.0.1" : ""});
}

/// Bytes as numbers, with a space behind each.
template <class Value>
std::string as_numbers(const Value& value) {
  std::array<std::uint8_t, sizeof value> bytes{};
  std::memcpy(bytes.data(), &value, sizeof value);
  std::string text;
  for (const std::uint8_t byte : bytes) text += std::to_string(byte) + ' ';
  return text;
}

typed::QueuePairEndpoint endpoint_of(const char* numbers) {
  std::array<std::uint8_t, sizeof(typed::QueuePairEndpoint)> bytes{};
  for (std::uint8_t& byte : bytes) {
    char* end = nullptr;
    byte = static_cast<std::uint8_t>(std::strtoul(numbers, &end, 10));
    numbers = end;
  }
  typed::QueuePairEndpoint endpoint;
  std::memcpy(&endpoint, bytes.data(), sizeof endpoint);
  return endpoint;
}

/// Connects to the endpoint, and lets itself be written to until it is killed.
template <class Type>
int wait_for_writes(const char* numbers) {
  const auto node = open_node();
  if (!node) return 1;
  auto region = typed::MemoryRegion<std::uint64_t>::allocate(**node, 512);
  auto prepared = typed::QueuePairBuilder<Type>().on(**node).prepare();
  if (!region || !prepared) return 2;
  std::puts(as_numbers(Told{.endpoint = prepared->describe(), .window = region->window()}).c_str());
  std::fflush(stdout);
  const auto pair = std::move(*prepared).connect(endpoint_of(numbers), Deadline::after(std::chrono::seconds{20}));
  if (!pair) return 3;
  std::puts("1");
  std::fflush(stdout);
  for (;;) pause();
}

template <class Type>
class QueuePairProcess : public testing::Test {};
using TypesOfPeers = testing::Types<typed::Rc, typed::Uc>;
TYPED_TEST_SUITE(QueuePairProcess, TypesOfPeers);

TYPED_TEST(QueuePairProcess, ThePeersDeathGivesEverythingBack) {
  constexpr bool kIsReliable = std::same_as<TypeParam, typed::Rc>;
  const auto node = open_node();
  ASSERT_OK(node);
  auto region = typed::MemoryRegion<std::uint64_t>::allocate(**node, 1024);
  ASSERT_OK(region);
  auto prepared = typed::QueuePairBuilder<TypeParam>().on(**node).prepare();
  ASSERT_OK(prepared);
  test::Peer peer({kIsReliable ? "reliable" : "unreliable", as_numbers(prepared->describe())});
  std::array<std::uint8_t, sizeof(Told)> bytes{};
  for (std::uint8_t& byte : bytes) {
    const int number = peer.read_number();
    ASSERT_GE(number, 0) << "the peer has ended";
    byte = static_cast<std::uint8_t>(number);
  }
  Told told;
  std::memcpy(&told, bytes.data(), sizeof told);
  const Deadline limit = Deadline::after(std::chrono::seconds{40});
  auto pair = std::move(*prepared).connect(told.endpoint, limit);
  ASSERT_OK(pair);
  ASSERT_EQ(peer.read_number(), 1);
  const auto there = pair->template open<std::uint64_t>(told.window, limit);
  ASSERT_OK(there);

  auto waiting = pair->post_receive(std::move(*region->take(0, 8)));
  auto before = pair->post_write(std::move(*region->take(8, 100)), *there);
  ASSERT_EQ(before.wait(limit), Status::kOk) << error_detail();
  { const auto back = std::move(before); }
  peer.kill();
  if (!kIsReliable && !test::is_soft_under_test()) return;  // Nobody hears of it.
  Status status = Status::kOk;
  while (status == Status::kOk && !limit.passed()) {
    auto written = pair->post_write(std::move(*region->take(8, 100)), *there);
    status = written.wait(limit);
    EXPECT_EQ(written.take()->size(), 100u) << "it is given back";
  }
  EXPECT_TRUE(status == Status::kPeerLost || status == Status::kFlushed) << to_string(status);
  EXPECT_NE(waiting.wait(limit), Status::kOk);
  EXPECT_EQ(waiting.take()->size(), 8u);
  EXPECT_EQ(pair->failure(), Status::kPeerLost);
  EXPECT_EQ(region->held(), 0u);
}

}  // namespace

int be_queue_pair(std::string_view type, const char* numbers) {
  return type == "reliable" ? wait_for_writes<typed::Rc>(numbers) : wait_for_writes<typed::Uc>(numbers);
}

}  // namespace verbena::rdma
