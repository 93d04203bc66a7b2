// A server of the store whose memory the test writes: an index and items of any bytes, and messages that say what the
// test wants.
#pragma once

#include "channel/connection.hpp"
#include "kv/index.hpp"
#include "kv/item.hpp"
#include "kv/wire.hpp"
#include "link/fabric.hpp"
#include "nic/registered_arena.hpp"
#include "node/device.hpp"
#include "node/shard.hpp"
#include "result.hpp"
#include "transport.hpp"

#include <verbena/kv.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

namespace verbena::kv::testing_support {

/// One worker, one client. What it exports is read by the client's thread when NICs are made of software, so the test
/// writes it between calls of the client.
class FakeServer final : private channel::Handler, private engine::Duty {
 public:
  static constexpr std::uint64_t kBuckets = 16;
  static constexpr std::size_t kBytes = std::size_t{256} << 10;
  static constexpr std::uint64_t kSeed = 0x1234;
  static constexpr std::uint64_t kVersion = 77;  ///< Of all that it says by message.
  static constexpr std::string_view kByMessage = "by message";

  /// Answers requests in its own way where it returns true. In the shard's thread.
  using Answer = std::function<bool(channel::Connection& connection, std::span<const std::byte> body)>;
  /// Changes what the server says of itself.
  using Hello = std::function<void(wire::ServerHello& hello)>;

