// All sessions of one loop: which have work, and which have ended.
#pragma once

#include "channel/life.hpp"
#include "engine/duty.hpp"
#include "engine/loop.hpp"
#include "session/calls.hpp"
#include "session/registrations.hpp"

#include <atomic>
#include <cstddef>
#include <vector>

namespace verbena::session {

class Session;

/// Lists sessions with work, so that a poll costs what happened, not how many sessions there are.
/// \thread owner of the loop, except where said
class Sessions final : public engine::Duty {
 public:
  Sessions(engine::CompletionLoop& loop, std::size_t capacity);
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  /// Takes over a session whose bring-up is complete; the owner attaches it in a later poll. It is destroyed when it is
  /// over, unless somebody keeps it. \thread any
  void adopt(Session& session) noexcept;
  /// The same, but attaches it at once.
  void adopt_here(Session& session) noexcept;
  /// Makes all sessions check changes around them: published names. \thread any
  void wake_all() noexcept;
  /// Ends all sessions of a listener with kClosed and tells the peers. \thread any but the owner
  void leave_all_of(Owner listener) noexcept;
  /// The same, and waits until they are over. \thread any but the owner
  void end_all_of(Owner listener) noexcept;

  /// Has the session looked at after this poll.
  void make_ready(Session& session) noexcept;
  /// Continues the calls of ready sessions. Makes no callbacks.
  void progress() noexcept;
  /// The same, and whatever else goes on while a callback waits. False: nothing was to do.
  bool serve() noexcept;
  /// The session is saying goodbye; looks at it again when that is over.
  void note_leaving(Session& session) noexcept { leaving_.push_back(&session); }
  /// Waits until `is_over()`, which continues sessions that have just left.
  template <class IsOver>
  void wait_for_goodbyes(IsOver&& is_over) noexcept {
    (void)loop_.wait_until(is_over, Deadline::after(channel::Life::kLinger));
    // Transfers still in flight in users' memory fail now. The drain bounds this.
    (void)loop_.wait_until(is_over, Deadline::never());
  }
  /// Removes a session that belongs to its caller.
  void forget(Session& session) noexcept;
  /// How many sessions there are.
  [[nodiscard]] std::size_t count() const noexcept { return all_.size(); }

  // engine::Duty
  Deadline before_wait() noexcept override;
  void after_wait(unsigned handled) noexcept override;
  /// Ends all sessions at once with kClosed and tells their peers; destroys those that nobody keeps.
  void before_end() noexcept override;

 private:
  /// A thread that waits until a listener's sessions are over.
  struct Ending : Call {
    Owner listener = nullptr;
    Ending* next = nullptr;
  };
  void enter(Session& session) noexcept;
  void leave_here(Owner listener) noexcept;
  void finish_endings() noexcept;
  void call_back() noexcept;
  /// Looks again at sessions that have left, or that something around them concerns.
  void look_around() noexcept;
  /// Detaches a session that is over, and destroys it unless somebody keeps it.
  void end(Session& session) noexcept;

  engine::CompletionLoop& loop_;
  // Each has room for `capacity` sessions.
  std::vector<Session*> all_;
  std::vector<Session*> ready_;
  std::vector<Session*> to_call_;
  std::vector<Session*> calling_;
  std::vector<Session*> leaving_;
  CallQueue<Ending> endings_;
  std::atomic<bool> looks_at_all_{false};
  bool is_calling_back_ = false;
};

}  // namespace verbena::session
