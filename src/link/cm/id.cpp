#include "link/cm/id.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/fd.hpp"
#include "link/cm/private_data.hpp"

#include <fcntl.h>

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
                        "as the server does (socket mode, or the soft NIC)",
                        peer);
  }
  if (event.status != kConsumerDefined) {
    return format_error(Status::kRejected, "rdma_connect", 0,
                        "RDMA CM of {} rejected the connection with reason {} of the InfiniBand specification", peer,
                        event.status);
  }
  const std::span data(static_cast<const std::byte*>(param.private_data),
                       param.private_data != nullptr ? std::size_t{param.private_data_len} : 0);
  // What destroying an unanswered request sends.
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

/// The error that an event stands for, when another was expected.
Error error_of(const rdma_cm_event& event, const char* peer) noexcept {
  // Where there is an errno it is negative.
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

Result<void> check_event(const Event& event, rdma_cm_event_type expected, const Subject& subject) noexcept {
  if (event->event == expected && event->status == 0) return {};
  return std::unexpected(error_of(*event.operator->(), subject.peer));
}

std::unexpected<Error> refused(const char* call, int cause, const Subject& subject) noexcept {
  switch (cause) {
    case ENODEV:
    case EADDRNOTAVAIL: return std::unexpected(not_on_a_device(call, cause, subject.peer));
    case EADDRINUSE:
      return fail(Status::kSystem, call, cause, "{} is in use: choose another port, or stop what listens there",
                  subject.peer);
    case ENETUNREACH:
    case EHOSTUNREACH:
      return fail(Status::kPeerLost, call, cause, "{} cannot be reached: {}; check the address and this host's routes",
                  subject.peer, std::strerror(cause));
    default:
      return fail(status_of_errno(cause) == Status::kSystem ? Status::kDevice : status_of_errno(cause), call, cause,
                  "RDMA CM refused {} for {} ({}); look for messages in dmesg", call, subject.peer,
                  std::strerror(cause));
  }
}

EventChannel& EventChannel::operator=(EventChannel&& other) noexcept {
  if (this == &other) return *this;
  reset();
  library_ = other.library_;
  channel_ = std::exchange(other.channel_, nullptr);
  return *this;
}

void EventChannel::reset() noexcept {
  if (channel_ != nullptr) library_->destroy_event_channel(std::exchange(channel_, nullptr));
}

Result<EventChannel> EventChannel::open(const CmLibrary& library) {
  errno = 0;
  EventChannel channel(library, library.create_event_channel());
  if (channel.channel_ == nullptr) {
    const int cause = errno;
    const Status status = status_of_errno(cause);
    return fail(status == Status::kSystem ? Status::kDevice : status, "rdma_create_event_channel", cause,
                "this kernel offers no RDMA CM ({}): load rdma_ucm, in a container pass /dev/infiniband/rdma_cm on, or "
                "connect in socket mode",
                std::strerror(cause));
  }
  const int flags = ::fcntl(channel.fd(), F_GETFL);
  if (flags < 0 || ::fcntl(channel.fd(), F_SETFL, flags | O_NONBLOCK) != 0)
    return fail_system("fcntl", errno, "preparing RDMA CM's event channel");
  return channel;
}

Result<std::optional<Event>> EventChannel::poll() const {
  for (;;) {
    rdma_cm_event* event = nullptr;
    if (library_->get_event(channel_, &event) == 0) return Event(*library_, event);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    if (errno != EINTR)
      return fail(Status::kDevice, "rdma_get_cm_event", errno, "RDMA CM's event channel is broken ({})",
                  std::strerror(errno));
  }
}

Result<Event> EventChannel::expect(rdma_cm_event_type expected, const Subject& subject, Deadline deadline) const {
  for (;;) {
    VERBENA_ASSIGN(std::optional<Event> event, poll());
    if (event) {
      VERBENA_TRY(check_event(*event, expected, subject));
      return std::move(*event);
    }
    if (!wait_readable(fd(), deadline)) {
      return fail(Status::kTimedOut, "rdma_connect", 0,
                  "{} does not answer by RDMA CM: check that the host is up, runs a Verbena server and has rdma_ucm "
                  "loaded",
                  subject.peer);
    }
  }
}

Id& Id::operator=(Id&& other) noexcept {
  if (this == &other) return *this;
  reset();
  library_ = other.library_;
  channel_ = std::move(other.channel_);
  id_ = std::exchange(other.id_, nullptr);
  return *this;
}

void Id::reset() noexcept {
  // Fails only for an id that the kernel does not know.
  if (id_ != nullptr) (void)library_->destroy_id(std::exchange(id_, nullptr));
  channel_.reset();
}

Result<Id> Id::create(const CmLibrary& library) {
  Id made;
  made.library_ = &library;
  VERBENA_ASSIGN(made.channel_, EventChannel::open(library));
  if (library.create_id(made.channel_.get(), &made.id_) != 0) {
    const int cause = errno;
    made.id_ = nullptr;
    return refused("rdma_create_id", cause, {.peer = "a connection"});
  }
  return made;
}

Result<Id> Id::adopt(const CmLibrary& library, rdma_cm_id* id) {
  Id adopted;
  adopted.library_ = &library;
  adopted.id_ = id;
  VERBENA_ASSIGN(EventChannel channel, EventChannel::open(library));
  VERBENA_TRY(adopted.move_to(channel));
  adopted.channel_ = std::move(channel);
  return adopted;
}

Result<void> Id::move_to(const EventChannel& channel) {
  if (library_->migrate_id(id_, channel.get()) != 0) return refused("rdma_migrate_id", errno, {.peer = "a connection"});
  channel_.reset();
  return {};
}

}  // namespace verbena::link::cm
