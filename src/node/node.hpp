// A node: a NIC with shards, the sessions that a process opens on it, its listeners, and memory for all of them.
#pragma once

#include "base/threads.hpp"
#include "node/device.hpp"
#include "node/shard.hpp"
#include "session/session.hpp"

#include <verbena/transport.hpp>
#include <verbena/wait_policy.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace verbena::node {

/// A node's NIC, shards and limits.
struct NodeOptions {
  Transport transport;
  std::string address;                ///< Selects the NIC with this address, unless the transport names one; empty:
                                      ///< any.
  unsigned shards = 1;                ///< Threads that drive connections. 1 to 256.
  unsigned connections = 256;         ///< Connections per shard, at most. 1 to 65536.
  std::vector<unsigned> cpus;         ///< One per shard; empty: claims free cores.
  std::vector<uid_t> allowed_uids{};  ///< Users whose processes may connect, besides this one and root (soft NIC).
};

/// A NIC with threads that drive connections, and memory registered for all of them. \thread any
class Node {
 public:
  /// Errors: those of Fabric::open and of SessionShard::open, kBadArgument (an option).
  [[nodiscard]] static Result<std::shared_ptr<Node>> open(const NodeOptions& options);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  [[nodiscard]] Device& device() const noexcept { return *device_; }
  [[nodiscard]] const std::shared_ptr<Device>& shared_device() const noexcept { return device_; }
  [[nodiscard]] const NodeOptions& options() const noexcept { return options_; }
  /// The NIC and why it was chosen, in one line.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// The shard for the next connection, in turn.
  [[nodiscard]] const std::shared_ptr<SessionShard>& next_shard() noexcept;
  [[nodiscard]] const std::vector<std::shared_ptr<SessionShard>>& shards() const noexcept { return shards_; }

  /// Memory that every connection of the node may use, and every peer may reach.
  [[nodiscard]] Result<const session::RegisteredMemory*> allocate(std::size_t bytes);
  [[nodiscard]] Result<const session::RegisteredMemory*> add(std::span<std::byte> memory, rdma::Access access);
  [[nodiscard]] Result<void> remove(const session::RegisteredMemory* memory, Deadline deadline);
  /// Publishes it under a name that every peer can find; null takes the name back.
  [[nodiscard]] Result<void> publish(std::string_view name, const session::Part& part);

 private:
  explicit Node(const NodeOptions& options) : options_(options) {}

  const NodeOptions options_;
  std::string reason_;
  std::shared_ptr<Device> device_;
  std::vector<std::shared_ptr<SessionShard>> shards_;
  std::atomic<unsigned> next_{0};
};

/// The address to connect to, or to listen on.
struct Endpoint {
  Transport transport;
  std::string address;
  std::uint16_t port = 0;
  std::vector<uid_t> allowed_uids{};
  std::string key_file{};        ///< Both ends have a key file, or neither.
  std::string key_name{};        ///< Client: which key of the file; empty: the first.
  std::shared_ptr<Node> node{};  ///< The node to use; null: the process's own for that NIC.
};

/// Connects to a listener within settings.connect_timeout. With `wants_thread` a thread of the library drives the
/// session and calls back; otherwise the calling thread drives it. Errors: those of Fabric and of Session::dial.
/// \thread any
[[nodiscard]] Result<std::unique_ptr<session::Session>> connect(const Endpoint& server,
                                                                const session::Settings& settings,
                                                                const session::Delivery& delivery,
                                                                session::Events& events, bool wants_thread);

/// Accepts clients. \thread any, one at a time, except where said
class Listener final : private Acceptor::Host {
 public:
  Listener() = default;
  ~Listener() { stop(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// Returns once clients can connect. `events` must outlive the sessions. Errors: those of the NIC and the address,
  /// kBusy (it is running already).
  [[nodiscard]] Result<void> start(const Endpoint& at, const session::Settings& settings,
                                   const session::Delivery& delivery, session::Events& events);
  /// Ends all of its sessions at once and tells the peers. Idempotent. Don't call it from one of its threads.
  void stop() noexcept;
  /// \thread any
  [[nodiscard]] bool is_running() const noexcept { return is_running_.load(std::memory_order_acquire) != 0; }
  /// Whether the calling thread is in a callback. \thread any
  [[nodiscard]] bool is_in_callback() const noexcept;
  /// Waits until another thread has stopped it. \thread any
  void wait() noexcept;
  /// 0 unless it is running.
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// The address for a peer's connect, on any host; this host's name if it listens on all addresses; "" unless it is
  /// running.
  [[nodiscard]] std::string address_to_dial() const;

  /// The NIC, and who may connect, in one line; "" unless it is running.
  [[nodiscard]] std::string description() const;
  /// The default window that its sessions share; empty: each has its own, or none.
  [[nodiscard]] std::span<std::byte> window() const noexcept {
    return is_running() ? settings_.window : std::span<std::byte>{};
  }
  /// Null unless it is running.
  [[nodiscard]] Device* device() const noexcept { return is_running() ? device_.get() : nullptr; }
  /// Memory for the peers of all of its sessions, while it is running.
  [[nodiscard]] Result<const session::RegisteredMemory*> allocate(std::size_t bytes);
  [[nodiscard]] Result<const session::RegisteredMemory*> add(std::span<std::byte> memory, rdma::Access access);
  [[nodiscard]] Result<void> remove(const session::RegisteredMemory* memory, Deadline deadline);
  [[nodiscard]] Result<void> publish(std::string_view name, const session::Part& part);

 private:
  class Guest;
  [[nodiscard]] Result<std::unique_ptr<Acceptor::Guest>> welcome(std::unique_ptr<link::Handshake>& handshake) override;
  [[nodiscard]] std::shared_ptr<SessionShard> shard() noexcept;

  session::Settings settings_;
  session::Delivery delivery_;
  session::Events* events_ = nullptr;
  std::shared_ptr<Node> node_;
  std::unique_ptr<link::Fabric> fabric_;
  std::shared_ptr<Device> device_;
  Acceptor* acceptor_ = nullptr;
  std::uint64_t door_ = 0;
  std::uint16_t port_ = 0;
  mutable Mutex mutex_;                       ///< Guards own_, which changes only in start and stop.
  std::shared_ptr<SessionShard> own_;         ///< Used without a node.
  std::atomic<std::uint32_t> is_running_{0};  ///< 1: it is running. `wait` waits for this word.
};

}  // namespace verbena::node
