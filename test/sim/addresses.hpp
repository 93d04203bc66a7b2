// Addresses of the memory that a run maps.
#pragma once

namespace verbena::sim {

/// Begins the addresses of a run. From here on each mapping gets the next ones, whatever the process has mapped before,
/// and none gets those of an earlier one: the processes of a run have one address space, where a window of a process
/// that is gone must not be memory of another.
void restart_addresses() noexcept;

}  // namespace verbena::sim
