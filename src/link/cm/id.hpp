// Owners of librdmacm's objects: events, event channels, and ids with the channel that their events come over.
#pragma once

#include "link/cm/library.hpp"

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <memory>
#include <optional>
#include <utility>

namespace verbena::link::cm {

/// Words for errors: whom a step is about.
struct Subject {
  const char* peer;
};

/// An event that was taken, given back with this. Ids cannot be destroyed before their events are.
class Event {
 public:
  Event(const CmLibrary& library, rdma_cm_event* event) noexcept : library_(&library), event_(event) {}
  Event(Event&& other) noexcept : library_(other.library_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() { give_back(); }
  void give_back() noexcept {
    if (event_ != nullptr) (void)library_->ack_event(std::exchange(event_, nullptr));  // Fails for null only.
  }
  rdma_cm_event* operator->() const noexcept { return event_; }

 private:
  const CmLibrary* library_;
  rdma_cm_event* event_;
};

/// Move-only.
class EventChannel {
 public:
  EventChannel() noexcept = default;
  EventChannel(EventChannel&& other) noexcept
      : library_(other.library_), channel_(std::exchange(other.channel_, nullptr)) {}
  EventChannel& operator=(EventChannel&& other) noexcept;
  ~EventChannel() { reset(); }
  /// Errors: kDevice (no RDMA CM in this kernel), kPermission, kLimit.
  [[nodiscard]] static Result<EventChannel> open(const CmLibrary& library);
  [[nodiscard]] rdma_event_channel* get() const noexcept { return channel_; }
  [[nodiscard]] int fd() const noexcept { return channel_->fd; }
  void reset() noexcept;

  /// The next event that is there, whatever it is. kDevice when the channel is broken.
  [[nodiscard]] Result<std::optional<Event>> poll() const;
  /// Waits for the event `expected`; any other becomes the error that it stands for. kTimedOut past the deadline.
  [[nodiscard]] Result<Event> expect(rdma_cm_event_type expected, const Subject& subject, Deadline deadline) const;

 private:
  EventChannel(const CmLibrary& library, rdma_event_channel* channel) noexcept
      : library_(&library), channel_(channel) {}
  const CmLibrary* library_ = nullptr;
  rdma_event_channel* channel_ = nullptr;
};

/// An id and, until it moves to another, a channel of its own. Move-only. Destroying an id ends its connection.
class Id {
 public:
  Id() noexcept = default;
  Id(Id&& other) noexcept
      : library_(other.library_), channel_(std::move(other.channel_)), id_(std::exchange(other.id_, nullptr)) {}
  Id& operator=(Id&& other) noexcept;
  ~Id() { reset(); }
  [[nodiscard]] static Result<Id> create(const CmLibrary& library);
  /// Takes an id that came with a connection request to a channel of its own. On failure the id is destroyed.
  [[nodiscard]] static Result<Id> adopt(const CmLibrary& library, rdma_cm_id* id);
  /// From now on its events come over `channel`, and this one's own is closed.
  [[nodiscard]] Result<void> move_to(const EventChannel& channel);

  [[nodiscard]] rdma_cm_id* get() const noexcept { return id_; }
  rdma_cm_id* operator->() const noexcept { return id_; }
  [[nodiscard]] const EventChannel& channel() const noexcept { return channel_; }
  explicit operator bool() const noexcept { return id_ != nullptr; }
  void reset() noexcept;

 private:
  const CmLibrary* library_ = nullptr;
  EventChannel channel_;  // Outlives the id.
  rdma_cm_id* id_ = nullptr;
};

/// Whether an event is the one `expected`; if not, the error that it stands for.
[[nodiscard]] Result<void> check_event(const Event& event, rdma_cm_event_type expected,
                                       const Subject& subject) noexcept;
/// For a call of librdmacm that returned -1 just now.
[[nodiscard]] std::unexpected<Error> refused(const char* call, int cause, const Subject& subject) noexcept;

}  // namespace verbena::link::cm
