// RDMA devices behind the NIC seam, through rdma-core's libibverbs. See docs/verbs-nic.md.
#pragma once

#include "nic/nic.hpp"
#include "nic/verbs/gid.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace verbena::nic {

/// The device, port and address of a NIC. Verbena chooses what you leave open; `facts_of` tells its choice.
struct VerbsOptions {
  std::string device;     ///< As `ibv_devices` prints it, such as "mlx5_0"; empty: the first that can be used.
  std::uint8_t port = 0;  ///< Counted from 1; 0: the first active one.
  verbs::GidWanted gid;   ///< Row of the port's GID table, or the address that the GID must have.
};

/// Opens an RDMA device. Starts one thread, which sleeps until the device has an asynchronous event: a port that goes
/// down makes the connections over it fail with kPeerLost, a fatal error or the device's removal with kDevice.
///
/// Queue pairs on it: if an address of `Nic::modify_qp` has port 0, it uses this NIC's own port and GID, whatever index
/// is given, with a global route header where the link needs one. Any other port is used as given, with its index (as
/// rdma_cm sets them). One thread at a time may use a queue pair and its completion queues: if the device has thread
/// domains, the receive queue's owner gets one.
///
/// Errors: kNotFound (no such device: the text names those that exist; no usable GID), kBadArgument (no such port),
/// kDevice (port down, no active port, or the device fails), kPermission (/dev/infiniband), kLimit (RLIMIT_MEMLOCK),
/// kUnsupported (left out of this build by the Meson option `verbs`).
[[nodiscard]] Result<std::unique_ptr<Nic>> open_verbs(const VerbsOptions& options);

/// Choices and properties found when a device was opened.
struct DeviceFacts {
  std::uint32_t vendor_id = 0;  ///< Number of the PCI or OUI registry; 0xFFFFFF is Soft-RoCE.
  std::uint8_t port = 0;
  verbs::LinkLayer link_layer = verbs::LinkLayer::kEthernet;
  ibv_mtu mtu = IBV_MTU_256;  ///< Active on the port.
  ibv_atomic_cap atomics = IBV_ATOMIC_NONE;
  bool thread_domains = false;
  verbs::GidChoice gid;
  Network network = Network::kNone;
};
/// Facts of an RDMA device; null for another NIC. Valid as long as the NIC.
[[nodiscard]] const DeviceFacts* facts_of(const Nic& nic) noexcept;

/// One port of a device.
struct DeviceSummary {
  std::string device;
  std::uint8_t port = 0;
  ibv_port_state state = IBV_PORT_NOP;
  verbs::LinkLayer link_layer = verbs::LinkLayer::kEthernet;
  ibv_mtu mtu = IBV_MTU_256;
  ibv_atomic_cap atomics = IBV_ATOMIC_NONE;
  std::uint32_t max_rd_atomic = 0;
};
/// Every port of every device that can be opened. Empty without devices. Errors: kPermission, kDevice (no verbs in this
/// kernel), kUnsupported (as open_verbs).
[[nodiscard]] Result<std::vector<DeviceSummary>> list_devices();

}  // namespace verbena::nic
