#include "link/cm/id.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/fd.hpp"
#include "link/cm/private_data.hpp"
#include "nic/descriptors.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

namespace verbena::link::cm {

namespace {

// Reasons of the InfiniBand specification, volume 1, table 119 "REJ Reason Code".
constexpr int kInvalidServiceId = 8;
constexpr int kConsumerDefined = 28;

Error rejected(const rdma_cm_event& event, const char* peer) noexcept {
  const rdma_conn_param& param = event.param.conn;
  if (event.status == kInvalidServiceId) {
    return format_error(Status::kConnectionRefused, "rdma_connect", ECONNREFUSED,
                        "nothing listens at {} by RDMA CM: start the server there, check address and port, or connect "
                        "as the server does (socket mode, the soft NIC, or with a key file)",
                        peer);
  }
  if (event.status != kConsumerDefined) {
    return format_error(Status::kRejected, "rdma_connect", 0,
                        "RDMA CM of {} rejected the connection with reason {} of the InfiniBand specification", peer,
                        event.status);
  }
  const std::span data(static_cast<const std::byte*>(param.private_data),
                       param.private_data != nullptr ? std::size_t{param.private_data_len} : 0);
  // Destroying an unanswered request sends zeros.
  if (std::ranges::all_of(data, [](std::byte byte) { return byte == std::byte{0}; })) {
    return format_error(Status::kPeerLost, "rdma_connect", 0,
                        "{} closed the connection before its answer: see whether it still runs and what it logged",
                        peer);
  }
  const auto reject = decode_cm_reject(data);
  if (!reject) {
    return format_error(Status::kProtocol, "handshake", 0, "{} rejected the connection, and {}", peer,
                        reject.error().text());
  }
  return format_error(reject->status, "handshake", 0, "{} rejected the connection: {}", peer,
                      reject->text_bytes != 0 ? reject->reason() : std::string_view(to_string(reject->status)));
}

Error not_on_a_device(const char* call, int cause, const char* peer) noexcept {
  return format_error(Status::kNotFound, call, cause,
                      "{} is not reached by an RDMA device ({}): give an address of an interface that has one "
                      "(verbena-info lists them), or connect in socket mode",
                      peer, std::strerror(cause));
}

/// The error for an event that came instead of the expected one.
Error error_of(const rdma_cm_event& event, const char* peer) noexcept {
  // An errno is negative.
  const int cause = event.status < 0 ? -event.status : 0;
  switch (event.event) {
    case RDMA_CM_EVENT_REJECTED: return rejected(event, peer);
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
      if (cause == ENODEV || cause == EADDRNOTAVAIL) return not_on_a_device("rdma_resolve_addr", cause, peer);
      return format_error(cause == ETIMEDOUT ? Status::kTimedOut : Status::kPeerLost, "rdma_resolve_addr", cause,
                          "no path to {} was found ({}): check the address, its host, and the network between", peer,
                          cause != 0 ? std::strerror(cause) : "no reason given");
    case RDMA_CM_EVENT_UNREACHABLE:
      return format_error(Status::kTimedOut, "rdma_connect", cause,
                          "RDMA CM of {} does not answer: check that the host is up and has rdma_ucm loaded", peer);
    case RDMA_CM_EVENT_DISCONNECTED:
      return format_error(Status::kPeerLost, "handshake", 0,
                          "{} disconnected in the handshake: see whether it still runs and what it logged", peer);
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return format_error(Status::kDevice, "handshake", ENODEV, "the RDMA device was removed");
    default:
      return format_error(Status::kDevice, "handshake", cause,
                          "RDMA CM ended the handshake with {} (event {}); look for messages in dmesg", peer,
                          static_cast<int>(event.event));
  }
}

}  // namespace

Result<void> check_event(const Event& event, rdma_cm_event_type expected, const char* peer) noexcept {
  if (event->event == expected && event->status == 0) return {};
  return std::unexpected(error_of(*event, peer));
}

std::unexpected<Error> refused(const char* call, int cause, const char* peer) noexcept {
  switch (cause) {
    case ENODEV:
    case EADDRNOTAVAIL: return std::unexpected(not_on_a_device(call, cause, peer));
    case EADDRINUSE:
      return fail(Status::kSystem, call, cause, "{} is in use: choose another port, or stop what listens there", peer);
    case ENETUNREACH:
    case EHOSTUNREACH:
      return fail(Status::kPeerLost, call, cause, "{} cannot be reached: {}; check the address and this host's routes",
                  peer, std::strerror(cause));
    default:
      return fail(status_of_errno(cause) == Status::kSystem ? Status::kDevice : status_of_errno(cause), call, cause,
                  "RDMA CM refused {} for {} ({}); look for messages in dmesg", call, peer, std::strerror(cause));
  }
}

Result<EventChannel> EventChannel::open(const CmLibrary& library) {
  errno = 0;
  EventChannel channel;
  channel.channel_ = {library.create_event_channel(), {.library = &library}};
  if (channel.channel_ == nullptr) {
    const int cause = errno;
    const Status status = status_of_errno(cause);
    return fail(status == Status::kSystem ? Status::kDevice : status, "rdma_create_event_channel", cause,
                "this kernel offers no RDMA CM ({}): load rdma_ucm, in a container pass /dev/infiniband/rdma_cm on, or "
                "connect in socket mode",
                std::strerror(cause));
  }
  channel.closed_ = ClosedInChildren(channel.fd());
  VERBENA_TRY(nic::set_non_blocking(channel.fd(), "preparing RDMA CM's event channel"));
  return channel;
}

Result<Event> EventChannel::poll() const {
  const CmLibrary& library = *channel_.get_deleter().library;
  for (;;) {
    rdma_cm_event* event = nullptr;
    if (library.get_event(get(), &event) == 0) return Event(event, {.library = &library});
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Event();
    if (errno != EINTR)
      return fail(Status::kDevice, "rdma_get_cm_event", errno, "RDMA CM's event channel is broken ({})",
                  std::strerror(errno));
  }
}

Result<Event> EventChannel::expect(rdma_cm_event_type expected, const char* peer, Deadline deadline) const {
  for (;;) {
    VERBENA_ASSIGN(Event event, poll());
    if (event) {
      VERBENA_TRY(check_event(event, expected, peer));
      return event;
    }
    if (!wait_readable(fd(), deadline)) {
      return fail(Status::kTimedOut, "rdma_connect", 0,
                  "{} does not answer by RDMA CM: check that the host is up, runs a Verbena server and has rdma_ucm "
                  "loaded",
                  peer);
    }
  }
}

Result<Id> Id::create(const CmLibrary& library) {
  VERBENA_ASSIGN(EventChannel channel, EventChannel::open(library));
  rdma_cm_id* id = nullptr;
  if (library.create_id(channel.get(), &id) != 0) return refused("rdma_create_id", errno, "a connection");
  return Id(std::move(channel), library, id);
}

Result<Id> Id::adopt(const CmLibrary& library, rdma_cm_id* id) {
  Id adopted({}, library, id);
  VERBENA_ASSIGN(EventChannel channel, EventChannel::open(library));
  VERBENA_TRY(adopted.move_to(channel));
  adopted.channel_ = std::move(channel);
  return adopted;
}

Result<void> Id::move_to(const EventChannel& channel) {
  if (id_.get_deleter().library->migrate_id(get(), channel.get()) != 0)
    return refused("rdma_migrate_id", errno, "a connection");
  channel_.reset();
  return {};
}

}  // namespace verbena::link::cm
