// Which GID of a port Verbena connects from, and why. Pure: somebody else reads the table, here it is judged.
//
// On Ethernet (RoCE) a GID is an IP address of a network interface. Usable are those with an interface, whose index
// fits an address vector, and, when an address was asked for, that have it. Of these the first difference decides:
//   1. RoCE v2 before v1. v1 has no IP header: no router passes it, whatever its address looks like.
//   2. Routable before link-local (fe80::/10, 169.254/16) before loopback.
//   3. IPv4 before IPv6. Both ends need the same family, or the QP does not come up, and so every node of a cluster has
//      to decide alike: UCX (v2 IPv4, v2 IPv6, v2 link-local, v1 ...) and NCCL (IPv4 unless told) decide like this.
//      IPv4 is also the one that stays: temporary IPv6 addresses (RFC 8981) expire, and their GIDs with them.
//   4. The lowest index. Two entries of one index differ by address, then interface: no order of entries matters.
// VLAN interfaces are interfaces like others; ask for the address to choose among them.
//
// On InfiniBand a GID is a subnet prefix and a port's GUID. Interfaces and types say nothing there; the lowest index
// that is set is taken, which is 0 on a port that a subnet manager knows. IPv4 addresses belong to IPoIB and are no
// GID, so one that is asked for does not decide. Any other address must be one of the port's GIDs.
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
/// Ethernet is v1, and on InfiniBand the type is not looked at.
enum class GidType : std::uint8_t { kInfiniBand, kRoceV1, kRoceV2 };
[[nodiscard]] const char* to_string(GidType type) noexcept;

/// How far a GID reaches, best first.
enum class GidKind : std::uint8_t {
  kIpv4,       ///< IPv4-mapped, and none of those below.
  kGlobal,     ///< Any other IPv6: global, unique local, or an InfiniBand subnet prefix of the subnet manager's.
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

/// An interface's name as the kernel bounds it (IFNAMSIZ). Of sixteen characters without a null the first fifteen
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

/// What the user asks for. Nothing: the best one.
struct GidWanted {
  std::optional<std::uint32_t> index;  ///< Goes before `address`.
  /// The local address to connect from, IPv4-mapped or IPv6. The any address (:: or 0.0.0.0) asks for none.
  std::optional<ibv_gid> address;
};

/// Null-terminated, printable ASCII whatever is in the table.
using GidReason = std::array<char, 208>;

struct GidChoice {
  std::uint32_t index = 0;  ///< At most kMaxGidIndex.
  ibv_gid gid{};
  GidType type = GidType::kRoceV2;  ///< kInfiniBand on InfiniBand, one of the others on Ethernet.
  NetdevName netdev{};              ///< Null-terminated and as the kernel has it; empty: none.
  /// Why this one, and what to know of it; contains "warning:" when an index was asked for that the rules would not
  /// have chosen.
  GidReason reason{};
  /// Whether address vectors need the global route (is_global): always on Ethernet; on InfiniBand only when a GID was
  /// asked for, for there LIDs reach the whole subnet without it.
  bool grh = true;
};

/// Chooses by the rules above. An index asked for is taken when the table has a GID there, used or not by the rules.
/// Errors: kNotFound (the table is empty; nothing in it is usable; no usable GID has the address, and then the text
/// lists what there is; no GID at the index), kBadArgument (an index above kMaxGidIndex).
/// Time grows with the length of the table. \thread any  \alloc none
[[nodiscard]] Result<GidChoice> choose_gid(LinkLayer layer, std::span<const GidEntry> table,
                                           const GidWanted& wanted) noexcept;

/// "GID 3 (10.0.0.1, RoCE v2, ens1f0): ..." with the reason. Null-terminated, printable.
using GidLine = std::array<char, 320>;
[[nodiscard]] GidLine describe(const GidChoice& choice) noexcept;

enum class GidUse : std::uint8_t {
  kTaken,
  kUsable,   ///< Another goes first, or was asked for.
  kRefused,  ///< Unusable, or not the address asked for.
};

/// What became of one entry.
struct GidVerdict {
  GidEntry entry;  ///< Its netdev null-terminated, its type as in GidChoice.
  GidUse use = GidUse::kRefused;
  GidReason why{};
};

/// The whole table with reasons, for printing: by index, without entries that are unset. One is kTaken if and only if
/// `choose_gid` chooses one, and it is that one. \thread any  \alloc setup
[[nodiscard]] std::vector<GidVerdict> judge_gids(LinkLayer layer, std::span<const GidEntry> table,
                                                 const GidWanted& wanted);

}  // namespace verbena::nic::verbs
