// RDMA devices from sysfs, with the library's own choice of a GID for their ports.
#include "nic/verbs/gid.hpp"
#include "programs/environment.hpp"
#include "programs/info.hpp"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <net/if.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace verbena::programs {
namespace {

constexpr std::string_view kClass = "sys/class/infiniband";

/// "ACTIVE" for "4: ACTIVE".
std::string after_colon(const std::string& text) {
  const std::size_t colon = text.find(':');
  return colon == std::string::npos ? text : std::string(without_blanks(std::string_view(text).substr(colon + 1)));
}

NetdevFacts read_netdev(const SystemFiles& files, const std::string& name) {
  const std::string directory = fmt::format("sys/class/net/{}", name);
  NetdevFacts netdev{.name = name,
                     .state = or_unknown(files.line(directory + "/operstate")),
                     .address = files.line(directory + "/address"),
                     .mtu = natural(files.number(directory + "/mtu"))};
  std::string flags = files.line(directory + "/flags");
  unsigned bits = 0;
  if (flags.starts_with("0x")) std::from_chars(flags.data() + 2, flags.data() + flags.size(), bits, 16);
  netdev.is_up = (bits & IFF_UP) != 0;
  return netdev;
}

std::optional<GidFacts> read_gid(const SystemFiles& files, const std::string& port, const std::string& index,
                                 bool is_ethernet) {
  const auto number = whole_number(index);
  if (!number || *number < 0 || *number > 0xffff) return std::nullopt;
  GidFacts gid{.index = static_cast<std::uint32_t>(*number)};
  const std::string text = files.line(fmt::format("{}/gids/{}", port, index));
  if (::inet_pton(AF_INET6, text.c_str(), gid.bytes.data()) != 1) return std::nullopt;
  // Most entries of a table are empty.
  if (std::ranges::all_of(gid.bytes, [](std::uint8_t byte) { return byte == 0; })) return std::nullopt;
  // The kernel uses one name for GIDs of InfiniBand and of RoCE v1.
  const std::string type = files.line(fmt::format("{}/gid_attrs/types/{}", port, index));
  if (type == "RoCE v2") {
    gid.type = type;
  } else if (type == "IB/RoCE v1" || !is_ethernet) {
    gid.type = is_ethernet ? "RoCE v1" : "InfiniBand";
  } else {
    gid.type = "unknown";
  }
  gid.netdev = files.line(fmt::format("{}/gid_attrs/ndevs/{}", port, index));
  return gid;
}

namespace verbs = nic::verbs;

verbs::GidEntry entry_of(const GidFacts& gid) {
  verbs::GidEntry entry{.index = gid.index};
  static_assert(sizeof entry.gid.raw == sizeof gid.bytes);
  std::memcpy(entry.gid.raw, gid.bytes.data(), gid.bytes.size());
  // Kernels that report no type have no RoCE v2.
  entry.type = gid.type == "RoCE v2" ? verbs::GidType::kRoceV2 : verbs::GidType::kInfiniBand;
  std::copy_n(gid.netdev.begin(), std::min(gid.netdev.size(), entry.netdev.size() - 1), entry.netdev.begin());
  return entry;
}

/// Fills in the GID that the library would choose for the port, and why not the others.
void explain_gids(PortFacts& port) {
  const auto layer = port.is_ethernet() ? verbs::LinkLayer::kEthernet : verbs::LinkLayer::kInfiniBand;
  std::vector<verbs::GidEntry> table;
  for (GidFacts& gid : port.gids) {
    table.push_back(entry_of(gid));
    gid.address = verbs::gid_text(table.back().gid).data();
    gid.verdict = "empty";
  }
  for (const verbs::GidVerdict& verdict : verbs::judge_gids(layer, table, {})) {
    const auto gid = std::ranges::find(port.gids, verdict.entry.index, &GidFacts::index);
    if (gid != port.gids.end()) gid->verdict = verdict.why.data();
  }
  const auto choice = verbs::choose_gid(layer, table, {});
  if (choice) port.gid_index = choice->index;
  port.gid_reason = choice ? std::string(choice->reason.data()) : std::string(choice.error().text());
}

/// Interfaces of a port: the ones that its GIDs name. A port without GIDs (its interface is down) has those of the
/// device at the same place; a software device has the one that it was made on.
std::vector<std::string> netdev_names(const SystemFiles& files, const std::string& device, const PortFacts& port,
                                      bool only_port) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (name.empty() || name.find('/') != std::string::npos || std::ranges::find(names, name) != names.end()) return;
    if (files.exists("sys/class/net/" + name)) names.push_back(name);
  };
  for (const GidFacts& gid : port.gids) add(gid.netdev);
  if (!names.empty()) return names;
  for (const std::string& name : files.names(device + "/device/net")) {
    const auto place = files.number(fmt::format("{}/device/net/{}/dev_port", device, name));
    if (only_port || (place && *place == static_cast<std::int64_t>(port.number) - 1)) add(name);
  }
  if (names.empty()) add(files.line(device + "/parent"));
  return names;
}

PortFacts read_port(const SystemFiles& files, const std::string& device, const std::string& name, bool only_port) {
  const std::string directory = fmt::format("{}/ports/{}", device, name);
  PortFacts port{.number = static_cast<unsigned>(whole_number(name).value_or(0)),
                 .state = after_colon(files.line(directory + "/state")),
                 .physical = after_colon(files.line(directory + "/phys_state")),
                 .link_layer = files.line(directory + "/link_layer"),
                 .rate = files.line(directory + "/rate"),
                 .lid = files.line(directory + "/lid")};
  for (const std::string& index : files.names(directory + "/gids")) {
    if (auto gid = read_gid(files, directory, index, port.is_ethernet())) port.gids.push_back(std::move(*gid));
  }
  for (const std::string& netdev : netdev_names(files, device, port, only_port)) {
    port.netdevs.push_back(read_netdev(files, netdev));
  }
  explain_gids(port);
  return port;
}

