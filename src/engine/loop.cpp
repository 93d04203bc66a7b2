#include "engine/loop.hpp"

#include "base/cancellation.hpp"
#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/relax.hpp"
#include "base/ticks.hpp"
#include "engine/queue_pair.hpp"
#include "nic/footprint.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace verbena::engine {

Result<std::unique_ptr<CompletionLoop>> CompletionLoop::create(nic::Nic& nic, const LoopOptions& options) {
  if (options.max_connections == 0 || options.max_connections > (1u << 20) || options.cqe == 0)
    return fail(Status::kBadArgument, "CompletionLoop::create", 0,
                "a loop needs 1 to 1048576 connections and at least one completion entry; got {} and {}",
                options.max_connections, options.cqe);
  constexpr std::chrono::hours kLongest{24 * 365};  // A longer time could overflow when added to the clock.
  if (options.spin.count() < 0 || options.keepalive.count() < 0 || options.spin > kLongest ||
      options.keepalive > kLongest)
    return fail(Status::kBadArgument, "CompletionLoop::create", 0,
                "spin and keepalive are times of 0 to a year; got {} and {} ns", options.spin.count(),
                options.keepalive.count());
  const std::uint64_t least = std::uint64_t{options.max_connections} * QueuePair::completions_needed(1, 0);
  if (options.cqe < least)
    return fail(Status::kBadArgument, "CompletionLoop::create", 0,
                "{} connections take at least {} completion entries each, {} together, and cqe is {}",
                options.max_connections, QueuePair::completions_needed(1, 0), least, options.cqe);
  if (options.cqe > nic.limits().max_cqe)
    return fail(Status::kLimit, "CompletionLoop::create", 0,
                "{} completion entries are asked for, and {} has at most {}: fewer connections, or less depth",
                options.cqe, nic.name(), nic.limits().max_cqe);
  std::unique_ptr<CompletionLoop> loop(new CompletionLoop(nic, options));
  VERBENA_ASSIGN(ibv_comp_channel * channel, nic.create_channel());
  loop->channel_ = nic::Channel(nic, channel);
  VERBENA_ASSIGN(ibv_cq * cq, nic.create_cq(options.cqe, channel));
  loop->cq_ = nic::Cq(nic, cq);
  loop->capacity_ = options.cqe;
  return loop;
}

host::Footprint CompletionLoop::footprint(nic::Kind kind, const LoopOptions& options) {
  host::Footprint pools;
  pools.add({.name = "loop", .bytes_each = sizeof(CompletionLoop)});
  pools.add({.name = "connections by number", .bytes_each = PairTable::bytes_for(options.max_connections)});
  pools.add({.name = "lists of connections",
             .count = options.max_connections,
             .bytes_each = 2 * sizeof(QueuePair*)});  // Holding and draining.
  pools.add("NIC", 1, nic::cq_footprint(kind, options.cqe));
  return pools;
}

CompletionLoop::CompletionLoop(nic::Nic& nic, const LoopOptions& options)
    : nic_(nic),
      pairs_(options.max_connections),
      batches_(options.batch_on == BatchOn::kEveryNic || nic.capabilities().doorbell_is_costly),
      wait_policy_(options.wait),
      spin_ticks_(ticks_in(options.spin)),
      keepalive_{.interval = ticks_in(options.keepalive), .due = std::numeric_limits<std::uint64_t>::max()},
      max_connections_(options.max_connections) {
  choose_looks();
  holding_.reserve(options.max_connections);
  draining_.reserve(options.max_connections);
  const bool is_wanted = options.keepalive_on == KeepaliveOn::kEveryNic || !nic.capabilities().hears_of_peers;
  if (is_wanted && options.keepalive.count() > 0) keepalive_.due = ticks_now() + keepalive_.interval;
}

Counters CompletionLoop::counters() const noexcept {
  Counters snapshot;
  snapshot += counters_;
  return snapshot;
}

CompletionLoop::~CompletionLoop() {
  mailbox_.await_callers();
  VERBENA_CHECK(connections_.load(std::memory_order_relaxed) == 0);
}

Result<void> CompletionLoop::reserve(std::uint32_t entries) {
  if (connections_.fetch_add(1, std::memory_order_relaxed) >= max_connections_) {
    connections_.fetch_sub(1, std::memory_order_relaxed);
    return fail(Status::kLimit, "CompletionLoop", 0, "the loop has its {} connections; raise max_connections",
                max_connections_);
  }
  const std::uint32_t before = reserved_.fetch_add(entries, std::memory_order_relaxed);
  if (before > capacity_ || entries > capacity_ - before) {
    unreserve(entries);
    return fail(Status::kLimit, "CompletionLoop", 0,
                "the connection's queues need {} completion entries, and {} of {} are taken; raise cqe", entries,
                before, capacity_);
  }
  return {};
}

void CompletionLoop::unreserve(std::uint32_t entries) noexcept {
  reserved_.fetch_sub(entries, std::memory_order_relaxed);
  connections_.fetch_sub(1, std::memory_order_relaxed);
}

// --- queue pairs --------------------------------------------------------------------------------------------------

