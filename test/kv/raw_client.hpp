// A client of the store that speaks the protocol by hand, and says and writes what it likes.
#pragma once

#include "channel/connection.hpp"
#include "channel/wire.hpp"
#include "engine/loop.hpp"
#include "kv/wire.hpp"
#include "link/fabric.hpp"
#include "model.hpp"
#include "nic/buffer_pool.hpp"
#include "nic/registered_arena.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace verbena::kv::testing_support {

/// The id of each request that is written by hand.
inline constexpr std::uint32_t kId = 7;
[[nodiscard]] inline wire::RequestHead head(wire::Op op, std::size_t key_length = 0) {
  return {.op = op, .key_length = static_cast<std::uint16_t>(key_length), .id = kId};
}

class RawClient final : private channel::Handler {
 public:
  static constexpr std::size_t kBytes = std::size_t{4} << 20;

  enum class Stops : std::uint8_t { kNever, kBeforeConnect, kIfRefused };

  /// It lends the server its memory; `spoil` changes what it says of that.
  explicit RawClient(std::uint16_t port, Stops stops = Stops::kNever, std::uint8_t flags = 0,
                     void (*spoil)(wire::ClientHello::Source&) = nullptr) {
    const Deadline deadline = Deadline::after(std::chrono::seconds{20});
    static constexpr std::array<uid_t, 1> kRoot{0};  // As a client of the library trusts it.
    fabric_ = link::Fabric::open({.transport = test::transport_under_test(),
                                  .role = link::Role::kClient,
                                  .address = {},
                                  .port = port,
                                  .allowed_uids = std::span(kRoot).first(geteuid() == 0 ? 0 : 1)},
                                 deadline)
                  .value();
    nic::Nic& nic = fabric_->nic();
    pd_ = nic::Pd(nic, nic.alloc_pd().value());
    EXPECT_TRUE(memory_.open(nic, pd_.get(), {.size_bytes = kBytes, .share = host::Share::kReadOnly, .name = "hostile"},
                             {}, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    loop_ = engine::CompletionLoop::create(nic, {.max_connections = 1}).value();
    buffers_.emplace(nic, pd_.get());
    EXPECT_TRUE(bounce_.open(*buffers_, {}));
    connection_ = channel::Connection::create(*loop_, {.pd = pd_.get(), .buffers = &*buffers_, .bounce = &bounce_},
                                              {.depth = wire::channel_depth(32), .max_operations = 64}, *this)
                      .value();
    std::random_device random;
    const bool has_source = nic.capabilities().maps_windows;
    const nic::Window own = memory_.window();
    wire::ClientHello mine{.client = random() | 1u, .depth = 32, .flags = flags};
    if (has_source) mine.source = {.address = own.address, .memory_id = own.memory_id, .rkey = own.rkey};
    if (spoil != nullptr) spoil(mine.source);
    const link::Endpoint local = connection_->describe(wire::encode(mine)).value();
    auto handshake = fabric_->dial(port, local, deadline).value();
    server_ = handshake->remote().qp;
    lease_ = channel::wire::decode(handshake->remote().user_data()).value().lease;
    lease_.access = IBV_ACCESS_REMOTE_WRITE;
    EXPECT_TRUE(connection_->dialed(std::move(handshake)));
    hello_ = wire::decode_server_hello(connection_->peer_data()).value();
    if (stops == Stops::kBeforeConnect) return;
    if (has_source) {
      EXPECT_TRUE(nic.grant(own.memory_id, {.to = nic::Grant::To::kOneGid, .gid = connection_->peer_gid()}));
    }
    const bool is_connected = connection_->connect(deadline).has_value();
    if (stops == Stops::kIfRefused) return;
    EXPECT_TRUE(is_connected);
    if ((hello_.flags & wire::kByMessage) == 0) {
      EXPECT_TRUE(connection_->import_window(window(), deadline));
    }
    connection_->attach();
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient() { connection_.reset(); }

  /// The worker's, with the rights that it says.
  [[nodiscard]] nic::Window window() const {
    return {.address = hello_.window_address,
            .length = hello_.window_length,
            .rkey = hello_.window_rkey,
            .access = hello_.window_access,
            .memory_id = hello_.window_memory};
  }
  /// Of this client's connection: what large messages go through.
  [[nodiscard]] const nic::Window& stream() const noexcept { return lease_; }
  [[nodiscard]] const wire::ServerHello& hello() const noexcept { return hello_; }
  /// The server's queue pair.
  [[nodiscard]] const nic::QpAddress& server() const noexcept { return server_; }
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return {memory_.data(), kBytes}; }
  /// The same as the server may READ it.
  [[nodiscard]] nic::Window lent() const noexcept { return memory_.window(); }
  [[nodiscard]] nic::Nic& nic() const noexcept { return fabric_->nic(); }
  [[nodiscard]] bool is_alive() const noexcept { return connection_->alive(); }

  /// One eager message; whether it went out.
  bool say(std::span<const std::byte> frame) {
    Status status = Status::kOk;
    const bool is_over =
        eventually([&] { return loop_->poll(), (status = connection_->send(frame)) != Status::kAgain; });
    return is_over && status == Status::kOk;
  }
  /// A large message of this head and as many bytes of `memory`; whether it went out.
  bool stream(std::span<const std::byte> head, std::size_t bytes) {
    return connection_->start_large(head, {memory_.data(), bytes, memory_.lkey()}, 1) == Status::kOk;
  }
  /// The next reply, private; none when the server has ended the connection instead.
  std::optional<wire::Reply> hear() {
    EXPECT_TRUE(eventually([&] { return loop_->poll(), !replies_.empty() || !connection_->alive(); }));
    if (replies_.empty()) return std::nullopt;
    const wire::Reply reply = replies_.front();
    replies_.erase(replies_.begin());
    return reply;
  }
  void poll() { loop_->poll(); }

  /// Asks the NIC for any window of the server's.
  [[nodiscard]] Result<void> import(const nic::Window& window) {
    return nic().import_window(connection_->queue_pair(), window, Deadline::after(std::chrono::seconds{5}));
  }
  /// Posts a READ of `window`, whatever was granted; whether the NICs carried it out.
  bool read(const nic::Window& window, std::size_t bytes) {
    if (connection_->queue_pair() == nullptr) return false;
    nic::Window all = window;
    all.access = IBV_ACCESS_REMOTE_READ;
    connection_->lend_window(all);
    const unsigned before = done_;
    if (connection_->start_read(channel::LocalSpan{memory_.data(), bytes, memory_.lkey()},
                                {window.address, bytes, window.rkey}, 2) != Status::kOk)
      return false;
    EXPECT_TRUE(eventually([&] { return loop_->poll(), done_ != before || !connection_->alive(); }));
    return done_ != before;
  }
  /// The same with an atomic.
  Status change(const nic::Window& window, std::uint64_t address) {
    nic::Window all = window;
    all.access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    connection_->lend_window(all);
    std::uint64_t old = 0;
    return connection_->change({.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .compare_add = 1}, {address, 8, window.rkey},
                               old, Deadline::after(std::chrono::seconds{5}));
  }

  /// WRITEs the front of `memory` to `address` under that key, whatever this end knows of it: straight to the queue
  /// pair. What the window should be, for the NICs that want to know.
  void post_write(const nic::Window& window, std::uint64_t address, std::size_t bytes) {
    if (connection_->queue_pair() == nullptr) return;
    (void)nic().import_window(connection_->queue_pair(), window, Deadline::after(std::chrono::seconds{1}));
    nic::Window all = window;
    all.address = 0;
    all.length = ~std::uint64_t{0};
    all.access = IBV_ACCESS_REMOTE_WRITE;
    connection_->lend_window(all);
    (void)connection_->start_write({memory_.data(), bytes, memory_.lkey()}, {address, bytes, window.rkey}, 2);
  }
  /// Whether the NICs carried that out.
  bool write(const nic::Window& window, std::uint64_t address, std::size_t bytes) {
    const unsigned before = done_;
    post_write(window, address, bytes);
    EXPECT_TRUE(eventually([&] { return loop_->poll(), done_ != before || !connection_->alive(); }));
    return done_ != before;
  }

  template <class... Frames>
  [[nodiscard]] static std::vector<std::byte> pack(const Frames&... frames) {
    std::vector<std::byte> out((bytes_in(frames).size() + ...));
    std::size_t at = 0;
    const auto add = [&](std::span<const std::byte> bytes) {
      std::ranges::copy(bytes, out.begin() + static_cast<std::ptrdiff_t>(at));
      at += bytes.size();
    };
    (add(bytes_in(frames)), ...);
    return out;
  }

 private:
  static std::span<const std::byte> bytes_in(std::string_view text) { return bytes_of(text); }
  template <class Frame>
  static std::span<const std::byte> bytes_in(const Frame& frame) {
    return wire::bytes_of(frame);
  }

  void on_message(channel::Connection&, std::span<const std::byte> body) noexcept override {
    wire::Reply reply;
    EXPECT_EQ(wire::decode_reply(body, reply), Status::kOk);
    reply.value = {};  // Not private.
    replies_.push_back(reply);
  }
  void on_complete(channel::Connection&, const channel::Completion& completion) noexcept override {
    done_ += completion.token == 2 && completion.status == Status::kOk ? 1 : 0;
  }
  void on_end(channel::Connection&, Status) noexcept override {}

  std::unique_ptr<link::Fabric> fabric_;
  nic::Pd pd_;
  nic::RegisteredArena memory_;
  std::unique_ptr<engine::CompletionLoop> loop_;
  std::optional<nic::BufferPool> buffers_;
  channel::Bounce bounce_;
  std::unique_ptr<channel::Connection> connection_;
  nic::QpAddress server_;
  wire::ServerHello hello_;
  nic::Window lease_;
  std::vector<wire::Reply> replies_;
  unsigned done_ = 0;
};

}  // namespace verbena::kv::testing_support
