#include "node/acceptor.hpp"

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/ticks.hpp"
#include "host/thread.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::node {

namespace {

constexpr std::uint64_t kStopEvent = 0;
constexpr std::uint64_t kProgressEvent = 1;
constexpr std::uint64_t kDepartureEvent = 2;
constexpr std::uint64_t kFirstId = 3;
constexpr int kEventsPerTurn = 64;
/// Clients taken from one listener before the next listener's turn.
constexpr int kClientsPerTurn = 64;

[[nodiscard]] Result<void> add_to(const Fd& epoll, int fd, std::uint64_t id) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = id}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return fail_system("epoll_ctl", errno, "listening for clients");
}

/// The user, if he pays for this thread's time.
[[nodiscard]] std::optional<uid_t> stranger_of(std::optional<uid_t> uid) noexcept {
  return uid && nic::is_stranger(*uid) ? uid : std::nullopt;
}

[[nodiscard]] Error late() noexcept {
  return {Status::kTimedOut, "connect", 0, "the handshake was not complete in time: connect again"};
}

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::start(nic::Nic& nic) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(nic));
  acceptor->next_id_ = kFirstId;
  acceptor->epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!acceptor->epoll_) return fail_system("epoll_create1", errno, "listening for clients");
  VERBENA_ASSIGN(acceptor->stop_, make_eventfd());
  VERBENA_ASSIGN(acceptor->progress_, make_eventfd());
  VERBENA_ASSIGN(acceptor->departures_, make_eventfd());
  VERBENA_TRY(add_to(acceptor->epoll_, acceptor->stop_.get(), kStopEvent));
  VERBENA_TRY(add_to(acceptor->epoll_, acceptor->progress_.get(), kProgressEvent));
  VERBENA_TRY(add_to(acceptor->epoll_, acceptor->departures_.get(), kDepartureEvent));
  nic.notify_progress(acceptor->progress_.get());
  VERBENA_ASSIGN(acceptor->thread_, host::start_thread("verbena-accept", [raw = acceptor.get()] { raw->run(); }));
  return acceptor;
}

Acceptor::~Acceptor() {
  nic_.notify_progress(-1);
  if (!thread_.joinable()) return;
  signal_eventfd(stop_.get());
  thread_.join();
}

Result<std::uint64_t> Acceptor::open(std::unique_ptr<link::Listener> listener, Host& host) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_id_++;
  VERBENA_TRY(add_to(epoll_, listener->fd(), id));
  doors_.emplace(id, Door{.listener = std::move(listener), .host = &host});
  return id;
}

template <class Which>
void Acceptor::end_if(Which&& which, const Error& why) noexcept {
  for (auto visit = visits_.begin(); visit != visits_.end();) {
    const auto next = std::next(visit);
    if (which(visit->second)) end(visit, why);
    visit = next;
  }
}

void Acceptor::close(std::uint64_t listener) noexcept {
  const Error closed(Status::kClosed, "connect", 0, "the server has stopped listening");
  const std::lock_guard lock(mutex_);
  end_if([&](const Visit& visit) { return visit.door == listener; }, closed);
  const auto door = doors_.find(listener);
  if (door == doors_.end()) return;
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, door->second.listener->fd(), nullptr);
  door->second.listener->close();
  doors_.erase(door);
}

// --- the thread ---------------------------------------------------------------------------------------------------

void Acceptor::run() noexcept {
  std::array<epoll_event, kEventsPerTurn> events;
  for (;;) {
    Deadline due = Deadline::never();
    {
      const std::lock_guard lock(mutex_);
      due = next_due();
    }
    const int count = epoll_wait(epoll_.get(), events.data(), kEventsPerTurn, due.left_ms());
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
      if (id == kStopEvent) return;
      on_event(id);
    }
    for (auto& [id, door] : doors_)
      if (door.listener->due().passed()) look_at_door(id, door);
    end_if([](const Visit& visit) { return visit.deadline.passed(); }, late());
    if (resume_.passed()) {
      resume_ = Deadline::never();
      step_all([](const Visit& visit) { return visit.is_put_off; });
    }
    if (std::exchange(has_guest_gone_, false) || next_patience().passed())
      step_all([](const Visit& visit) { return visit.awaits_place; });
  }
}

Deadline Acceptor::next_due() const noexcept {
  Deadline due = resume_;
  for (const auto& [id, door] : doors_) due = earlier(due, door.listener->due());
  for (const auto& [id, visit] : visits_) due = earlier(due, visit.deadline);
  return has_guest_gone_ ? Deadline::now() : earlier(due, next_patience());
}

/// When some guest's place may go to another client, if one waits.
Deadline Acceptor::next_patience() const noexcept {
  Deadline first = Deadline::never();
  for (const auto& door : doors_) {
    bool is_awaited = false;
    Deadline of_door = Deadline::never();
    for (const auto& [id, visit] : visits_) {
      if (visit.door != door.first) continue;
      is_awaited |= visit.awaits_place;
      of_door = earlier(of_door, visit.patience);
    }
    if (is_awaited) first = earlier(first, of_door);
  }
  return first;
}