PairTable::PairTable(std::uint32_t capacity) : entries_(entries_for(capacity)) {
  shift_ = 32 - static_cast<unsigned>(std::countr_zero(entries_.size()));
}

void PairTable::insert(QueuePair& pair, std::uint32_t qp_num) noexcept {
  std::size_t at = home_of(qp_num);
  while (entries_[at].pair != nullptr) at = (at + 1) & (entries_.size() - 1);
  entries_[at] = {&pair, qp_num};
}

QueuePair* PairTable::find_in_table(std::uint32_t qp_num) noexcept {
  for (std::size_t at = home_of(qp_num); entries_[at].pair != nullptr; at = (at + 1) & (entries_.size() - 1)) {
    if (entries_[at].qp_num != qp_num) continue;
    last_ = entries_[at];
    return last_.pair;
  }
  return nullptr;
}

void PairTable::erase(std::uint32_t qp_num) noexcept {
  last_ = {};
  const std::size_t mask = entries_.size() - 1;
  std::size_t hole = home_of(qp_num);
  while (entries_[hole].pair != nullptr && entries_[hole].qp_num != qp_num) hole = (hole + 1) & mask;
  VERBENA_CHECK(entries_[hole].pair != nullptr);
  // Moves an entry into the hole if a probe from its home crosses the hole to reach it. So there are no tombstones.
  for (std::size_t at = (hole + 1) & mask; entries_[at].pair != nullptr; at = (at + 1) & mask) {
    const std::size_t home = home_of(entries_[at].qp_num);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    entries_[hole] = entries_[at];
    hole = at;
  }
  entries_[hole] = {};
}

void CompletionLoop::post(Mailbox::Letter& letter) noexcept {
  mailbox_.send(letter);
  wake_if_asleep();
}

void CompletionLoop::remove(QueuePair& pair) noexcept {
  // It was never handed over: the loop does not know it, and another thread may be polling.
  if (pair.place_ == QueuePair::Place::kOutside && pair.phase_ != QueuePair::Phase::kDraining && !pair.is_holding())
    return;
  VERBENA_DCHECK(!polling_);
  expect_no_more(pair);
  // Nobody must open its letter once it is gone.
  if (pair.place_ == QueuePair::Place::kMailbox) mailbox_.read();
  if (pair.is_holding()) std::erase(holding_, &pair);
  if (pair.phase_ == QueuePair::Phase::kDraining) std::erase(draining_, &pair);
  if (pair.place_ == QueuePair::Place::kTable) pairs_.erase(pair.qp_num_);
  pair.place_ = QueuePair::Place::kOutside;
}

int CompletionLoop::poll_expecting(unsigned& taken) noexcept {
  if (taken_in_row_ == kMostTakenInRow) {
    taken_in_row_ = 0;
    return ibv_poll_cq(cq_.get(), kBatch, wc_.data());
  }
  QueuePair& pair = *expected_;
  std::uint32_t bytes = 0;
  const int count = pair.direct_->poll(cq_.get(), kBatch, wc_.data(), pair.get(), message_.data(), bytes);
  if (bytes == 0) {
    taken_in_row_ = 0;
    return count;
  }
  VERBENA_DCHECK(!polling_);
  ++taken_in_row_;
  taken = 1;
  const std::uint64_t before = counters_.completions;
  ++counters_.completions;
  polling_ = true;
  pair.owner_.take({message_.data(), bytes});
  polling_ = false;
  look_at_clock_if_due(before);
  return 0;
}

void CompletionLoop::dispatch(unsigned count) noexcept {
  VERBENA_DCHECK(!polling_);
  polling_ = true;
  const std::uint64_t before = counters_.completions;
  counters_.completions = before + count;
  unsigned first = 0;
  do {
    const std::uint32_t qp_num = wc_[first].qp_num;
    unsigned end = first + 1;
    while (end < count && wc_[end].qp_num == qp_num) ++end;
    QueuePair* pair = pairs_.find(qp_num);
    if (pair == nullptr) [[unlikely]]
      pair = find_arriving(qp_num);
    // An unknown number belongs to a queue pair that was destroyed.
    if (pair != nullptr) [[likely]] {
      pair->owner_.handle({wc_.data() + first, end - first});
    } else {
      counters_.strays += end - first;
    }
    first = end;
  } while (first < count);
  polling_ = false;
  look_at_clock_if_due(before);
}

// No more than the queue can hold: a peer that keeps sending must not keep the caller here.
void CompletionLoop::take_arrived() noexcept {
  for (std::uint32_t taken = 0; taken < capacity_;) {
    const int count = ibv_poll_cq(cq_.get(), kBatch, wc_.data());
    if (count < 0) on_device_failure();
    if (count <= 0) return;
    dispatch(static_cast<unsigned>(count));
    taken += static_cast<std::uint32_t>(count);
  }
}

// The owner may post between `attach` and the next poll, and that poll gets completions before it reads its letters.
QueuePair* CompletionLoop::find_arriving(std::uint32_t qp_num) noexcept {
  mailbox_.open_ahead(QueuePair::enter_table_of);
  return pairs_.find(qp_num);
}

