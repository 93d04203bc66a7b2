// A NIC, chosen when the program runs, and the way that connections over it are made.
#pragma once

#include "link/link.hpp"
#include "nic/nic.hpp"

#include <verbena/transport.hpp>

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>

namespace verbena::link {

class SocketWatcher;
namespace cm {
class Manager;
}

enum class Role : std::uint8_t { kServer, kClient };

struct FabricOptions {
  Transport transport;
  Role role = Role::kServer;
  /// To listen on, or of the server; a name or number. Empty: this host, by the NIC's own address where it has one
  /// (RoCE), else by loopback.
  std::string address;
  std::uint16_t port = 0;                 ///< Of a client's server: what to find the way to.
  std::span<const uid_t> allowed_uids{};  ///< As SoftOptions has them.
};

/// Immovable. Outlives what it makes. \thread any
class Fabric {
 public:
  /// Opens the NIC that the transport names. Unless it names one: an RDMA device if there is a usable one that has the
  /// address, or the way to it; the software NIC otherwise. Errors: those of open_verbs and open_soft for a NIC that is
  /// named, kBadArgument (a name of none), kNotFound (the address is on no RDMA device, and one is named).
  [[nodiscard]] static Result<std::unique_ptr<Fabric>> open(const FabricOptions& options, Deadline deadline);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  [[nodiscard]] nic::Nic& nic() const noexcept { return *nic_; }
  [[nodiscard]] Bootstrap bootstrap() const noexcept { return bootstrap_; }
  /// As in the options, or what it was chosen to be.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  /// Which NIC and bootstrap, and why, in one line.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

  /// At `address`. The options' address and limits of user data are the fabric's to set.
  [[nodiscard]] Result<std::unique_ptr<Listener>> listen(ListenerOptions options);
  /// To `address`.
  [[nodiscard]] Result<Dialed> dial(std::uint16_t port, const Endpoint& local, Deadline deadline);

 private:
  Fabric() = default;
  [[nodiscard]] Result<void> choose(const FabricOptions& options, Deadline deadline);
  [[nodiscard]] Result<void> open_named(const FabricOptions& options);
  [[nodiscard]] Result<void> open_soft(const FabricOptions& options, std::string why);
  [[nodiscard]] Result<void> finish();

  std::unique_ptr<nic::Nic> nic_;
  // On an RDMA device one of them, by the bootstrap; else null.
  std::unique_ptr<cm::Manager> manager_;
  std::unique_ptr<SocketWatcher> watcher_;
  Bootstrap bootstrap_ = Bootstrap::kCm;
  std::string address_;
  std::string reason_;
};

[[nodiscard]] const char* to_string(Bootstrap bootstrap) noexcept;

}  // namespace verbena::link
