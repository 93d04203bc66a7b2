#include "session/sessions.hpp"

#include "base/fork.hpp"
#include "base/serving.hpp"
#include "session/session.hpp"

#include <algorithm>
#include <utility>

namespace verbena::session {

Sessions::Sessions(engine::CompletionLoop& loop, std::size_t capacity) : loop_(loop) {
  all_.reserve(capacity);
  ready_.reserve(capacity);
  to_call_.reserve(capacity);
  calling_.reserve(capacity);
  leaving_.reserve(capacity);
}

void Sessions::adopt(Session& session) noexcept {
  session.arrival_.open = [](engine::Mailbox::Letter& letter) noexcept {
    Session& arrived = *static_cast<Session::Arrival&>(letter).session;
    arrived.home_->sessions().enter(arrived);
  };
  loop_.post(session.arrival_);
}

void Sessions::adopt_here(Session& session) noexcept {
  all_.push_back(&session);
  session.connection_->attach();
  session.begin();
}

void Sessions::enter(Session& session) noexcept {
  all_.push_back(&session);
  // Attaches now, not when the session begins: a close before that waits for the completion of its goodbye.
  session.connection_->attach();
  make_ready(session);  // It begins when it is called back.
}

void Sessions::make_ready(Session& session) noexcept {
  if (std::exchange(session.is_listed_, true)) return;
  ready_.push_back(&session);
}

void Sessions::progress() noexcept {
  while (!ready_.empty()) {
    Session& session = *ready_.back();
    ready_.pop_back();
    session.is_listed_ = false;
    // Its callbacks follow, and progress it; while one waits, they may take long.
    if (is_calling_back_ || !session.handles_messages()) session.progress();
    if (!std::exchange(session.is_to_be_called_, true)) to_call_.push_back(&session);
  }
}

void Sessions::wake_all() noexcept {
  looks_at_all_.store(true, std::memory_order_release);
  loop_.wake();
}

void Sessions::leave_here(Owner listener) noexcept {
  for (Session* session : all_)
    if (session->scope().listener == listener) session->leave(Status::kClosed);
}

void Sessions::leave_all_of(Owner listener) noexcept {
  // If the thread has ended, the sessions have too.
  (void)loop_.call([&] { leave_here(listener); }, Deadline::never());
}

void Sessions::end_all_of(Owner listener) noexcept {
  Ending ending;
  ending.listener = listener;
  ending.is_handed_over = true;
  const auto leave = [&] {
    leave_here(listener);
    endings_.push(ending);
  };
  // If the thread has ended, the sessions have too. Before it ends, it finishes what waits.
  if (loop_.call(leave, Deadline::never()) == Status::kOk) (void)ending.wait(Deadline::never());
}

void Sessions::finish_endings() noexcept {
  for (Ending* ending = endings_.first(); ending != nullptr;) {
    Ending* const next = ending->next;
    const auto is_theirs = [&](const Session* session) { return session->scope().listener == ending->listener; };
    if (std::ranges::none_of(all_, is_theirs)) endings_.finish(*ending, Status::kOk);
    ending = next;
  }
}

Deadline Sessions::before_wait() noexcept {
  Deadline next = Deadline::never();
  for (const Session* session : leaving_) next = earlier(next, session->connection_->linger());
  return next;
}

void Sessions::look_around() noexcept {
  if (!leaving_.empty()) [[unlikely]]
    std::erase_if(leaving_, [this](Session* session) {
      if (session->is_lingering()) return false;
      make_ready(*session);
      return true;
    });
  if (looks_at_all_.load(std::memory_order_relaxed) && looks_at_all_.exchange(false, std::memory_order_acquire))
      [[unlikely]]
    for (Session* session : all_) make_ready(*session);
}

void Sessions::after_wait(unsigned /*handled*/) noexcept {
  look_around();
  progress();
  call_back();
  if (!endings_.empty()) [[unlikely]]
    finish_endings();
}

bool Sessions::serve() noexcept {
  if (is_forked() || loop_.in_handler()) return false;
  const bool has_handled = loop_.poll() != 0;
  look_around();
  const bool has_ready = !ready_.empty();
  progress();
  return has_handled || has_ready;
}

namespace {

/// Sessions that go on while the thread that drives them is in a callback.
class Served final : public Serving {
 public:
  Served(Sessions& sessions, const engine::CompletionLoop& loop) noexcept : Serving(&loop), sessions_(sessions) {}

 private:
  bool serve() noexcept override { return sessions_.serve(); }
  Sessions& sessions_;
};

}  // namespace

// Callbacks may wait and make other sessions ready meanwhile; those are called after them.
void Sessions::call_back() noexcept {
  if (to_call_.empty()) return;
  const Served served(*this, loop_);
  is_calling_back_ = true;
  while (!to_call_.empty()) {
    calling_.swap(to_call_);
    for (Session* session : calling_) {
      session->is_to_be_called_ = false;
      session->call_back();
      if (session->is_over()) end(*session);
    }
    calling_.clear();
    progress();
  }
  is_calling_back_ = false;
}

void Sessions::forget(Session& session) noexcept {
  std::erase(all_, &session);
  std::erase(leaving_, &session);
  if (std::exchange(session.is_listed_, false)) std::erase(ready_, &session);
  if (std::exchange(session.is_to_be_called_, false)) std::erase(to_call_, &session);
}

void Sessions::end(Session& session) noexcept {
  forget(session);
  const bool is_kept = session.is_kept();
  if (!is_kept) session.events_.on_gone(session);
  session.detach();  // A kept session may be gone after this.
  if (!is_kept) delete &session;
}

void Sessions::before_end() noexcept {
  for (Session* session : all_) session->leave(Status::kClosed);
  const auto are_quiet = [this] {
    for (Session* session : all_) session->progress();
    return std::ranges::all_of(all_, [](const Session* session) { return session->is_quiet(); });
  };
  wait_for_goodbyes(are_quiet);
  {
    const Served served(*this, loop_);
    for (Session* session : all_) session->call_back();
  }
  while (!all_.empty()) end(*all_.back());
  finish_endings();
}

}  // namespace verbena::session
