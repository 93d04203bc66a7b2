// A client's connection to one server: a channel to each worker, the memory that both sides use, and how it ends.
#pragma once

#include "base/fork.hpp"
#include "channel/connection.hpp"
#include "engine/loop.hpp"
#include "kv/reader.hpp"
#include "kv/wire.hpp"
#include "link/fabric.hpp"
#include "nic/registered_arena.hpp"
#include "node/device.hpp"
#include "node/shard.hpp"

#include <verbena/kv.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace verbena::kv {

/// WRITEs of marks in flight on all channels.
inline constexpr std::uint32_t kMostMarks = 4;
/// READs beyond the first of each get into registered memory: staged gets and puts have at most three pieces each.
inline constexpr std::uint32_t kMostAhead = 8;

/// Limits of each channel of a client with these options.
[[nodiscard]] channel::Options channel_options(const ClientOptions& options) noexcept;
/// Options of its shard, which is made before the server has said how many workers it has.
[[nodiscard]] node::ShardOptions shard_options(const ClientOptions& options, const nic::Limits& limits);

/// One connection: its channels fail together. \thread owner
class Links {
 public:
  explicit Links(const ClientOptions& options);
  /// Checks the options and meets all workers, whose memory `reader` gets to know. \alloc setup
  [[nodiscard]] Result<void> connect(channel::Handler& handler, Reader& reader);
  /// Announces an orderly leave, so the server does not count this client as crashed.
  void say_goodbye() noexcept;
  /// Ends everything that is left on the channels: no buffer of a caller is touched from here on.
  void close() noexcept { channels_.clear(); }

  // --- facts. \alloc none
  [[nodiscard]] const ClientOptions& options() const noexcept { return options_; }
  /// The first worker's hello.
  [[nodiscard]] const wire::ServerHello& server() const noexcept { return server_; }
  [[nodiscard]] std::uint32_t depth() const noexcept { return std::min<std::uint32_t>(options_.depth, server_.depth); }
  [[nodiscard]] const char* description() const noexcept { return description_.data(); }
  /// A READ that completes later than this after the request is not trusted.
  [[nodiscard]] std::uint64_t read_ticks() const noexcept { return read_ticks_; }
  /// Whether this client may READ the server's memory at all.
  [[nodiscard]] bool may_read() const noexcept { return options_.lookup != Lookup::kMessage && !is_by_message(); }
  /// Whether the calling thread may carry out READs itself.
  [[nodiscard]] bool reads_now() const noexcept { return may_read() && fabric_->nic().direct() != nullptr; }
  /// READ bytes count only if the index still names the item.
  [[nodiscard]] bool is_guarded() const noexcept { return (server_.flags & wire::kGuarded) != 0; }

  [[nodiscard]] engine::CompletionLoop& loop() const noexcept { return *loop_; }
  [[nodiscard]] std::size_t workers() const noexcept { return channels_.size(); }
  [[nodiscard]] std::span<const std::unique_ptr<channel::Connection>> channels() const noexcept { return channels_; }
  [[nodiscard]] channel::Connection& channel(unsigned worker) const noexcept { return *channels_[worker]; }

  // --- memory. \alloc none
  /// Memory that the user may fill; empty: there is not so much left.
  [[nodiscard]] std::span<std::byte> allocate(std::size_t bytes) noexcept;
  [[nodiscard]] bool is_registered(std::span<const std::byte> bytes) const noexcept;
  [[nodiscard]] channel::LocalSpan local(std::span<const std::byte> bytes) const noexcept;
  /// By this the server READs what `allocate` has handed out.
  [[nodiscard]] std::uint32_t rkey() const noexcept { return region_.mr()->rkey; }
  [[nodiscard]] channel::Bounce& bounce() const noexcept { return *shard_->memory().bounce; }
  /// Each operation that may READ has a place in our own memory: for buckets, then for an item. A late READ still lands
  /// there; its slot stays taken until then.
  static constexpr std::size_t kPlaceBytes = 2 * sizeof(Bucket) + Part::kMostItemBytes;
  [[nodiscard]] std::byte* place(std::uint32_t slot) const noexcept { return region_.data() + slot * kPlaceBytes; }
  /// The byte that marks are written from.
  [[nodiscard]] channel::LocalSpan mark() const noexcept {
    return local({region_.data() + own_bytes(options_) - kLineBytes, 1});
  }
  /// All places, and a line that has the byte of marks.
  [[nodiscard]] static constexpr std::size_t own_bytes(const ClientOptions& options) noexcept {
    return (options.lookup != Lookup::kMessage ? options.depth * kPlaceBytes : 0) + kLineBytes;
  }

  // --- failure. \alloc none
  [[nodiscard]] bool has_failed() const noexcept { return failure() != Status::kOk || is_forked(); }
  [[nodiscard]] Status failure() const noexcept { return error_.status(); }
  [[nodiscard]] Error connection_error() const noexcept;
  /// The status of a post to the worker: a channel that began to fail in an earlier call's poll shows it here first.
  [[nodiscard]] Status notice(unsigned worker, Status status) noexcept;
  /// Acts once. Operations end with the next `drain` of theirs, because this may run inside a poll.
  void die(Status reason, const char* what) noexcept;
  /// A large value missed its deadline.
  void die_late() noexcept;
  /// A channel has ended.
  void on_end(Status reason) noexcept;
  /// A worker stops.
  void on_goodbye() noexcept;
  /// Waits until no channel of a connection that has failed has anything in flight, and closes it.
  void drain() noexcept;

 private:
  [[nodiscard]] bool is_by_message() const noexcept { return (server_.flags & wire::kByMessage) != 0; }
  [[nodiscard]] bool lends() const noexcept { return !options_.read_only && options_.buffer_bytes != 0; }
  [[nodiscard]] Result<void> check_options() const;
  [[nodiscard]] Result<void> connect_to(unsigned worker, channel::Handler& handler, Reader& reader, Deadline deadline);
  void take_limits(const wire::ServerHello& hello, Reader& reader);

  ClientOptions options_;
  std::unique_ptr<link::Fabric> fabric_;
  std::shared_ptr<node::Device> device_;
  nic::RegisteredArena region_;  ///< The operations' places, then the memory that `allocate` hands out. The server may
                                 ///< READ it.
  std::unique_ptr<node::Shard> shard_;                          ///< Polled by the calling thread.
  engine::CompletionLoop* loop_ = nullptr;                      ///< The shard's.
  std::vector<std::unique_ptr<channel::Connection>> channels_;  ///< One per worker.
  std::uint64_t id_;
  wire::ServerHello server_;
  std::uint64_t read_ticks_ = 0;
  std::size_t allocated_ = 0;
  bool is_leaving_ = false;  ///< This side said goodbye first.
  Error error_;
  std::array<char, 768> description_{};
};

}  // namespace verbena::kv
