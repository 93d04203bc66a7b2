/// \file
/// Which NIC a program uses, and how its connections are made.
#pragma once

#include <verbena/status.hpp>

#include <cstdint>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace verbena {

/// How the two ends of a connection find each other. Both ends must choose the same.
enum class Bootstrap : std::uint8_t {
  kCm,      ///< RDMA CM, which knows the path. The address must be an RDMA device's own. The software NIC uses a TCP
            ///< exchange instead.
  kSocket,  ///< A TCP exchange at any address of the host, over any network.
};

/// Choice of NIC and bootstrap. The default chooses the best NIC of this host.
struct Transport {
  Bootstrap bootstrap = Bootstrap::kCm;  ///< Both ends must choose the same.
  /// Empty: an RDMA device if there is a usable one, else the software NIC. "soft": the software NIC. Else a device as
  /// `ibv_devices` and `verbena-info` print it, with its port if it is not the first active one: "mlx5_0", "mlx5_0:2".
  std::string device{};
  /// Row of the port's GID table, 0 to 255; empty: the best one, as `verbena-info` explains. In socket mode both ends
  /// need GIDs of one kind; RDMA CM chooses by the addresses, and ignores this.
  std::optional<std::uint32_t> gid_index{};
};

}  // namespace verbena

#pragma GCC visibility pop
