// A NIC that the process has opened once, and everything that its connections share.
#pragma once

#include "base/fork.hpp"
#include "base/threads.hpp"
#include "link/fabric.hpp"
#include "nic/buffer_pool.hpp"
#include "nic/nic.hpp"
#include "node/acceptor.hpp"
#include "session/registrations.hpp"

#include <memory>
#include <optional>

namespace verbena::node {

class SessionShard;

/// Shared by everyone who uses the same NIC in the same way (link::NicRegistry); the last one closes it. Immovable.
/// \thread any
class Device {
 public:
  /// Errors: those of Nic::alloc_pd.
  [[nodiscard]] static Result<std::shared_ptr<Device>> of(const std::shared_ptr<link::SharedNic>& nic);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  static void operator delete(Device* device, std::destroying_delete_t) noexcept { delete_unless_forked(device); }

  [[nodiscard]] nic::Nic& nic() const noexcept { return shared_->nic(); }
  [[nodiscard]] ibv_pd* pd() const noexcept { return pd_.get(); }
  [[nodiscard]] nic::BufferPool& buffers() noexcept { return *buffers_; }
  [[nodiscard]] session::Registrations& registrations() noexcept { return *registrations_; }
  /// The thread that drives handshakes; the first call starts it. Errors: kLimit.
  [[nodiscard]] Result<Acceptor*> acceptor();
  /// A shard with room for one more client with callbacks: the newest one, else a new one. It ends with its last
  /// client. Errors: those of SessionShard::open.
  [[nodiscard]] static Result<std::shared_ptr<SessionShard>> client_shard(const std::shared_ptr<Device>& device);

 private:
  explicit Device(std::shared_ptr<link::SharedNic> nic) noexcept : shared_(std::move(nic)) {}

  const std::shared_ptr<link::SharedNic> shared_;
  nic::Pd pd_;
  std::optional<nic::BufferPool> buffers_;
  std::optional<session::Registrations> registrations_;
  Mutex mutex_;  ///< Guards the members below.
  std::weak_ptr<SessionShard> client_shard_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace verbena::node
