// Opens an RDMA device: chooses device, port and GID, and queries the device's limits.
#include "base/error.hpp"
#include "nic/descriptors.hpp"
#include "nic/verbs/verbs_nic.hpp"

#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

namespace verbena::nic::verbs {

namespace {

/// The library's list of devices, which the destructor frees. The devices themselves stay while a context of them is
/// open.
struct DeviceList {
  std::unique_ptr<ibv_device*[], void (*)(ibv_device**)> list;
  std::size_t count;
  [[nodiscard]] std::span<ibv_device* const> devices() const noexcept { return {list.get(), count}; }
};

[[nodiscard]] Result<DeviceList> device_list(const VerbsLibrary& library, const char* call) {
  int count = 0;
  ibv_device** list = library.device.get_device_list(&count);
  if (list != nullptr)
    return DeviceList{.list = {list, library.device.free_device_list}, .count = static_cast<std::size_t>(count)};
  const int cause = errno;
  return fail(cause == EPERM || cause == EACCES ? Status::kPermission : Status::kDevice, call, cause,
              "the kernel shows no RDMA devices ({}); load ib_uverbs and the device's driver, and in a container pass "
              "/dev/infiniband on",
              std::strerror(cause));
}

[[nodiscard]] Error no_device(std::string_view wanted, std::span<ibv_device* const> devices) {
  if (devices.empty()) {
    return format_error(Status::kNotFound, "open_verbs", ENODEV,
                        "this host has no RDMA device; load its driver, make a Soft-RoCE device (rdma link add rxe0 "
                        "type rxe netdev eth0), or use the soft NIC");
  }
  std::string names;
  for (const ibv_device* device : devices) (names += names.empty() ? "" : ", ") += device->name;
  return format_error(Status::kNotFound, "open_verbs", ENODEV, "there is no RDMA device {}; this host has: {}", wanted,
                      names);
}

[[nodiscard]] const char* name_of(ibv_port_state state) noexcept {
  switch (state) {
    case IBV_PORT_DOWN: return "down";
    case IBV_PORT_INIT: return "initialising (is a subnet manager running?)";
    case IBV_PORT_ARMED: return "armed";
    case IBV_PORT_ACTIVE: return "active";
    case IBV_PORT_ACTIVE_DEFER: return "active, deferred";
    default: return "in no state";
  }
}

[[nodiscard]] LinkLayer layer_of(const ibv_port_attr& attr) noexcept {
  // InfiniBand drivers said "unspecified" before Ethernet existed in verbs.
  return attr.link_layer == IBV_LINK_LAYER_ETHERNET ? LinkLayer::kEthernet : LinkLayer::kInfiniBand;
}

[[nodiscard]] std::uint32_t at_least_0(int value) noexcept { return static_cast<std::uint32_t>(std::max(value, 0)); }

/// The vendor id of the kernel's rxe (RXE_VENDOR_ID).
constexpr std::uint32_t kSoftRoceVendor = 0xffffff;

[[nodiscard]] Limits limits_of(const ibv_device_attr& attr, const ibv_port_attr& port) noexcept {
  return {.max_qp = at_least_0(attr.max_qp),
          .max_cq = at_least_0(attr.max_cq),
          .max_mr = at_least_0(attr.max_mr),
          .max_pd = at_least_0(attr.max_pd),
          .max_mw = at_least_0(attr.max_mw),
          .max_srq = at_least_0(attr.max_srq),
          .max_srq_wr = at_least_0(attr.max_srq_wr),
          .max_qp_wr = at_least_0(attr.max_qp_wr),
          .max_cqe = at_least_0(attr.max_cqe),
          // If READ has its own limit it is the smaller one, and a queue's segments serve both.
          .max_sge = at_least_0(attr.max_sge_rd > 0 ? std::min(attr.max_sge, attr.max_sge_rd) : attr.max_sge),
          .max_rd_atomic = std::min(at_least_0(std::min(attr.max_qp_rd_atom, attr.max_qp_init_rd_atom)),
                                    std::uint32_t{std::numeric_limits<std::uint8_t>::max()}),  // As in ibv_qp_attr.
          .max_message = port.max_msg_sz,
          .is_soft_roce = attr.vendor_id == kSoftRoceVendor};
}

[[nodiscard]] GidType type_of(std::uint32_t type) noexcept {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V2: return GidType::kRoceV2;
    case IBV_GID_TYPE_ROCE_V1: return GidType::kRoceV1;
    default: return GidType::kInfiniBand;
  }
}

[[nodiscard]] Network network_of(const DeviceFacts& facts) noexcept {
  if (facts.link_layer == LinkLayer::kInfiniBand) return Network::kInfiniBand;
  if (facts.gid.type == GidType::kRoceV1) return Network::kRoceV1;
  return is_ipv4_mapped(facts.gid.gid) ? Network::kRoceV2Ipv4 : Network::kRoceV2Ipv6;
}

[[nodiscard]] Error open_error(const char* device, int cause) noexcept {
  const bool forbidden = cause == EACCES || cause == EPERM;
  return format_error(
      forbidden ? Status::kPermission : Status::kDevice, "ibv_open_device", cause, "{} cannot be opened ({}); {}",
      device, std::strerror(cause),
      forbidden ? "give this user access to /dev/infiniband/uverbs*" : "look for the driver's messages in dmesg");
}

}  // namespace

