// Chooses, at run time, a NIC and how to make connections over it.
#pragma once

#include "link/keys.hpp"
#include "link/link.hpp"
#include "link/shared_nic.hpp"
#include "nic/nic.hpp"

#include <verbena/transport.hpp>

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>

namespace verbena::link {

struct FabricOptions {
  Transport transport;
  Role role = Role::kServer;
  /// Address to listen on, or the server's; a name or number. Empty: this host, by the NIC's own address if it has one
  /// (RoCE), else by loopback.
  std::string address;
  std::uint16_t port = 0;                 ///< For clients: the server's port, to find the device that reaches it.
  std::span<const uid_t> allowed_uids{};  ///< As in SoftOptions.
  std::string key_file{};                 ///< For both ends, with a common key, or for neither. Empty: none.
  std::string key_name{};                 ///< For clients: the key to prove; empty: the file's first.
};

/// One use of a NIC that the whole process shares. Immovable; all but the first one are cheap. Its listeners and
/// handshakes need the NIC: keep the fabric, or shared_nic(), as long as they live. \thread any
class Fabric {
 public:
  /// Uses the NIC that the transport names. If it names none: a usable RDMA device that has the address or reaches it,
  /// else the software NIC. Opens the NIC unless this process has it open already with the same options (NicRegistry).
  /// Errors: those of open_verbs and open_soft for a named NIC, kBadArgument (an invalid name, a key_name without a
  /// key_file), kNotFound (a device is named, and the address is on no RDMA device); those of Keys.
  [[nodiscard]] static Result<std::unique_ptr<Fabric>> open(const FabricOptions& options, Deadline deadline) {
    return Fabric::open(options, deadline, NicRegistry::of_process());
  }
  /// The same with the NICs of a test.
  [[nodiscard]] static Result<std::unique_ptr<Fabric>> open(const FabricOptions& options, Deadline deadline,
                                                            NicRegistry& registry);
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  [[nodiscard]] nic::Nic& nic() const noexcept { return shared_->nic(); }
  [[nodiscard]] const std::shared_ptr<SharedNic>& shared_nic() const noexcept { return shared_; }
  /// The transport's bootstrap, except that a key on a device always uses the socket.
  [[nodiscard]] Bootstrap bootstrap() const noexcept { return bootstrap_; }
  /// The options' address, or the chosen one.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  /// One line: NIC and bootstrap, and why.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// For servers: who may connect, in a few words.
  [[nodiscard]] std::string admission() const;

  /// Listens at `address`. The fabric sets the options' address, watcher, keys and limits of user data.
  [[nodiscard]] Result<std::unique_ptr<Listener>> listen(ListenerOptions options);
  /// Connects to `address`.
  [[nodiscard]] Result<std::unique_ptr<Handshake>> dial(std::uint16_t port, const Endpoint& local, Deadline deadline);

 private:
  Fabric() = default;
  [[nodiscard]] Result<void> choose(NicRegistry& registry, const FabricOptions& options, Deadline deadline);
  [[nodiscard]] Result<void> use_named(NicRegistry& registry, const FabricOptions& options);
  [[nodiscard]] Result<void> use_soft(NicRegistry& registry, const FabricOptions& options, std::string why);
  void use(SharedDevice device, std::string why);
  [[nodiscard]] Result<void> take_keys(const FabricOptions& options);
  [[nodiscard]] Result<void> finish();

  std::shared_ptr<SharedNic> shared_;
  nic::verbs::GidChoice gid_{};  ///< For a device.
  // From the shared NIC: one of them is set, depending on the bootstrap.
  cm::Manager* manager_ = nullptr;
  SocketWatcher* watcher_ = nullptr;
  std::shared_ptr<const Keys> keys_;  ///< For servers.
  std::shared_ptr<const Key> key_;    ///< For clients.
  std::string users_;                 ///< Users whose processes may connect on the software NIC.
  Bootstrap bootstrap_ = Bootstrap::kCm;
  std::string address_;
  std::string reason_;
};

[[nodiscard]] const char* to_string(Bootstrap bootstrap) noexcept;

}  // namespace verbena::link
