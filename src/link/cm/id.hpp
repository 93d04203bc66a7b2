// Owners of librdmacm's objects: events, event channels, and ids with their event channel.
#pragma once

#include "base/fork.hpp"
#include "link/cm/library.hpp"

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <memory>
#include <utility>

namespace verbena::link::cm {

/// Releases librdmacm's objects.
struct Releaser {
  const CmLibrary* library = nullptr;
  void operator()(rdma_cm_event* event) const noexcept { (void)library->ack_event(event); }  // Fails for null only.
  void operator()(rdma_event_channel* channel) const noexcept { library->destroy_event_channel(channel); }
  // Fails only for an id that the kernel does not know.
  void operator()(rdma_cm_id* id) const noexcept { (void)library->destroy_id(id); }
};

/// A received event, or none. Destroy the events of an id before the id.
using Event = std::unique_ptr<rdma_cm_event, Releaser>;

/// Move-only.
class EventChannel {
 public:
  EventChannel() noexcept = default;
  /// Errors: kDevice (no RDMA CM in this kernel), kPermission, kLimit.
  [[nodiscard]] static Result<EventChannel> open(const CmLibrary& library);
  [[nodiscard]] rdma_event_channel* get() const noexcept { return channel_.get(); }
  [[nodiscard]] int fd() const noexcept { return channel_->fd; }
  void reset() noexcept {
    closed_ = {};
    channel_.reset();
  }

  /// Takes the next event, of any kind, without waiting; none if there is none. kDevice if the channel is broken.
  [[nodiscard]] Result<Event> poll() const;
  /// Waits for the event `expected`; any other one becomes an error, which names `peer`. kTimedOut when the deadline
  /// passes.
  [[nodiscard]] Result<Event> expect(rdma_cm_event_type expected, const char* peer, Deadline deadline) const;

 private:
  std::unique_ptr<rdma_event_channel, Releaser> channel_;
  ClosedInChildren closed_;  // A child that kept it open would keep the connections of its ids alive.
};

/// An id and, until it moves to another, a channel of its own. Move-only. Destroying an id ends its connection.
class Id {
 public:
  Id(Id&&) noexcept = default;
  Id& operator=(Id&&) = delete;
  ~Id() = default;
  [[nodiscard]] static Result<Id> create(const CmLibrary& library);
  /// Moves an id that came with a connection request to its own channel. Destroys the id on failure.
  [[nodiscard]] static Result<Id> adopt(const CmLibrary& library, rdma_cm_id* id);
  /// Moves its events to `channel`, and closes its own one.
  [[nodiscard]] Result<void> move_to(const EventChannel& channel);

  [[nodiscard]] rdma_cm_id* get() const noexcept { return id_.get(); }
  rdma_cm_id* operator->() const noexcept { return id_.get(); }
  [[nodiscard]] const EventChannel& channel() const noexcept { return channel_; }
  void reset() noexcept {
    id_.reset();
    channel_.reset();
  }

 private:
  Id(EventChannel channel, const CmLibrary& library, rdma_cm_id* id) noexcept
      : channel_(std::move(channel)), id_(id, {.library = &library}) {}
  EventChannel channel_;  // Outlives the id.
  std::unique_ptr<rdma_cm_id, Releaser> id_;
};

/// Checks that an event is the one `expected`; if not, returns its error.
[[nodiscard]] Result<void> check_event(const Event& event, rdma_cm_event_type expected, const char* peer) noexcept;
/// The error for a call of librdmacm that has just returned -1.
[[nodiscard]] std::unexpected<Error> refused(const char* call, int cause, const char* peer) noexcept;

}  // namespace verbena::link::cm
