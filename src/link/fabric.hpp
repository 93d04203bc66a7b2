// The choice of a NIC when the program runs, and of the way that connections over it are made.
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
  /// To listen on, or of the server; a name or number. Empty: this host, by the NIC's own address where it has one
  /// (RoCE), else by loopback.
  std::string address;
  std::uint16_t port = 0;                 ///< Of a client's server: what to find the way to.
  std::span<const uid_t> allowed_uids{};  ///< As SoftOptions has them.
  std::string key_file{};                 ///< Both ends have one, with a key in common, or neither. Empty: neither.
  std::string key_name{};                 ///< A client's: the key that it proves; empty: the file's first.
};

/// One use of a NIC that the whole process shares. Immovable, and cheap beside the first one. What it makes lives as
/// long as the NIC: keep the fabric, or shared_nic(). \thread any
class Fabric {
 public:
  /// The NIC that the transport names. Unless it names one: an RDMA device if there is a usable one that has the
  /// address, or the way to it; the software NIC otherwise. It is opened unless this process has it open already, in
  /// the same way (NicRegistry). Errors: those of open_verbs and open_soft for a NIC that is named, kBadArgument (a
  /// name of none, a key_name without a key_file), kNotFound (the address is on no RDMA device, and one is named);
  /// those of Keys.
  [[nodiscard]] static Result<std::unique_ptr<Fabric>> open(const FabricOptions& options, Deadline deadline) {
    return Fabric::open(options, deadline, NicRegistry::of_process());
  }
  /// The same over the NICs of a test.
  [[nodiscard]] static Result<std::unique_ptr<Fabric>> open(const FabricOptions& options, Deadline deadline,
                                                            NicRegistry& registry);
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  [[nodiscard]] nic::Nic& nic() const noexcept { return shared_->nic(); }
  [[nodiscard]] const std::shared_ptr<SharedNic>& shared_nic() const noexcept { return shared_; }
  /// The transport's; but on a device a key's is always the socket.
  [[nodiscard]] Bootstrap bootstrap() const noexcept { return bootstrap_; }
  /// As in the options, or what it was chosen to be.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  /// Which NIC and bootstrap, and why, in one line.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// A server's: who may connect, in a few words.
  [[nodiscard]] std::string admission() const;

  /// At `address`. The options' address, watcher, keys and limits of user data are the fabric's to set.
  [[nodiscard]] Result<std::unique_ptr<Listener>> listen(ListenerOptions options);
  /// To `address`.
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
  nic::verbs::GidChoice gid_{};  ///< Of a device.
  // The NIC's: one of them, by what carries the handshake.
  cm::Manager* manager_ = nullptr;
  SocketWatcher* watcher_ = nullptr;
  std::shared_ptr<const Keys> keys_;  ///< A server's.
  std::shared_ptr<const Key> key_;    ///< A client's.
  std::string users_;                 ///< Whose processes may connect on the software NIC.
  Bootstrap bootstrap_ = Bootstrap::kCm;
  std::string address_;
  std::string reason_;
};

[[nodiscard]] const char* to_string(Bootstrap bootstrap) noexcept;

}  // namespace verbena::link