Result<std::unique_ptr<Nic>> open_with(const VerbsLibrary& library, const VerbsOptions& options) {
  VERBENA_ASSIGN(const DeviceList list, device_list(library, "open_verbs"));
  Error last = no_device(options.device, list.devices());
  for (ibv_device* device : list.devices()) {
    if (!options.device.empty() && options.device != device->name) continue;
    auto nic = std::make_unique<VerbsNic>(library);
    auto started = nic->start(device, options);
    if (started) return nic;
    last = started.error();  // If no device is usable, the error is the last one's.
  }
  return std::unexpected(last);
}

Result<std::vector<DeviceSummary>> list_with(const VerbsLibrary& library) {
  VERBENA_ASSIGN(const DeviceList list, device_list(library, "list_devices"));
  std::vector<DeviceSummary> summaries;
  for (ibv_device* device : list.devices()) {
    ibv_context* context = library.device.open_device(device);
    if (context == nullptr) continue;
    ibv_device_attr attr{};
    const std::uint8_t ports = library.device.query_device(context, &attr) == 0 ? attr.phys_port_cnt : std::uint8_t{0};
    for (unsigned port = 1; port <= ports; ++port) {
      ibv_port_attr found{};
      if (library.device.query_port(context, static_cast<std::uint8_t>(port), &found) != 0) continue;
      summaries.push_back({.device = device->name,
                           .port = static_cast<std::uint8_t>(port),
                           .state = found.state,
                           .link_layer = layer_of(found),
                           .mtu = found.active_mtu,
                           .atomics = attr.atomic_cap,
                           .max_rd_atomic = limits_of(attr, found).max_rd_atomic});
    }
    library.device.close_device(context);
  }
  return summaries;
}

Result<void> VerbsNic::start(ibv_device* device, const VerbsOptions& options) {
  errno = 0;
  context_ = library_.device.open_device(device);
  if (context_ == nullptr) return std::unexpected(open_error(device->name, errno));
  commands_ = ClosedInChildren(context_->cmd_fd);
  news_ = ClosedInChildren(context_->async_fd);
  ibv_device_attr attr{};
  if (const int failed = library_.device.query_device(context_, &attr); failed != 0) {
    return fail(Status::kDevice, "ibv_query_device", failed,
                "{} does not answer the query of its limits; look into dmesg", name());
  }
  ibv_port_attr port{};
  VERBENA_TRY(choose_port(options.port, attr.phys_port_cnt, port));
  limits_ = limits_of(attr, port);
  facts_.vendor_id = attr.vendor_id;
  facts_.link_layer = layer_of(port);
  facts_.mtu = port.active_mtu;
  facts_.atomics = attr.atomic_cap;
  capabilities_ = {.has_atomics = attr.atomic_cap != IBV_ATOMIC_NONE,
                   .doorbell_is_costly = true,
                   .pins_memory = true,
                   .locality_name = name()};
  lid_ = port.lid;
  needs_grh_ = (port.flags & IBV_QPF_GRH_REQUIRED) != 0;
  VERBENA_TRY(find_gid(port, options.gid));
  facts_.network = network_of(facts_);
  if (ibv_td* td = library_.alloc_td(context_); td != nullptr) {
    facts_.thread_domains = true;
    library_.dealloc_td(td);
  }
  VERBENA_ASSIGN(limits_.max_inline, find_max_inline());
  return start_events();
}

Result<void> VerbsNic::choose_port(std::uint8_t wanted, std::uint8_t count, ibv_port_attr& attr) {
  if (wanted > count) {
    return fail(Status::kBadArgument, "open_verbs", EINVAL, "{} has no port {}: its ports are 1 to {}", name(), wanted,
                count);
  }
  const unsigned first = wanted != 0 ? wanted : 1;
  const unsigned last = wanted != 0 ? wanted : count;
  for (unsigned port = first; port <= last; ++port) {
    attr = {};
    if (const int failed = library_.device.query_port(context_, static_cast<std::uint8_t>(port), &attr); failed != 0) {
      return fail(Status::kDevice, "ibv_query_port", failed,
                  "{} does not answer the query of its port {}; look into dmesg", name(), port);
    }
    if (attr.state != IBV_PORT_ACTIVE) continue;
    facts_.port = static_cast<std::uint8_t>(port);
    return {};
  }
  if (first == last) {
    return fail(Status::kDevice, "open_verbs", ENETDOWN,
                "port {} of {} is {}; bring its link up (ip link set up, or the cable and the subnet manager), or "
                "choose another port",
                first, name(), name_of(attr.state));
  }
  return fail(Status::kDevice, "open_verbs", ENETDOWN,
              "none of the {} ports of {} is active (the last is {}); bring a link up (ip link set up, or the cable "
              "and the subnet manager)",
              count, name(), name_of(attr.state));
}

