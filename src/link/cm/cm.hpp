// Connections through RDMA CM: addressing and handshake. The queue pair is the NIC's, made on a context of its own:
// `id->qp` stays null, the queue pair's states come from rdma_init_qp_attr, and rdma_establish finishes.
//
// An id that is established moves to the manager's one event channel, over which a thread sleeps: when the peer's
// process ends, its kernel disconnects, and the queue pair goes to error with kPeerLost.
#pragma once

#include "link/link.hpp"
#include "nic/verbs.hpp"

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace verbena::link::cm {

/// Makes connections of one RDMA device. Outlives them. \thread any
class Manager {
 public:
  virtual ~Manager() = default;
  /// As link::dial, over RDMA CM. Besides: kNotFound when the address is not reached by an RDMA device, kBadArgument
  /// when it is reached by another than the NIC's.
  [[nodiscard]] virtual Result<std::unique_ptr<Handshake>> dial(const std::string& host, std::uint16_t port,
                                                                const Endpoint& local, Deadline deadline) = 0;
  /// As Listener::open; max_pending is the backlog. An empty or any-address listens on all of the device's.
  [[nodiscard]] virtual Result<std::unique_ptr<Listener>> listen(const ListenerOptions& options) = 0;
};
/// `nic` is an RDMA device and outlives the manager. Starts one thread. Errors: kUnsupported (left out of this build),
/// kDevice (no RDMA CM in this kernel), kPermission, kLimit.
[[nodiscard]] Result<std::unique_ptr<Manager>> start(nic::Nic& nic);

// The device that has an address, with the local address where that is IPv4.

/// Of this host's own address. Errors: kNotFound when it is on no RDMA device, and those of `start`.
[[nodiscard]] Result<nic::VerbsOptions> place_of(const std::string& address);
/// Of the device by which an address is reached. Errors: the same, kPeerLost (no route), kTimedOut.
[[nodiscard]] Result<nic::VerbsOptions> place_towards(const std::string& host, std::uint16_t port, Deadline deadline);

}  // namespace verbena::link::cm