void Acceptor::on_event(std::uint64_t id) noexcept {
  if (id == kProgressEvent) {
    (void)drain_eventfd(progress_.get());
    step_all([](const Visit& visit) { return !visit.is_put_off && (visit.guest == nullptr || visit.guest->fd() < 0); });
  } else if (id == kDepartureEvent) {
    see_off_all();
  } else if (const auto door = doors_.find(id); door != doors_.end()) {
    look_at_door(id, door->second);
  } else {
    step(id);
  }
}

void Acceptor::look_at_door(std::uint64_t id, Door& door) noexcept {
  for (int i = 0; i < kClientsPerTurn; ++i) {
    auto handshake = door.listener->next(Deadline::now());
    if (handshake) {
      let_in(id, std::move(*handshake));
      continue;
    }
    // Stops watching a broken listener: no new client can come.
    if (handshake.error().status() != Status::kAgain)
      (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, door.listener->fd(), nullptr);
    return;
  }
}

void Acceptor::let_in(std::uint64_t door, std::unique_ptr<link::Handshake> claim) noexcept {
  const std::uint64_t id = next_id_++;
  try {
    const std::optional<uid_t> uid = claim->uid();
    make_room(uid);
    Visit visit{.claim = std::move(claim), .guest = {}, .door = door, .uid = uid};
    visit.deadline = Deadline::after(kTimeout);
    visits_.emplace(id, std::move(visit));
  } catch (const std::bad_alloc&) {
    return;  // The client notices that it is not connected.
  }
  step(id);
}

/// A stranger pushes out only clients of the same user.
void Acceptor::make_room(std::optional<uid_t> newcomer) noexcept {
  const auto count_of = [this](std::optional<uid_t> uid) {
    return static_cast<std::size_t>(
        std::ranges::count_if(visits_, [&](const auto& entry) { return entry.second.uid == uid; }));
  };
  const bool is_stranger = newcomer && *newcomer != ::geteuid();
  std::optional<uid_t> user = newcomer;
  if (!is_stranger || count_of(newcomer) < kMostVisitsOfAStranger) {
    if (visits_.size() < kMostVisits) return;
    user = std::ranges::max_element(visits_, {}, [&](const auto& entry) {
             return count_of(entry.second.uid);
           })->second.uid;
  }
  auto oldest = visits_.end();
  for (auto at = visits_.begin(); at != visits_.end(); ++at)
    if (at->second.uid == user && (oldest == visits_.end() || at->first < oldest->first)) oldest = at;
  end(oldest, Error(Status::kLimit, "connect", 0, "too many clients connect at the same time: try again"));
}

/// Tells the host of a client only once the client's own NIC has confirmed it.
Result<void> Acceptor::advance(Visit& visit) {
  if (visit.guest == nullptr) {
    VERBENA_TRY(visit.claim->confirm(Deadline::now()));
    if (!std::exchange(visit.is_confirmed, true)) {
      visit.uid = visit.claim->uid();
      const std::string_view key = visit.claim->key_name();
      if (!key.empty()) log(VERBENA_LOG_INFO, "a client has proven the key {}", key);
    }
    if (put_off(visit)) return fail(Status::kAgain, "connect", 0, "this user's clients have used up their share");
    VERBENA_ASSIGN(visit.guest, welcome(visit));
    visit.awaits_place = false;
    visit.patience = Deadline::after(kPatience);
  }
  return visit.guest->step();
}

/// A client that finds no place waits for those of other connecting clients: one that completes keeps its place, and
/// one that stalls loses it.
Result<std::unique_ptr<Acceptor::Guest>> Acceptor::welcome(Visit& visit) {
  Host& host = *doors_.at(visit.door).host;
  for (;;) {
    auto guest = host.welcome(visit.claim);
    if (guest || guest.error().status() != Status::kLimit || visit.claim == nullptr) return guest;
    const auto slowest = std::ranges::min_element(visits_, {}, [&](const auto& entry) {
      const bool has_place = entry.second.guest != nullptr && entry.second.door == visit.door;
      return has_place ? entry.second.patience.ticks() : Deadline::never().ticks();
    });
    if (slowest->second.guest == nullptr || slowest->second.door != visit.door) return guest;
    visit.awaits_place = true;
    if (!slowest->second.patience.passed())
      return fail(Status::kAgain, "connect", 0, "other clients that are connecting have the last places");
    end(slowest, late());
  }
}

