#include "link/fabric.hpp"

#include "base/error.hpp"
#include "link/cm/cm.hpp"
#include "link/frames.hpp"
#include "link/socket.hpp"
#include "link/socket_watcher.hpp"
#include "nic/verbs.hpp"

#include <netinet/in.h>

#include <charconv>
#include <string_view>

namespace verbena::link {

namespace {

constexpr const char* kLoopbackAddress = "127.0.0.1";

/// The parts of a device's name as users write it.
struct DeviceName {
  std::string device;
  std::uint8_t port = 0;
};

Result<DeviceName> parse_device(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return DeviceName{.device = text, .port = 0};
  DeviceName name{.device = text.substr(0, colon), .port = 0};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, name.port);
  if (error == std::errc() && rest == end && name.port != 0 && !name.device.empty()) return name;
  return fail(Status::kBadArgument, "Fabric::open", 0,
              "\"{:.60}\" names no device: write soft, a device such as mlx5_0, or one with its port, mlx5_0:2", text);
}

bool is_loopback(const sockaddr& address) noexcept {
  if (address.sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

/// Where an automatic choice looks for the device.
enum class Where : std::uint8_t { kAnywhere, kLoopback, kAddress };
Result<Where> where_is(const std::string& address) {
  if (address.empty()) return Where::kAnywhere;
  VERBENA_ASSIGN(const Addresses addresses, resolve(address, 0, 0));
  if (is_loopback(*addresses->ai_addr)) return Where::kLoopback;
  return is_any(*addresses->ai_addr) ? Where::kAnywhere : Where::kAddress;
}

/// The GID as an address that others can name, where it is one.
std::string address_of(const nic::DeviceFacts& facts) {
  const auto kind = nic::verbs::kind_of(facts.gid.gid);
  const bool is_address = facts.link_layer == nic::verbs::LinkLayer::kEthernet &&
                          (kind == nic::verbs::GidKind::kIpv4 || kind == nic::verbs::GidKind::kGlobal);
  return is_address ? std::string(nic::verbs::gid_text(facts.gid.gid).data()) : std::string();
}

/// Without any, librdmacm is not to be asked: it prints what it misses.
bool has_devices() {
  const auto devices = nic::list_devices();
  return devices && !devices->empty();
}

/// Of an error's sentence the cause, without the fix: that is for those who want the device.
std::string cause_of(const Error& error) {
  const std::string_view text = error.text();
  return std::string(text.substr(0, text.find(';')));
}

}  // namespace

const char* to_string(Bootstrap bootstrap) noexcept { return bootstrap == Bootstrap::kCm ? "RDMA CM" : "socket"; }

Fabric::~Fabric() = default;

Result<std::unique_ptr<Fabric>> Fabric::open(const FabricOptions& options, Deadline deadline) {
  std::unique_ptr<Fabric> fabric(new Fabric);
  fabric->bootstrap_ = options.transport.bootstrap;
  fabric->address_ = options.address;
  if (options.transport.device == "soft") {
    VERBENA_TRY(fabric->open_soft(options, "as asked for"));
  } else if (!options.transport.device.empty()) {
    VERBENA_TRY(fabric->open_named(options));
  } else {
    VERBENA_TRY(fabric->choose(options, deadline));
  }
  VERBENA_TRY(fabric->finish());
  return fabric;
}

Result<void> Fabric::open_named(const FabricOptions& options) {
  VERBENA_ASSIGN(const DeviceName name, parse_device(options.transport.device));
  VERBENA_ASSIGN(nic_, nic::open_verbs({.device = name.device,
                                        .port = name.port,
                                        .gid = {.index = options.transport.gid_index, .address = {}}}));
  reason_ = "as asked for";
  return {};
}

Result<void> Fabric::open_soft(const FabricOptions& options, std::string why) {
  VERBENA_ASSIGN(nic_, nic::open_soft({.allowed_uids = options.allowed_uids}));
  reason_ = std::move(why);
  return {};
}

// Whatever keeps a device from being used is the reason for the software NIC, not an error.
Result<void> Fabric::choose(const FabricOptions& options, Deadline deadline) {
  VERBENA_ASSIGN(const Where where, where_is(options.address));
  nic::VerbsOptions wanted{.device = {}, .port = 0, .gid = {.index = options.transport.gid_index, .address = {}}};
  const char* why = "the first usable RDMA device";
  if (bootstrap_ == Bootstrap::kCm && where == Where::kLoopback)
    return open_soft(options, fmt::format("{} is a loopback address, which no RDMA device has", options.address));
  if (bootstrap_ == Bootstrap::kCm && where == Where::kAddress && has_devices()) {
    const auto place = options.role == Role::kServer ? cm::place_of(options.address)
                                                     : cm::place_towards(options.address, options.port, deadline);
    if (!place) return open_soft(options, cause_of(place.error()));
    wanted.device = place->device;
    wanted.port = place->port;
    if (!wanted.gid.index) wanted.gid.address = place->gid.address;
    why = options.role == Role::kServer ? "the device of that address" : "the device towards that address";
  }
  auto opened = nic::open_verbs(wanted);
  if (!opened) return open_soft(options, cause_of(opened.error()));
  nic_ = std::move(*opened);
  reason_ = why;
  return {};
}

Result<void> Fabric::finish() {
  const nic::DeviceFacts* facts = nic::facts_of(*nic_);
  if (facts == nullptr) {
    if (address_.empty()) address_ = kLoopbackAddress;
    reason_ = fmt::format("software NIC ({}), {} over TCP", reason_, to_string(bootstrap_));
    return {};
  }
  reason_ = fmt::format("{} port {} ({}), {}, {}", nic_->name(), facts->port, reason_, to_string(bootstrap_),
                        nic::verbs::describe(facts->gid).data());
  if (bootstrap_ == Bootstrap::kSocket) {
    if (address_.empty()) address_ = kLoopbackAddress;
    VERBENA_ASSIGN(watcher_, SocketWatcher::start());
    return {};
  }
  if (address_.empty()) address_ = address_of(*facts);
  if (address_.empty()) {
    return fail(Status::kBadArgument, "Fabric::open", 0,
                "{} has no IP address of its own: give the address of its IPoIB interface, or use socket mode",
                nic_->name());
  }
  VERBENA_ASSIGN(manager_, cm::start(*nic_));
  return {};
}

Result<std::unique_ptr<Listener>> Fabric::listen(ListenerOptions options) {
  options.address = address_;
  options.watcher = watcher_.get();
  if (bootstrap_ == Bootstrap::kCm) {
    options.max_request_bytes = kMaxCmRequestBytes;
    options.max_answer_bytes = kMaxCmAnswerBytes;
  }
  return manager_ ? manager_->listen(options) : Listener::open(options);
}

Result<Dialed> Fabric::dial(std::uint16_t port, const Endpoint& local, Deadline deadline) {
  if (manager_) return manager_->dial(address_, port, local, deadline);
  if (bootstrap_ == Bootstrap::kCm) VERBENA_TRY(check_user_data(local, kMaxCmRequestBytes, "dial"));
  return link::dial(address_, port, local, deadline, watcher_.get());
}

}  // namespace verbena::link
