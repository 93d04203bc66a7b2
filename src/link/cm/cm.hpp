// Connections through RDMA CM: addressing and handshake. The NIC makes the queue pair, on its own context: `id->qp`
// stays null, rdma_init_qp_attr gives the attributes for the queue pair's states, and rdma_establish finishes.
//
// An established id moves to the manager's event channel, on which a thread sleeps: when the peer's process ends, its
// kernel disconnects, and the queue pair goes to error with kPeerLost.
#pragma once

#include "link/link.hpp"
#include "nic/verbs.hpp"

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace verbena::link::cm {

/// Makes connections of one RDMA device. It must outlive them. \thread any
class Manager {
 public:
  virtual ~Manager() = default;
  /// Like link::dial, over RDMA CM. Further errors: kNotFound (no RDMA device reaches the address), kBadArgument
  /// (another device than the NIC's reaches it).
  [[nodiscard]] virtual Result<std::unique_ptr<Handshake>> dial(const std::string& host, std::uint16_t port,
                                                                const Endpoint& local, Deadline deadline) = 0;
  /// As Listener::open; max_pending is the backlog. An empty or wildcard address listens on all addresses of the
  /// device.
  [[nodiscard]] virtual Result<std::unique_ptr<Listener>> listen(const ListenerOptions& options) = 0;
};
/// `nic` must be an RDMA device and outlive the manager. Starts one thread. Errors: kUnsupported (left out of this
/// build), kDevice (no RDMA CM in this kernel), kPermission, kLimit.
[[nodiscard]] Result<std::unique_ptr<Manager>> start(nic::Nic& nic);

// These find the device for an address, with the local address if that is IPv4.

/// For an address of this host. Errors: kNotFound (it is on no RDMA device), and those of `start`.
[[nodiscard]] Result<nic::VerbsOptions> place_of(const std::string& address);
/// For an address of a peer: the device that reaches it. Errors: the same, kPeerLost (no route), kTimedOut.
[[nodiscard]] Result<nic::VerbsOptions> place_towards(const std::string& host, std::uint16_t port, Deadline deadline);

}  // namespace verbena::link::cm