Result<void> VerbsNic::find_gid(const ibv_port_attr& attr, const GidWanted& wanted) {
  // The query gives the GIDs that are set, of all ports, and its array is measured in 16 bits. A table of 1024 rows, as
  // Soft-RoCE has, is nearly empty.
  constexpr std::size_t kMaxEntries = std::numeric_limits<std::uint16_t>::max() / sizeof(ibv_gid_entry);
  constexpr std::size_t kMaxPorts = 8;
  std::vector<ibv_gid_entry> raw(std::clamp(at_least_0(attr.gid_tbl_len) * kMaxPorts, std::size_t{1}, kMaxEntries));
  const ssize_t count = library_.device.query_gid_table(context_, raw.data(), raw.size());
  if (count < 0) {
    return fail(Status::kDevice, "ibv_query_gid_table", static_cast<int>(-count),
                "the GIDs of {} cannot be read ({}); look into dmesg", name(), std::strerror(static_cast<int>(-count)));
  }
  raw.resize(static_cast<std::size_t>(count));
  std::vector<GidEntry> table;
  table.reserve(raw.size());
  for (const ibv_gid_entry& entry : raw) {
    if (entry.port_num != facts_.port) continue;
    GidEntry& row = table.emplace_back();
    row.index = entry.gid_index;
    row.gid = entry.gid;
    row.type = type_of(entry.gid_type);
    static_assert(std::tuple_size_v<NetdevName> >= IF_NAMESIZE);
    // 0: none. An interface that is gone meanwhile, or is in another network namespace, has no name here either.
    if (entry.ndev_ifindex == 0 || ::if_indextoname(entry.ndev_ifindex, row.netdev.data()) == nullptr) row.netdev = {};
  }
  VERBENA_ASSIGN(facts_.gid, choose_gid(facts_.link_layer, table, wanted));
  return {};
}

// Verbs has no query for the inline limit: tries a few sizes, largest first, until a queue pair can be made. Reads the
// device's value back, because some round up.
Result<std::uint32_t> VerbsNic::find_max_inline() {
  const std::unique_ptr<ibv_pd, int (*)(ibv_pd*)> pd(library_.alloc_pd(context_), library_.dealloc_pd);
  if (pd == nullptr) return std::unexpected(probe_error("ibv_alloc_pd", errno));
  const std::unique_ptr<ibv_cq, int (*)(ibv_cq*)> cq(library_.create_cq(context_, 1, nullptr), library_.destroy_cq);
  if (cq == nullptr) return std::unexpected(probe_error("ibv_create_cq", errno));
  int cause = 0;
  for (const std::uint32_t size : {1024U, 512U, 256U, 128U, 64U, 32U, 0U}) {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq.get();
    attr.qp_type = IBV_QPT_RC;
    attr.cap = {.max_send_wr = 1,
                .max_recv_wr = 1,
                .max_send_sge = std::min(QpOptions{}.max_send_sge, limits_.max_sge),
                .max_recv_sge = 1,
                .max_inline_data = size};
    errno = 0;
    if (ibv_qp* qp = library_.create_qp(pd.get(), &attr); qp != nullptr) {
      library_.destroy_qp(qp);
      return attr.cap.max_inline_data;
    }
    cause = errno;
  }
  return std::unexpected(probe_error("ibv_create_qp", cause));
}

Error VerbsNic::probe_error(const char* call, int cause) const noexcept {
  return format_error(cause == ENOMEM ? Status::kNoMemory : Status::kDevice, call, cause,
                      "{} was opened and makes no queue pair ({}); raise RLIMIT_MEMLOCK (ulimit -l unlimited), or look "
                      "into dmesg",
                      name(), std::strerror(cause));
}

// --- asynchronous events ----------------------------------------------------------------------------------------

Result<void> VerbsNic::start_events() {
  VERBENA_TRY(set_non_blocking(context_->async_fd, "making a device's event descriptor non-blocking"));
  return events_.start("verbena-events", context_->async_fd, [this] { return take_event(); });
}

}  // namespace verbena::nic::verbs