void Acceptor::step(std::uint64_t id) noexcept {
  const auto at = visits_.find(id);
  if (at == visits_.end()) return;  // The visit ended earlier in this turn; this is a late event for it.
  Visit& visit = at->second;
  // A step may close the descriptor, whose number another thread may then get at once: it must leave the epoll set
  // first.
  unwatch(visit);
  const std::uint64_t before = processor_ticks();
  const auto stepped = [&]() -> Result<void> {
    try {
      return advance(visit);
    } catch (const std::bad_alloc&) {
      return fail(Status::kNoMemory, "connect", 0, "the server has no memory for another connection");
    }
  }();
  charge(visit, processor_ticks() - before);
  if (!stepped && stepped.error().status() == Status::kAgain) {
    if (visit.is_put_off || watch(id, visit)) return;
    return end(at, system_error("epoll_ctl", errno, "waiting for a client"));
  }
  if (!stepped) return end(at, stepped.error());
  visit.guest->done({.stranger = stranger_of(visit.uid), .cost = visit.cost, .since = ticks_now()});
  visits_.erase(at);
  has_guest_gone_ = true;
}

// One-shot: a client with an event is handled, and then watched again.
bool Acceptor::watch(std::uint64_t id, Visit& visit) noexcept {
  const int fd = visit.guest != nullptr ? visit.guest->fd() : visit.claim->fd();
  const short events = visit.guest != nullptr ? visit.guest->events() : visit.claim->events();
  if (fd < 0) return true;
  epoll_event event{.events = static_cast<std::uint32_t>(events) | EPOLLONESHOT, .data = {.u64 = id}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return false;
  visit.watched = fd;
  return true;
}

void Acceptor::unwatch(Visit& visit) noexcept {
  if (visit.watched < 0) return;
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, visit.watched, nullptr);
  visit.watched = -1;
}

/// Steps in order of arrival.
template <class Which>
void Acceptor::step_all(Which&& which) noexcept {
  std::vector<std::uint64_t> chosen;
  try {
    for (const auto& [id, visit] : visits_)
      if (which(visit)) chosen.push_back(id);
  } catch (const std::bad_alloc&) {
    return signal_eventfd(progress_.get());  // Tries again when there is memory.
  }
  std::ranges::sort(chosen);
  for (const std::uint64_t id : chosen) step(id);
}

void Acceptor::end(Visits::iterator visit, const Error& why) noexcept {
  unwatch(visit->second);
  charge(visit->second, visit->second.cost * (Shares::kVain - 1));
  if (visit->second.claim != nullptr) visit->second.claim->reject(why.status(), why.text());
  if (visit->second.guest != nullptr) {
    visit->second.guest->refuse(why);
    has_guest_gone_ = true;
  }
  if (visit->second.is_confirmed) doors_.at(visit->second.door).host->refused();
  log(VERBENA_LOG_WARNING, "a client could not connect: {}", why.text());
  visits_.erase(visit);
}

// --- shares of the thread

// Whether the client has to wait, because its user has used up the share.
bool Acceptor::put_off(Visit& visit) noexcept {
  const std::optional<uid_t> stranger = stranger_of(visit.uid);
  visit.is_put_off = stranger && shares_.is_used_up({.uid = *stranger}, ticks_now());
  if (visit.is_put_off) resume_ = earlier(resume_, Deadline::after(kPause));
  return visit.is_put_off;
}

// Nobody pays before his own process has confirmed the handshake: until then a client may name anybody.
void Acceptor::charge(Visit& visit, std::uint64_t used) noexcept {
  visit.cost += used;
  if (!visit.is_confirmed) return;
  charge(stranger_of(visit.uid), visit.cost - visit.charged);
  visit.charged = visit.cost;
}

void Acceptor::charge(std::optional<uid_t> stranger, std::uint64_t used) noexcept {
  if (stranger) shares_.charge({.uid = *stranger}, used, ticks_now());
}

void Acceptor::see_off(Leaver& leaver) noexcept {
  leaver.acceptor_ = this;
  leaver.open = &let_out;
  leavers_.send(leaver);
  signal_eventfd(departures_.get());
}

void Acceptor::settle() noexcept { const std::lock_guard lock(mutex_); }

void Acceptor::see_off_all() noexcept {
  (void)drain_eventfd(departures_.get());
  leavers_.read();
  if (!leavers_.empty()) signal_eventfd(departures_.get());  // It reads only so many at a time.
}

void Acceptor::let_out(engine::Mailbox::Letter& letter) noexcept {
  auto& leaver = static_cast<Leaver&>(letter);
  Acceptor& acceptor = *leaver.acceptor_;
  const Stay stay = leaver.stay_;
  const std::uint64_t before = processor_ticks();
  leaver.leave();
  if (!stay.stranger) return;
  const std::uint64_t used = processor_ticks() - before;
  const bool is_vain = ticks_now() - stay.since < ticks_in(kShortStay);
  acceptor.charge(stay.stranger, is_vain ? used * Shares::kVain + stay.cost * (Shares::kVain - 1) : used);
}

}  // namespace verbena::node
