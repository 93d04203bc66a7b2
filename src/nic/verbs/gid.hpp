// Chooses the GID of a port to connect from, and tells why. Pure: the caller reads the table.
//
// On Ethernet (RoCE) a GID is an IP address of a network interface. A GID is usable if it has an interface, its index
// fits an address vector, and, if the user asks for an address, it has that one. Among the usable ones the first
// difference decides:
//   1. RoCE v2 before v1. v1 has no IP header: no router passes it, whatever its address looks like.
//   2. Routable before link-local (fe80::/10, 169.254/16) before loopback.
//   3. IPv4 before IPv6. Both ends need the same family, or the QP does not come up, and so every node of a cluster has
//      to decide alike: UCX (v2 IPv4, v2 IPv6, v2 link-local, v1 ...) and NCCL (IPv4 unless told) decide like this.
//      IPv4 is also the one that stays: temporary IPv6 addresses (RFC 8981) expire, and their GIDs with them.
//   4. The lowest index. Two entries of one index differ by address, then interface: no order of entries matters.
// VLAN interfaces are like other interfaces; ask for an address to choose among them.
//
// On InfiniBand a GID is a subnet prefix and a port's GUID. Interfaces and types mean nothing there; the lowest index
// that is set wins, which is 0 on a port that a subnet manager knows. IPv4 addresses belong to IPoIB and are no GIDs,
// so a wish for one is ignored. Any other address must be one of the port's GIDs.
#pragma once

#include <verbena/error.hpp>

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace verbena::nic::verbs {

enum class LinkLayer : std::uint8_t { kInfiniBand, kEthernet };

/// The kernel prints "IB/RoCE v1" for both of the first two, so the link layer decides between them: kInfiniBand on
/// Ethernet is v1, and on InfiniBand the type does not matter.
enum class GidType : std::uint8_t { kInfiniBand, kRoceV1, kRoceV2 };
[[nodiscard]] const char* to_string(GidType type) noexcept;

/// How far a GID reaches, best first.
enum class GidKind : std::uint8_t {
  kIpv4,       ///< IPv4-mapped, and none of the following.
  kGlobal,     ///< Any other IPv6: global, unique local, or an InfiniBand subnet prefix from the subnet manager.
  kLinkLocal,  ///< fe80::/10 or 169.254.0.0/16: this segment only.
  kLoopback,   ///< ::1 or 127.0.0.0/8: this host only (Soft-RoCE over lo).
  kUnset,      ///< All zero, 0.0.0.0, or fe80:: with interface id 0, as a virtual function without a GUID has.
};
/// \thread any  \alloc none
[[nodiscard]] GidKind kind_of(const ibv_gid& gid) noexcept;
/// ::ffff:a.b.c.d, of whatever kind. \thread any  \alloc none
[[nodiscard]] bool is_ipv4_mapped(const ibv_gid& gid) noexcept;

/// Null-terminated.
using GidText = std::array<char, 46>;  // INET6_ADDRSTRLEN
/// As inet_ntop prints it; an IPv4-mapped one as IPv4. \thread any  \alloc none
[[nodiscard]] GidText gid_text(const ibv_gid& gid) noexcept;

/// An interface's name, as long as the kernel allows (IFNAMSIZ). If there is no null, the first fifteen characters
/// count.
using NetdevName = std::array<char, 16>;

/// One entry of a port's GID table.
struct GidEntry {
  std::uint32_t index = 0;
  ibv_gid gid{};
  GidType type = GidType::kRoceV2;
  NetdevName netdev{};  ///< Empty: none, or none in this process's network namespace.
};

/// The last index that ibv_global_route::sgid_index holds; Soft-RoCE has tables of 1024.
inline constexpr std::uint32_t kMaxGidIndex = 255;

/// The user's wishes. None: the best one.
struct GidWanted {
  std::optional<std::uint32_t> index;  ///< Takes precedence over `address`.
  /// The local address to connect from, IPv4-mapped or IPv6. The wildcard address (:: or 0.0.0.0) asks for none.
  std::optional<ibv_gid> address;
};

/// Null-terminated, printable ASCII, whatever the table has.
using GidReason = std::array<char, 208>;

struct GidChoice {
  std::uint32_t index = 0;  ///< At most kMaxGidIndex.
  ibv_gid gid{};
  GidType type = GidType::kRoceV2;  ///< kInfiniBand on InfiniBand, one of the others on Ethernet.
  NetdevName netdev{};              ///< Null-terminated, as in the kernel; empty: none.
  /// Why this one, and its limits; contains "warning:" if the rules would not have chosen the user's index.
  GidReason reason{};
  /// Whether address vectors need the global route (is_global): always on Ethernet; on InfiniBand only if the user asks
  /// for a GID, because LIDs reach the whole subnet without it.
  bool grh = true;
};

/// Chooses by the rules above. Uses the user's index if the table has a GID there, even if the rules would not choose
/// it. Errors: kNotFound (the table is empty; nothing in it is usable; no usable GID has the address, and then the text
/// lists what there is; no GID at the index), kBadArgument (an index above kMaxGidIndex).
/// Time grows with the length of the table. \thread any  \alloc none
[[nodiscard]] Result<GidChoice> choose_gid(LinkLayer layer, std::span<const GidEntry> table,
                                           const GidWanted& wanted) noexcept;

/// "GID 3 (10.0.0.1, RoCE v2, ens1f0): ..." with the reason. Null-terminated, printable.
using GidLine = std::array<char, 320>;
[[nodiscard]] GidLine describe(const GidChoice& choice) noexcept;

enum class GidUse : std::uint8_t {
  kTaken,
  kUsable,   ///< Another one is better, or the user asked for another one.
  kRefused,  ///< Unusable, or not the address asked for.
};

/// The verdict on one entry.
struct GidVerdict {
  GidEntry entry;  ///< Its netdev null-terminated, its type as in GidChoice.
  GidUse use = GidUse::kRefused;
  GidReason why{};
};

/// The whole table with reasons, for printing: by index, without entries that are unset. Exactly the entry that
/// `choose_gid` chooses is kTaken, or none if it fails. \thread any  \alloc setup
[[nodiscard]] std::vector<GidVerdict> judge_gids(LinkLayer layer, std::span<const GidEntry> table,
                                                 const GidWanted& wanted);

}  // namespace verbena::nic::verbs
