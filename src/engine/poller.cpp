#include "engine/poller.hpp"

#include "base/error.hpp"
#include "host/thread.hpp"

#include <algorithm>

namespace verbena::engine {

namespace {

/// Added to the clock without overflow.
constexpr std::chrono::hours kLongest{24 * 365};

}  // namespace

Result<std::unique_ptr<Poller>> Poller::create(nic::Nic& nic, PollerOptions options, Duty* duty) {
  if (options.max_tasks == 0 || options.max_tasks > 65536)
    return fail(Status::kBadArgument, "Poller::create", 0, "max_tasks must be 1 to 65536; got {}", options.max_tasks);
  std::unique_ptr<Poller> poller(new Poller(std::move(options), duty));
  VERBENA_ASSIGN(poller->loop_, CompletionLoop::create(nic, poller->options_.loop));
  poller->orders_.reserve(poller->options_.max_tasks);
  poller->taken_.reserve(poller->options_.max_tasks);
  return poller;
}

host::Footprint Poller::footprint(nic::Kind kind, const PollerOptions& options) {
  host::Footprint pools;
  pools.add({.name = "poller", .bytes_each = sizeof(Poller)});
  pools.add({.name = "orders", .count = 2 * std::uint64_t{options.max_tasks}, .bytes_each = sizeof(Order*)});
  pools.add("loop", 1, CompletionLoop::footprint(kind, options.loop));
  return pools;
}

Result<void> Poller::start() {
  if (thread_.joinable()) return fail(Status::kBusy, "Poller::start", 0, "the poller runs already");
  stopping_.store(false, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    accepts_ = true;
  }
  auto started = host::start_thread(options_.name.c_str(), [this] { poll_until_stopped(); });
  if (!started) {
    refuse_orders();
    return std::unexpected(started.error());
  }
  thread_ = std::move(*started);
  return {};
}

void Poller::stop() noexcept {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  loop_->wake();
  thread_.join();
}

bool Poller::is_this_thread() const noexcept {
  return thread_id_.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

void Poller::poll_until_stopped() noexcept {
  thread_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  if (options_.cpu) (void)host::pin_this_thread(*options_.cpu);
  while (!stopping_.load(std::memory_order_acquire)) {
    const Deadline until = duty_ != nullptr ? duty_->before_wait() : Deadline::never();
    const unsigned handled = loop_->wait(until);
    if (has_orders_.load(std::memory_order_relaxed)) [[unlikely]]
      take_orders();
    if (duty_ != nullptr) duty_->after_wait(handled);
  }
  refuse_orders();
  if (duty_ != nullptr) duty_->before_end();
  thread_id_.store({}, std::memory_order_relaxed);
}

void Poller::take_orders() noexcept {
  {
    const std::lock_guard lock(mutex_);
    has_orders_.store(false, std::memory_order_relaxed);
    taken_.swap(orders_);
    for (Order* order : taken_) order->state = Order::State::kRunning;
  }
  for (Order* order : taken_) order->call(order->context);
  {
    const std::lock_guard lock(mutex_);
    for (Order* order : taken_) order->state = Order::State::kDone;
    taken_.clear();
  }
  ended_.notify_all();
}

void Poller::refuse_orders() noexcept {
  {
    const std::lock_guard lock(mutex_);
    accepts_ = false;
    for (Order* order : orders_) order->state = Order::State::kRefused;
    orders_.clear();
    has_orders_.store(false, std::memory_order_relaxed);
  }
  ended_.notify_all();
}

Status Poller::carry_out(Order& order, Deadline deadline) noexcept {
  if (is_this_thread()) {
    if (loop_->in_handler()) return Status::kAgain;
    order.call(order.context);
    return Status::kOk;
  }
  std::unique_lock lock(mutex_);
  const auto is_full = [&] { return accepts_ && orders_.size() == options_.max_tasks; };
  if (is_full() && !deadline.is_never()) return Status::kAgain;
  // What has no deadline is not to be refused either: orders are taken as fast as the poller polls.
  ended_.wait(lock, [&] { return !is_full(); });
  if (!accepts_) return Status::kClosed;
  orders_.push_back(&order);
  has_orders_.store(true, std::memory_order_relaxed);
  // Unlocked meanwhile: an order may be carried out before this thread looks again.
  lock.unlock();
  loop_->wake();
  lock.lock();
  const auto has_begun = [&] { return order.state != Order::State::kQueued; };
  if (deadline.is_never()) {
    ended_.wait(lock, has_begun);
  } else if (!ended_.wait_for(lock, std::min<std::chrono::nanoseconds>(deadline.left(), kLongest), has_begun)) {
    std::erase(orders_, &order);
    return Status::kTimedOut;
  }
  // It runs: it is short.
  ended_.wait(lock, [&] { return order.state != Order::State::kRunning; });
  return order.state == Order::State::kDone ? Status::kOk : Status::kClosed;
}

}  // namespace verbena::engine
