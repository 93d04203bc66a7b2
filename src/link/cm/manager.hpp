// RDMA CM over a table of librdmacm's functions.
#pragma once

#include "link/cm/cm.hpp"
#include "link/cm/library.hpp"

namespace verbena::link::cm {

/// Like start, place_of and place_towards, over any library. `library` must outlive their results.
[[nodiscard]] Result<std::unique_ptr<Manager>> start_with(const CmLibrary& library, nic::Nic& nic);
[[nodiscard]] Result<nic::VerbsOptions> place_of(const CmLibrary& library, const std::string& address);
[[nodiscard]] Result<nic::VerbsOptions> place_towards(const CmLibrary& library, const std::string& host,
                                                      std::uint16_t port, Deadline deadline);

}  // namespace verbena::link::cm
