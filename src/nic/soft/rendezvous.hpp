// Shared by both ends of a rendezvous: a GID's parts, its socket's name, and the credentials of the other end.
#pragma once

#include "nic/nic.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>

namespace verbena::nic::soft {

/// GID = 32 bits of the boot id's hash, 32 bits of pid as a hint for messages, 64 random bits.
struct GidParts {
  std::uint32_t boot;
  std::uint32_t pid;
  std::uint64_t random;
};
[[nodiscard]] GidParts parts_of(const ibv_gid& gid) noexcept;

struct SocketName {
  sockaddr_un address{};
  socklen_t length = 0;
};
/// The abstract name of the NIC with that GID.
[[nodiscard]] SocketName name_of(const ibv_gid& gid) noexcept;

/// The process at the other end of a Unix socket, as the kernel tells it. kOtherNamespace if this process cannot see
/// it.
[[nodiscard]] Result<PeerProcess> credentials(int socket);

struct Peer;
/// The error for a conversation that ended, with its errno or 0. (peers.cpp)
[[nodiscard]] Error hung_up(const Peer& peer, int cause) noexcept;
/// The error for memory of a stranger's that has holes, or may get them. (imports.cpp)
[[nodiscard]] Error punchable(const Peer& peer) noexcept;

}  // namespace verbena::nic::soft
