#include "node/acceptor.hpp"

#include "base/error.hpp"
#include "base/log.hpp"
#include "host/thread.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <vector>

namespace verbena::node {

namespace {

constexpr std::uint64_t kStopEvent = 0;
constexpr std::uint64_t kProgressEvent = 1;
constexpr std::uint64_t kFirstId = 2;
constexpr int kEventsPerTurn = 64;
/// Clients taken from one listener before the others are looked at.
constexpr int kClientsPerTurn = 64;

[[nodiscard]] Result<void> add_to(const Fd& epoll, int fd, std::uint64_t id) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = id}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return fail_system("epoll_ctl", errno, "listening for clients");
}

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::start(nic::Nic& nic) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(nic));
  acceptor->next_id_ = kFirstId;
  acceptor->epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!acceptor->epoll_) return fail_system("epoll_create1", errno, "listening for clients");
  VERBENA_ASSIGN(acceptor->stop_, make_eventfd());
  VERBENA_ASSIGN(acceptor->progress_, make_eventfd());
  VERBENA_TRY(add_to(acceptor->epoll_, acceptor->stop_.get(), kStopEvent));
  VERBENA_TRY(add_to(acceptor->epoll_, acceptor->progress_.get(), kProgressEvent));
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
  const Error late(Status::kTimedOut, "connect", 0, "the handshake was not complete in time: connect again");
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
    end_if([](const Visit& visit) { return visit.deadline.passed(); }, late);
  }
}

Deadline Acceptor::next_due() const noexcept {
  Deadline due = Deadline::never();
  for (const auto& [id, door] : doors_) due = earlier(due, door.listener->due());
  for (const auto& [id, visit] : visits_) due = earlier(due, visit.deadline);
  return due;
}

void Acceptor::on_event(std::uint64_t id) noexcept {
  if (id == kProgressEvent) {
    (void)drain_eventfd(progress_.get());
    step_those_of_the_nic();
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
    // A listener that is broken is not looked at any more: nobody new can come.
    if (handshake.error().status() != Status::kAgain)
      (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, door.listener->fd(), nullptr);
    return;
  }
}

void Acceptor::let_in(std::uint64_t door, std::unique_ptr<link::Handshake> claim) noexcept {
  if (visits_.size() == kMostGuests) {
    const auto oldest = std::ranges::min_element(visits_, {}, [](const auto& visit) { return visit.first; });
    end(oldest, Error(Status::kLimit, "connect", 0, "too many clients connect at the same time: try again"));
  }
  const std::uint64_t visit = next_id_++;
  try {
    visits_.emplace(visit,
                    Visit{.claim = std::move(claim), .guest = {}, .door = door, .deadline = Deadline::after(kTimeout)});
  } catch (const std::bad_alloc&) {
    return;  // The client sees that it is not connected.
  }
  step(visit);
}

/// The host hears of a client whose own NIC has confirmed it, and of no other.
Result<void> Acceptor::advance(Visit& visit) {
  if (visit.claim != nullptr) {
    VERBENA_TRY(visit.claim->confirm(Deadline::now()));
    VERBENA_ASSIGN(visit.guest, doors_.at(visit.door).host->welcome(std::move(visit.claim)));
  }
  return visit.guest->step();
}

void Acceptor::step(std::uint64_t id) noexcept {
  const auto at = visits_.find(id);
  if (at == visits_.end()) return;  // An event of this turn for one that has ended in it.
  Visit& visit = at->second;
  const auto stepped = [&]() -> Result<void> {
    try {
      return advance(visit);
    } catch (const std::bad_alloc&) {
      return fail(Status::kNoMemory, "connect", 0, "the server has no memory for another connection");
    }
  }();
  if (!stepped && stepped.error().status() == Status::kAgain) {
    if (watch(id, visit)) return;
    return end(at, system_error("epoll_ctl", errno, "waiting for a client"));
  }
  if (!stepped) return end(at, stepped.error());
  unwatch(visit);
  visit.guest->done();
  visits_.erase(at);
}

// Once: a client that has something to say is looked at, and then watched again.
bool Acceptor::watch(std::uint64_t id, Visit& visit) noexcept {
  const int fd = visit.guest != nullptr ? visit.guest->fd() : -1;
  if (fd < 0 || fd != visit.watched) unwatch(visit);
  if (fd < 0) return true;
  epoll_event event{.events = static_cast<std::uint32_t>(visit.guest->events()) | EPOLLONESHOT, .data = {.u64 = id}};
  const int operation = visit.watched == fd ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) return false;
  visit.watched = fd;
  return true;
}

void Acceptor::unwatch(Visit& visit) noexcept {
  // The descriptor may be closed already, and out of the set by that.
  if (visit.watched >= 0) (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, visit.watched, nullptr);
  visit.watched = -1;
}

void Acceptor::step_those_of_the_nic() noexcept {
  std::vector<std::uint64_t> waiting;
  try {
    for (const auto& [id, visit] : visits_)
      if (visit.guest == nullptr || visit.guest->fd() < 0) waiting.push_back(id);
  } catch (const std::bad_alloc&) {
    return signal_eventfd(progress_.get());  // Again, when there is memory.
  }
  for (const std::uint64_t id : waiting) step(id);
}

void Acceptor::end(Visits::iterator visit, const Error& why) noexcept {
  unwatch(visit->second);
  if (visit->second.claim != nullptr) visit->second.claim->reject(why.status(), why.text());
  if (visit->second.guest != nullptr) visit->second.guest->refuse(why);
  log(VERBENA_LOG_WARNING, "a client could not connect: {}", why.text());
  visits_.erase(visit);
}

}  // namespace verbena::node
