// Memory that the soft NIC's objects allocate. For an RDMA device these are empty: its driver allocates, and tells
// nobody how much.
#pragma once

#include "host/footprint.hpp"
#include "nic/nic.hpp"

namespace verbena::nic {

/// Footprint of one queue pair. `options` as given to create_qp. \thread any  \alloc setup
[[nodiscard]] host::Footprint qp_footprint(Kind kind, const QpOptions& options);
[[nodiscard]] host::Footprint cq_footprint(Kind kind, std::uint32_t cqe);
/// Footprint of one window of type 2.
[[nodiscard]] host::Footprint mw_footprint(Kind kind);

}  // namespace verbena::nic
