#include "link/fabric.hpp"

#include "base/error.hpp"
#include "base/limit.hpp"
#include "link/cm/cm.hpp"
#include "link/frames.hpp"
#include "link/socket.hpp"
#include "nic/verbs.hpp"

#include <netinet/in.h>
#include <unistd.h>

#include <charconv>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

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
  if (error == std::errc() && rest == end && name.port != 0 && !name.device.empty() && name.device != "soft")
    return name;
  return fail(
      Status::kBadArgument, "Fabric::open", 0,
      "device \"{:.60}\" is not a device name: write soft, a device such as mlx5_0, or one with its port, mlx5_0:2",
      text);
}

Result<void> check(const Transport& transport) {
  if (transport.bootstrap != Bootstrap::kCm && transport.bootstrap != Bootstrap::kSocket)
    return fail(Status::kBadArgument, "Fabric::open", 0, "bootstrap must be kCm (0) or kSocket (1); got {}",
                std::to_underlying(transport.bootstrap));
  if (transport.gid_index) return check_limit("Fabric::open", "gid_index", *transport.gid_index, 0, 255);
  return {};
}

bool is_loopback(const sockaddr& address) noexcept {
  if (address.sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

/// Where an automatic choice searches for the device.
enum class Where : std::uint8_t { kAnywhere, kLoopback, kAddress };
Result<Where> where_is(const std::string& address) {
  if (address.empty()) return Where::kAnywhere;
  VERBENA_ASSIGN(const Addresses addresses, resolve(address, 0, 0));
  if (is_loopback(*addresses->ai_addr)) return Where::kLoopback;
  return is_any(*addresses->ai_addr) ? Where::kAnywhere : Where::kAddress;
}

/// The GID as an address that peers can use; "" if it is none.
std::string address_of(const nic::DeviceFacts& facts) {
  const auto kind = nic::verbs::kind_of(facts.gid.gid);
  const bool is_address = facts.link_layer == nic::verbs::LinkLayer::kEthernet &&
                          (kind == nic::verbs::GidKind::kIpv4 || kind == nic::verbs::GidKind::kGlobal);
  return is_address ? std::string(nic::verbs::gid_text(facts.gid.gid).data()) : std::string();
}

/// Without devices don't call librdmacm: it prints what is missing.
bool has_devices() {
  const auto devices = nic::list_devices();
  return devices && !devices->empty();
}

/// This process's user and the allowed ones, each once.
std::string users_of(std::span<const uid_t> allowed) {
  std::set<uid_t> others(allowed.begin(), allowed.end());
  others.erase(::geteuid());
  std::string text = fmt::format("user{} {}", others.empty() ? "" : "s", ::geteuid());
  for (const uid_t uid : others) fmt::format_to(std::back_inserter(text), ", {}", uid);
  return text;
}

/// The cause in an error's text, without the fix, which is for users who want the device.
std::string cause_of(const Error& error) {
  const std::string_view text = error.text();
  return std::string(text.substr(0, text.find(';')));
}

}  // namespace

const char* to_string(Bootstrap bootstrap) noexcept { return bootstrap == Bootstrap::kCm ? "RDMA CM" : "socket"; }

Result<std::unique_ptr<Fabric>> Fabric::open(const FabricOptions& options, Deadline deadline, NicRegistry& registry) {
  VERBENA_TRY(check(options.transport));
  std::unique_ptr<Fabric> fabric(new Fabric);
  fabric->bootstrap_ = options.transport.bootstrap;
  fabric->address_ = options.address;
  fabric->users_ = users_of(options.allowed_uids);
  VERBENA_TRY(fabric->take_keys(options));
  if (options.transport.device == "soft") {
    VERBENA_TRY(fabric->use_soft(registry, options, "as asked for"));
  } else if (!options.transport.device.empty()) {
    VERBENA_TRY(fabric->use_named(registry, options));
  } else {
    VERBENA_TRY(fabric->choose(registry, options, deadline));
  }
  VERBENA_TRY(fabric->finish());
  return fabric;
}

/// Runs before anything is opened, because a missing key is an error and no reason to go without a key.
Result<void> Fabric::take_keys(const FabricOptions& options) {
  if (options.key_file.empty()) {
    if (options.key_name.empty()) return {};
    return fail(Status::kBadArgument, "Fabric::open", 0, "key_name is given without key_file: give the file, too");
  }
  VERBENA_ASSIGN(auto keys, Keys::load(options.key_file));
  if (options.role == Role::kServer) {
    keys_ = std::move(keys);
    return {};
  }
  VERBENA_ASSIGN(key_, keys->choose(options.key_name));
  return {};
}

Result<void> Fabric::use_named(NicRegistry& registry, const FabricOptions& options) {
  VERBENA_ASSIGN(const DeviceName name, parse_device(options.transport.device));
  auto device = registry.device(
      {.device = name.device, .port = name.port, .gid = {.index = options.transport.gid_index, .address = {}}});
  if (!device) {
    const Error& error = device.error();
    const bool is_named = std::string_view(error.text()).find(name.device) != std::string_view::npos;
    if (is_named) return std::unexpected(error);
    return fail(error.status(), error.call(), error.system_errno(), "device {:.60}: {}", name.device, error.text());
  }
  use(std::move(*device), "as asked for");
  return {};
}

Result<void> Fabric::use_soft(NicRegistry& registry, const FabricOptions& options, std::string why) {
  VERBENA_ASSIGN(shared_, registry.soft(options.allowed_uids));
  reason_ = std::move(why);
  return {};
}

void Fabric::use(SharedDevice device, std::string why) {
  shared_ = std::move(device.nic);
  gid_ = device.gid;
  reason_ = std::move(why);
}

// If no device is usable, that is the reason for the software NIC, not an error.
Result<void> Fabric::choose(NicRegistry& registry, const FabricOptions& options, Deadline deadline) {
  VERBENA_ASSIGN(const Where where, where_is(options.address));
  nic::VerbsOptions wanted{.device = {}, .port = 0, .gid = {.index = options.transport.gid_index, .address = {}}};
  const char* why = "the first usable RDMA device";
  if (bootstrap_ == Bootstrap::kCm && where == Where::kLoopback)
    return use_soft(registry, options,
                    fmt::format("{} is a loopback address, which no RDMA device has", options.address));
  if (bootstrap_ == Bootstrap::kCm && where == Where::kAddress && has_devices()) {
    auto place = options.role == Role::kServer ? cm::place_of(options.address)
                                               : cm::place_towards(options.address, options.port, deadline);
    if (!place) return use_soft(registry, options, cause_of(place.error()));
    if (wanted.gid.index) place->gid = wanted.gid;
    wanted = std::move(*place);
    why = options.role == Role::kServer ? "the device of that address" : "the device towards that address";
  }
  auto device = registry.device(wanted);
  if (!device) return use_soft(registry, options, cause_of(device.error()));
  use(std::move(*device), why);
  return {};
}

Result<void> Fabric::finish() {
  const nic::DeviceFacts* facts = nic::facts_of(nic());
  const bool has_key = keys_ != nullptr || key_ != nullptr;
  // RDMA CM chose the device by the address. Its private data has no room for a challenge, so a key needs a socket.
  if (facts != nullptr && has_key && bootstrap_ == Bootstrap::kCm) {
    bootstrap_ = Bootstrap::kSocket;
    if (address_.empty()) address_ = address_of(*facts);
  }
  reason_ = facts == nullptr ? fmt::format("software NIC ({}), {} over TCP", reason_, to_string(bootstrap_))
                             : fmt::format("{} port {} ({}), {}, {}", nic().name(), facts->port, reason_,
                                           to_string(bootstrap_), nic::verbs::describe(gid_).data());
  if (key_ != nullptr) fmt::format_to(std::back_inserter(reason_), ", with the key {}", key_->name());
  if (facts == nullptr || bootstrap_ == Bootstrap::kSocket) {
    if (address_.empty()) address_ = kLoopbackAddress;
    VERBENA_ASSIGN(watcher_, shared_->watcher());
    return {};
  }
  if (address_.empty()) address_ = address_of(*facts);
  if (address_.empty()) {
    return fail(Status::kBadArgument, "Fabric::open", 0,
                "{} has no IP address of its own: give the address of its IPoIB interface, or use socket mode",
                nic().name());
  }
  VERBENA_ASSIGN(manager_, shared_->manager());
  return {};
}

std::string Fabric::admission() const {
  const std::string keys = keys_ == nullptr ? std::string()
                                            : fmt::format("prove a key of {} ({} key{})", keys_->path(), keys_->count(),
                                                          keys_->count() == 1 ? "" : "s");
  if (nic::facts_of(nic()) == nullptr)
    return fmt::format("open to processes of {}{}{}", users_, keys.empty() ? "" : " that ", keys);
  return keys.empty() ? "open to anybody who reaches the port: a key file restricts it"
                      : "open to clients that " + keys;
}

Result<std::unique_ptr<Listener>> Fabric::listen(ListenerOptions options) {
  options.address = address_;
  options.keys = keys_;
  options.watcher = watcher_;
  options.nic = &nic();
  if (bootstrap_ == Bootstrap::kCm) {
    options.max_request_bytes = kMaxCmRequestBytes;
    options.max_answer_bytes = kMaxCmAnswerBytes;
  }
  return manager_ != nullptr ? manager_->listen(options) : Listener::open(options);
}

Result<std::unique_ptr<Handshake>> Fabric::dial(std::uint16_t port, const Endpoint& local, Deadline deadline) {
  if (manager_ != nullptr) return manager_->dial(address_, port, local, deadline);
  if (bootstrap_ == Bootstrap::kCm) VERBENA_TRY(check_user_data(local, kMaxCmRequestBytes, "dial"));
  return link::dial(address_, port, local, deadline, {.watcher = watcher_, .nic = &nic(), .key = key_});
}

}  // namespace verbena::link