/// The device's "uverbs0"; empty if ib_uverbs has none.
std::string uverbs_of(const SystemFiles& files, const std::string& device) {
  for (const std::string& name : files.names("sys/class/infiniband_verbs")) {
    if (files.line(fmt::format("sys/class/infiniband_verbs/{}/ibdev", name)) == device) return name;
  }
  return {};
}

/// PCI Express lets a device relax the order of its writes only if its device control register allows it.
std::string relaxed_ordering_of(const SystemFiles& files, const std::string& device) {
  constexpr std::size_t kStatus = 0x06, kFirstCapability = 0x34, kHeader = 0x40;
  constexpr std::uint8_t kHasCapabilities = 0x10, kPciExpress = 0x10, kRelaxedOrdering = 0x10;
  const auto config = files.text(device + "/device/config");
  if (!config || config->size() < kHeader) return "unknown: no PCI configuration";
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>((*config)[at]); };
  if ((byte(kStatus) & kHasCapabilities) == 0) return "unknown: not a PCI Express device";
  if (config->size() == kHeader) return "unknown: only root may read the whole PCI configuration";
  std::size_t at = byte(kFirstCapability) & 0xfcU;
  // 48 capabilities fill the 256 bytes, so a longer chain is a loop.
  for (int hop = 0; hop < 48 && at >= kHeader && at + 9 < config->size(); ++hop) {
    if (byte(at) == kPciExpress) {
      return (byte(at + 8) & kRelaxedOrdering) != 0 ? "allowed by the PCI Express device control"
                                                    : "forbidden by the PCI Express device control";
    }
    at = byte(at + 1) & 0xfcU;
  }
  return "unknown: not a PCI Express device";
}

/// Describes the atomics of an opened device. The first port speaks for all: atomics are the device's.
std::string atomic_of(const nic::DeviceSummary& summary) {
  const std::string depth = fmt::format("{} READs and atomics in flight on a queue pair", summary.max_rd_atomic);
  switch (summary.atomics) {
    case IBV_ATOMIC_NONE: return "none: the device has no atomic operations";
    case IBV_ATOMIC_HCA: return "among this device's own operations, not with the CPU's or another device's; " + depth;
    case IBV_ATOMIC_GLOB: return "with every access to the memory, the CPU's and other devices' too; " + depth;
  }
  return "unknown: the device names a kind that is not known here; " + depth;
}

/// Why a device was not opened.
std::string not_opened(const DeviceFacts& device) {
  if (device.char_device.empty()) return "unknown: no file under /dev/infiniband to open the device by";
  if (!device.may_open) return fmt::format("unknown: this user cannot open {}", device.char_device);
  return "unknown: the device cannot be opened; ibv_devinfo and dmesg say more";
}

DeviceFacts read_device(const SystemFiles& files, const std::string& name) {
  const std::string directory = fmt::format("{}/{}", kClass, name);
  DeviceFacts device{.name = name,
                     .kind = after_colon(files.line(directory + "/node_type")),
                     .guid = files.line(directory + "/node_guid"),
                     .firmware = files.line(directory + "/fw_ver")};
  // -1 if the firmware does not say.
  if (const auto node = files.number(directory + "/device/numa_node"); node && *node >= 0 && *node < 4096) {
    device.numa_node = static_cast<unsigned>(*node);
  }
  if (const std::string uverbs = uverbs_of(files, name); !uverbs.empty()) {
    const std::string path = "dev/infiniband/" + uverbs;
    device.char_device = "/" + path;
    device.char_device_there = files.exists(path);
    device.may_open = files.may_open(path);
  }
  device.relaxed_ordering = relaxed_ordering_of(files, directory);
  std::vector<std::string> ports = files.names(directory + "/ports");
  std::erase_if(ports, [](const std::string& port) {
    const auto number = whole_number(port);
    return !number || *number < 1 || *number > 255;
  });
  for (const std::string& port : ports) device.ports.push_back(read_port(files, directory, port, ports.size() == 1));
  return device;
}

}  // namespace

std::vector<DeviceFacts> read_devices(const SystemFiles& files) {
  std::vector<DeviceFacts> devices;
  for (const std::string& name : files.names(kClass)) devices.push_back(read_device(files, name));
  return devices;
}

void explain_atomics(std::vector<DeviceFacts>& devices, const Result<std::vector<nic::DeviceSummary>>& opened) {
  for (DeviceFacts& device : devices) {
    if (!opened) {
      device.atomic = fmt::format("unknown: {}", opened.error().text());
      continue;
    }
    const auto found = std::ranges::find(*opened, device.name, &nic::DeviceSummary::device);
    device.atomic = found != opened->end() ? atomic_of(*found) : not_opened(device);
  }
}

RdmaModules read_modules(const SystemFiles& files) {
  // A built-in driver has no directory under /sys/module, but its class exists.
  return {.uverbs = files.exists("sys/module/ib_uverbs") || files.exists("sys/class/infiniband_verbs"),
          .rdma_ucm = files.exists("sys/module/rdma_ucm") || files.exists("sys/class/misc/rdma_cm")};
}

}  // namespace verbena::programs
