// Descriptors of simulated processes: sockets, events, and waiting for them. The linker puts these calls in the place
// of the system's (-Wl,--wrap); under them are the kernel's own objects, of which nothing depends on time. A TCP socket
// is a Unix one here: what is sent is there at once, and who waits is woken by what others do.
#pragma once

namespace verbena::sim {

class Process;

/// A process is dead: its peers see the ends of its connections, and nobody listens at its ports.
void end_descriptors_of(const Process& process);
/// Processes reach each other again: who connects goes on.
void look_at_descriptors();
/// At the end of a simulation: ports start anew with the next one.
void forget_descriptors();

}  // namespace verbena::sim
