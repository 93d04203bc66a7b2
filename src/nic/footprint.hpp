// What the soft NIC's objects allocate. An RDMA device's are its driver's, which tells nobody: they are empty here.
#pragma once

#include "host/footprint.hpp"
#include "nic/nic.hpp"

namespace verbena::nic {

/// Of one queue pair. `options` as given to create_qp. \thread any  \alloc setup
[[nodiscard]] host::Footprint qp_footprint(Kind kind, const QpOptions& options);
[[nodiscard]] host::Footprint cq_footprint(Kind kind, std::uint32_t cqe);
/// Of one window of type 2.
[[nodiscard]] host::Footprint mw_footprint(Kind kind);

}  // namespace verbena::nic