void CompletionLoop::on_device_failure() noexcept {
  pairs_.for_each([](QueuePair& pair) {
    pair.fail(Status::kDevice);
    pair.drain_deadline_ = Deadline::now();
  });
}

// Flushes before a wait, so that a waiter gets its completion even if it has not flushed.
void CompletionLoop::flush_held() noexcept {
  while (!holding_.empty()) holding_.back()->flush();
}

void CompletionLoop::check_drains() noexcept {
  polling_ = true;
  for (std::size_t i = 0; i < draining_.size();) {
    QueuePair& pair = *draining_[i];
    if (!pair.nothing_in_flight() && !pair.drain_deadline_.passed()) {
      ++i;
      continue;
    }
    std::erase(draining_, &pair);
    pair.enter_drained();
    // A thread that waits for the drain has no completion to wake it.
    woken_.store(true, std::memory_order_relaxed);
  }
  polling_ = false;
}

Deadline CompletionLoop::drain_deadline() const noexcept {
  Deadline earliest = Deadline::never();
  for (const QueuePair* pair : draining_) earliest = earlier(earliest, pair->drain_deadline_);
  return earliest;
}

void CompletionLoop::keep_alive(std::uint64_t now) noexcept {
  look_at_clock(now);
  if (now < keepalive_.due) return;
  keepalive_.due = now + keepalive_.interval;
  pairs_.for_each([](QueuePair& pair) { pair.keep_alive(); });
}

Deadline CompletionLoop::keepalive_deadline() const noexcept {
  // There is nobody to ask. An attach wakes the loop.
  if (connections_.load(std::memory_order_relaxed) == 0) return Deadline::never();
  return Deadline::at_ticks(keepalive_.due);
}

// --- calls and waits ----------------------------------------------------------------------------------------------

void CompletionLoop::end_calls() noexcept {
  mailbox_.shut();
  owner_.store({}, std::memory_order_relaxed);
}

void CompletionLoop::wake() noexcept {
  woken_.store(true, std::memory_order_seq_cst);
  wake_if_asleep();
}

// Pairs with `sleep`, which sets sleeping_ and then looks at what the caller has stored: one of the two sees the
// other's store.
void CompletionLoop::wake_if_asleep() noexcept {
  if (sleeping_.load(std::memory_order_seq_cst)) nic_.wake(channel_.get());
}

// Ends a wait, because the thread that runs the loop may have to act on the letters.
void CompletionLoop::read_mail() noexcept {
  mailbox_.read();
  woken_.store(true, std::memory_order_relaxed);
}

bool CompletionLoop::take_wake() noexcept {
  return woken_.load(std::memory_order_relaxed) && woken_.exchange(false, std::memory_order_acquire);
}

CompletionLoop::Phase CompletionLoop::spin(Deadline deadline, unsigned& handled) noexcept {
  std::uint64_t end = 0;
  for (;;) {
    for (unsigned i = 0; i < kPollsPerClock; ++i) {
      relax();
      handled = poll();
      if (handled != 0) return Phase::kHandled;
      if (take_wake()) return Phase::kEnded;
    }
    const std::uint64_t now = ticks_now();
    if (deadline.ticks() <= now) return Phase::kEnded;
    keep_alive(now);
    if (end == 0) end = now + spin_ticks_;
    if (now >= end && wait_policy_ != WaitPolicy::kSpin) return Phase::kGoOn;
  }
}

CompletionLoop::Phase CompletionLoop::sleep(Deadline deadline, unsigned& handled) noexcept {
  const CancellationHeld held;
  if (ibv_req_notify_cq(cq_.get(), 0) != 0) on_device_failure();
  handled = poll();
  if (handled != 0) return Phase::kHandled;
  sleeping_.store(true, std::memory_order_seq_cst);
  if (!woken_.load(std::memory_order_seq_cst) && mailbox_.empty_before_sleep()) {
    ++counters_.sleeps;
    const auto event = nic_.wait(channel_.get(), earlier(deadline, earlier(drain_deadline(), keepalive_deadline())));
    if (!event && event.error().status() != Status::kTimedOut) on_device_failure();
  }
  sleeping_.store(false, std::memory_order_relaxed);
  keep_alive(ticks_now());
  handled = poll();
  if (handled != 0) return Phase::kHandled;
  return take_wake() || deadline.passed() ? Phase::kEnded : Phase::kGoOn;
}

unsigned CompletionLoop::wait_slowly(Deadline deadline) noexcept {
  unsigned handled = 0;
  if (deadline.ticks() == 0 || take_wake()) return 0;
  if (Serving::is_due()) [[unlikely]] {
    if (Serving::go_on()) return 0;  // It may have been what the caller waits for.
    // Who else is served would have to wake this loop.
    if (!Serving::is_only(this)) return yield_thread(), 0;
  }
  Phase phase = wait_policy_ == WaitPolicy::kEvent ? Phase::kGoOn : spin(deadline, handled);
  while (phase == Phase::kGoOn) phase = sleep(deadline, handled);
  return handled;
}

}  // namespace verbena::engine