  explicit FakeServer(Answer answer = {}, Hello change = {}) : answer_(std::move(answer)), change_(std::move(change)) {
    auto fabric = link::Fabric::open({.transport = test::transport_under_test()}, soon());
    EXPECT_OK(fabric);
    fabric_ = std::move(*fabric);
    device_ = node::Device::of(fabric_->shared_nic()).value();
    EXPECT_OK(region_.open(device_->nic(), device_->pd(),
                           {.size_bytes = kBytes, .share = host::Share::kReadOnly, .name = "fake"},
                           {.to = nic::Grant::To::kAnyPeer}, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    shard_ = node::Shard::create(device_, {.loop = {.max_connections = 2, .cqe = 4096}}).value();
    listener_ = fabric_->listen({.port = 0}).value();
    EXPECT_OK(shard_->start(*this));
    accepting_ = std::jthread([this] { accept(); });
  }
  ~FakeServer() {
    listener_->close();
    accepting_.join();
    shard_->stop();
    connection_.reset();
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  [[nodiscard]] std::uint16_t port() const { return listener_->port(); }
  [[nodiscard]] std::span<std::byte> memory() const { return {region_.data(), kBytes}; }
  [[nodiscard]] unsigned asked() const { return asked_; }
  /// What its answers to gets say of the location.
  void tell(std::uint64_t entry) { entry_ = entry; }

  [[nodiscard]] static std::uint64_t hash(Key key) { return hash_of(key, kSeed); }
  [[nodiscard]] Bucket& bucket(std::uint64_t number) const {
    return *reinterpret_cast<Bucket*>(region_.data() + number * sizeof(Bucket));
  }
  [[nodiscard]] Bucket& first(Key key) const { return bucket(first_bucket(hash(key), kBuckets)); }
  [[nodiscard]] Bucket& second(Key key) const {
    const std::uint64_t h = hash(key);
    return bucket(other_bucket(first_bucket(h, kBuckets), tag_of(h), kBuckets));
  }
  [[nodiscard]] std::byte* at(std::uint64_t line) const { return region_.data() + line * kLineBytes; }
  [[nodiscard]] std::uint64_t& word(std::uint64_t line, std::size_t number) const {
    return reinterpret_cast<std::uint64_t*>(at(line))[number];
  }

  /// Makes an item, with the value of a large one at `place`, and returns the entry that `of` would have.
  [[nodiscard]] std::uint64_t make(std::uint64_t line, Key key, std::string_view value, std::uint64_t version,
                                   unsigned flags = 0, ValuePlace place = {}) const {
    const ItemShape shape{.value_length = value.size(), .key_length = key.size(), .flags = flags};
    std::byte* const item = at(line);
    std::memset(item, 0, shape.tail_offset());
    std::memcpy(item + sizeof(ItemHeader), key.data(), key.size());
    if (shape.is_inline()) {
      if (!value.empty()) std::memcpy(item + shape.tail_offset(), value.data(), value.size());
    } else {
      std::memcpy(item + shape.tail_offset(), &place, sizeof place);
      if (place.offset <= kBytes - value.size()) std::memcpy(region_.data() + place.offset, value.data(), value.size());
    }
    const auto put = [&](std::size_t offset, std::uint64_t what) { std::memcpy(item + offset, &what, sizeof what); };
    put(offsetof(ItemHeader, shape), shape.pack());
    put(offsetof(ItemHeader, checksum), checksum_of(item, shape.bytes(), version));
    put(offsetof(ItemHeader, state), state_word(ItemState::kLive, version));
    return Entry{.tag = tag_of(hash(key)), .lines = shape.lines(), .line = line}.pack();
  }

 private:
  [[nodiscard]] static Deadline soon() { return Deadline::after(std::chrono::seconds{20}); }

  void accept() {
    auto handshake = listener_->next(soon());
    if (!handshake) return;
    EXPECT_OK((*handshake)->confirm(soon()));
    const nic::Window window = region_.window();
    wire::ServerHello hello{.workers = 1,
                            .server = 5,
                            .depth = 32,
                            .max_key_bytes = kMaxKeyBytes,
                            .max_value_bytes = kBytes,
                            .grace_ns = 1'000'000'000,
                            .window_address = window.address,
                            .window_length = window.length,
                            .window_memory = window.memory_id,
                            .window_rkey = window.rkey,
                            .window_access = window.access,
                            .hash_seed = kSeed,
                            .index_buckets = kBuckets};
    if (change_) change_(hello);
    const channel::Options options{.depth = wire::channel_depth(32), .lease_bytes = 1 << 16};
    connection_ = channel::Connection::create(shard_->loop(), shard_->memory(), options, *this).value();
    EXPECT_OK(connection_->answer(std::move(*handshake), wire::bytes_of(hello)));
    const Result<void> connected = connection_->connect(soon());
    if (!change_) {  // Else the client may have had enough of it.
      EXPECT_OK(connected);
    }
    if (connected) connection_->attach();
  }

  Deadline before_wait() noexcept override { return Deadline::never(); }
  void after_wait(unsigned /*handled*/) noexcept override {}

  void on_message(channel::Connection& connection, std::span<const std::byte> body) noexcept override {
    if (answer_ && answer_(connection, body)) return;
    wire::Request request;
    if (wire::decode_request(body, request) != Status::kOk) return connection.fail(Status::kProtocol);
    const wire::ReplyHead head{
        .kind = wire::ReplyKind::kValue, .id = request.head.id, .version = kVersion, .entry = entry_};
    if (request.head.op == wire::Op::kGet) {
      ++asked_;
      (void)connection.send(wire::bytes_of(head), std::as_bytes(std::span(kByMessage)));
    } else if (request.head.op == wire::Op::kGoodbye) {
      (void)connection.send(wire::bytes_of(wire::ReplyHead{.kind = wire::ReplyKind::kGoodbye}));
    }
  }
  void on_complete(channel::Connection&, const channel::Completion&) noexcept override {}
  void on_end(channel::Connection&, Status) noexcept override {}

  const Answer answer_;
  const Hello change_;
  std::unique_ptr<link::Fabric> fabric_;
  std::shared_ptr<node::Device> device_;
  nic::RegisteredArena region_;
  std::unique_ptr<node::Shard> shard_;
  std::unique_ptr<link::Listener> listener_;
  std::unique_ptr<channel::Connection> connection_;
  std::atomic<unsigned> asked_{0};
  std::atomic<std::uint64_t> entry_{0};
  std::jthread accepting_;
};

}  // namespace verbena::kv::testing_support
