#include "link/socket_watcher.hpp"

#include "base/cancellation.hpp"
#include "base/error.hpp"
#include "base/fork.hpp"
#include "nic/descriptors.hpp"

#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>

namespace verbena::link {

class SocketWatcher::Watched final : public Lifeline::Watched {
 public:
  Watched(SocketWatcher& watcher, Fd socket)
      : watcher_(watcher),
        socket_(std::move(socket)),
        number_(watcher.next_number_.fetch_add(1, std::memory_order_relaxed)) {
    watcher_.watches_.enter(number_);
  }
  ~Watched() override { watcher_.watches_.leave(number_); }
  void watch(nic::Nic& nic, const ibv_qp* qp) noexcept override { watcher_.watches_.watch(number_, nic, qp); }
  // The peer sends nothing more, so anything to read means its end.
  [[nodiscard]] bool is_over() const noexcept override {
    pollfd end{.fd = socket_.get(), .events = POLLIN | POLLRDHUP, .revents = 0};
    const CancellationHeld held;
    return ::poll(&end, 1, 0) == 1;
  }
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

 private:
  SocketWatcher& watcher_;
  const Fd socket_;
  const std::uint64_t number_;
  const ClosedInChildren closed_{socket_.get()};
};

Result<std::unique_ptr<SocketWatcher>> SocketWatcher::start() {
  std::unique_ptr<SocketWatcher> watcher(new SocketWatcher);
  VERBENA_ASSIGN(watcher->epoll_, nic::make_epoll({}, "watching for peers that leave"));
  VERBENA_TRY(watcher->thread_.start("verbena-peers", watcher->epoll_.get(), [raw = watcher.get()] {
    raw->take_ends();
    return true;
  }));
  return watcher;
}

Result<Lifeline> SocketWatcher::take(Fd socket) {
  auto watched = std::make_unique<Watched>(*this, std::move(socket));
  // One-shot: the peer sends nothing more, so any event means its end.
  epoll_event event{.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, .data = {.u64 = watched->number()}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, watched->fd(), &event) != 0)
    return fail_system("epoll_ctl", errno, "watching for a peer that leaves");
  return Lifeline(std::move(watched));
}

void SocketWatcher::take_ends() noexcept {
  std::array<epoll_event, 16> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) watches_.gone(events[static_cast<std::size_t>(i)].data.u64);
}

}  // namespace verbena::link
