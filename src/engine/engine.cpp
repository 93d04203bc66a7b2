#include "engine/engine.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/relax.hpp"
#include "base/ticks.hpp"
#include "engine/connection.hpp"
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
  constexpr std::chrono::hours kLongest{24 * 365};  // What is longer would not fit when it is added to the clock.
  if (options.spin.count() < 0 || options.keepalive.count() < 0 || options.spin > kLongest ||
      options.keepalive > kLongest)
    return fail(Status::kBadArgument, "CompletionLoop::create", 0,
                "spin and keepalive are times of 0 to a year; got {} and {} ns", options.spin.count(),
                options.keepalive.count());
  const std::uint64_t least = std::uint64_t{options.max_connections} * Connection::completions_needed(1, 0);
  if (options.cqe < least)
    return fail(Status::kBadArgument, "CompletionLoop::create", 0,
                "{} connections take at least {} completion entries each, {} together, and cqe is {}",
                options.max_connections, Connection::completions_needed(1, 0), least, options.cqe);
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
  pools.add({.name = "connections by number", .count = table_entries(options), .bytes_each = sizeof(Entry)});
  pools.add({.name = "lists of connections",
             .count = options.max_connections,
             .bytes_each = 2 * sizeof(Connection*) + sizeof(Doomed)});  // Holding and draining; doomed.
  pools.add("NIC", 1, nic::cq_footprint(kind, options.cqe));
  return pools;
}

CompletionLoop::CompletionLoop(nic::Nic& nic, const LoopOptions& options)
    : nic_(nic),
      batches_(options.batch_on == BatchOn::kEveryNic || nic.kind() != nic::Kind::kSoft),
      wait_policy_(options.wait),
      spin_ticks_(ticks_in(options.spin)),
      keepalive_ticks_(ticks_in(options.keepalive)),
      keepalive_due_(std::numeric_limits<std::uint64_t>::max()),
      max_connections_(options.max_connections) {
  const std::size_t entries = table_entries(options);
  table_.resize(entries);
  shift_ = 32 - static_cast<unsigned>(std::countr_zero(entries));
  holding_list_.reserve(options.max_connections);
  draining_.reserve(options.max_connections);
  doomed_.reserve(options.max_connections);
  const bool is_wanted = options.keepalive_on == KeepaliveOn::kEveryNic || nic.kind() != nic::Kind::kSoft;
  if (is_wanted && options.keepalive.count() > 0) keepalive_due_ = ticks_now() + keepalive_ticks_;
}

Counters CompletionLoop::counters() const noexcept {
  Counters snapshot;
  snapshot += counters_;
  return snapshot;
}

CompletionLoop::~CompletionLoop() {
  bury_doomed();
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

void CompletionLoop::attach(Connection& connection) noexcept {
  Connection* head = arrivals_.load(std::memory_order_relaxed);
  do {
    connection.next_arrival_ = head;
  } while (!arrivals_.compare_exchange_weak(head, &connection, std::memory_order_seq_cst, std::memory_order_relaxed));
  // Against `sleep`, which sets sleeping_ and then looks at arrivals_: one of the two sees the other's store.
  if (sleeping_.load(std::memory_order_seq_cst)) nic_.wake(channel_.get());
}

void CompletionLoop::adopt() noexcept {
  // Pairs with the release in `attach`: the connection is whole.
  Connection* next = arrivals_.exchange(nullptr, std::memory_order_acquire);
  while (next != nullptr) {
    Connection& connection = *next;
    next = std::exchange(connection.next_arrival_, nullptr);
    insert(connection);
    connection.place_ = Connection::Place::kTable;
    connection.seen_ = connection.posted_ - 1;  // As if it had posted: the peer may not be as far yet.
    connection.on_attached();
  }
}

void CompletionLoop::remove(Connection& connection) noexcept {
  // Never attached: nothing of the loop's knows it, and another thread may be polling.
  if (connection.place_ == Connection::Place::kOutside && !connection.draining_ && connection.held_count_ == 0) return;
  VERBENA_DCHECK(!polling_);
  if (connection.held_count_ != 0) stopped_holding(connection);
  if (connection.draining_) stopped_draining(connection);
  if (connection.place_ == Connection::Place::kTable) erase(connection.qp_num_);
  if (connection.place_ == Connection::Place::kMailbox) {
    Connection* next = arrivals_.exchange(nullptr, std::memory_order_acquire);
    while (next != nullptr) {
      Connection& other = *next;
      next = std::exchange(other.next_arrival_, nullptr);
      if (&other != &connection) attach(other);
    }
  }
  connection.place_ = Connection::Place::kOutside;
}

void CompletionLoop::insert(Connection& connection) noexcept {
  std::size_t at = home_of(connection.qp_num_);
  while (table_[at].connection != nullptr) at = (at + 1) & (table_.size() - 1);
  table_[at] = {&connection, connection.qp_num_};
}

Connection* CompletionLoop::find_in_table(std::uint32_t qp_num) noexcept {
  for (std::size_t at = home_of(qp_num); table_[at].connection != nullptr; at = (at + 1) & (table_.size() - 1)) {
    if (table_[at].qp_num != qp_num) continue;
    last_ = table_[at];
    return last_.connection;
  }
  return nullptr;
}

void CompletionLoop::erase(std::uint32_t qp_num) noexcept {
  last_ = {};
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = home_of(qp_num);
  while (table_[hole].connection != nullptr && table_[hole].qp_num != qp_num) hole = (hole + 1) & mask;
  VERBENA_CHECK(table_[hole].connection != nullptr);
  // Entries after the hole that a probe from their home reaches only across it move into it: no tombstones.
  for (std::size_t at = (hole + 1) & mask; table_[at].connection != nullptr; at = (at + 1) & mask) {
    const std::size_t home = home_of(table_[at].qp_num);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = {};
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
    // A connection is in the table before it posts anything: an unknown number belongs to a QP that was destroyed.
    if (Connection* connection = find(qp_num); connection != nullptr) [[likely]] {
      connection->handle({wc_.data() + first, end - first});
    } else {
      counters_.strays += end - first;
    }
    first = end;
  } while (first < count);
  polling_ = false;
  if ((before ^ (before + count)) >> kCompletionsPerClockLog != 0) [[unlikely]]
    keep_alive(ticks_now());
}

void CompletionLoop::on_device_failure() noexcept {
  for (const Entry& entry : table_) {
    if (entry.connection == nullptr) continue;
    entry.connection->begin_failure(Status::kDevice);
    entry.connection->drain_deadline_ = Deadline::now();
  }
}

void CompletionLoop::started_draining(Connection& connection) noexcept {
  draining_.push_back(&connection);  // Within its capacity: a connection is in it once.
  has_chores_ = true;
  connection.draining_ = true;
}

void CompletionLoop::stopped_draining(Connection& connection) noexcept {
  std::erase(draining_, &connection);
  connection.draining_ = false;
}

void CompletionLoop::started_holding(Connection& connection) noexcept {
  holding_list_.push_back(&connection);  // Within its capacity, as in draining_.
  holding_ = true;
}

void CompletionLoop::stopped_holding(Connection& connection) noexcept {
  std::erase(holding_list_, &connection);
  holding_ = !holding_list_.empty();
}

// Who waits gets what he waits for, whether he flushed or not.
void CompletionLoop::flush_held() noexcept {
  while (!holding_list_.empty()) holding_list_.back()->flush();
}

void CompletionLoop::doom(void* object, void (*destroy)(void*) noexcept) noexcept {
  VERBENA_CHECK(doomed_.size() < doomed_.capacity());
  doomed_.push_back({object, destroy});
  has_chores_ = true;
}

void CompletionLoop::bury_doomed() noexcept {
  if (blocked_ != 0) return;  // A call on one of them may be what polls. The next poll asks again.
  // Not by iterators: a destructor must not find itself in the list.
  while (!doomed_.empty()) {
    const Doomed last = doomed_.back();
    doomed_.pop_back();
    last.destroy(last.object);
  }
  has_chores_ = !draining_.empty();
}

void CompletionLoop::check_drains() noexcept {
  polling_ = true;
  for (std::size_t i = 0; i < draining_.size();) {
    Connection& connection = *draining_[i];
    if (!connection.nothing_in_flight() && !connection.drain_deadline_.passed()) {
      ++i;
      continue;
    }
    stopped_draining(connection);
    connection.enter_drained();
    // Whoever waits for that has no completion to wake it.
    woken_.store(true, std::memory_order_relaxed);
  }
  polling_ = false;
}

Deadline CompletionLoop::drain_deadline() const noexcept {
  Deadline earliest = Deadline::never();
  for (const Connection* connection : draining_) earliest = earlier(earliest, connection->drain_deadline_);
  return earliest;
}

void CompletionLoop::keep_alive(std::uint64_t now) noexcept {
  if (now < keepalive_due_) return;
  keepalive_due_ = now + keepalive_ticks_;
  for (const Entry& entry : table_)
    if (entry.connection != nullptr) entry.connection->keep_alive();
}

Deadline CompletionLoop::keepalive_deadline() const noexcept {
  // Nobody to ask: an attach wakes the loop.
  if (connections_.load(std::memory_order_relaxed) == 0) return Deadline::never();
  return Deadline::at_ticks(keepalive_due_);
}

void CompletionLoop::wake() noexcept {
  woken_.store(true, std::memory_order_seq_cst);
  // Against `sleep`, as in `attach`.
  if (sleeping_.load(std::memory_order_seq_cst)) nic_.wake(channel_.get());
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
  if (ibv_req_notify_cq(cq_.get(), 0) != 0) on_device_failure();
  handled = poll();
  if (handled != 0) return Phase::kHandled;
  sleeping_.store(true, std::memory_order_seq_cst);
  if (!woken_.load(std::memory_order_seq_cst) && arrivals_.load(std::memory_order_seq_cst) == nullptr) {
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
  Phase phase = wait_policy_ == WaitPolicy::kEvent ? Phase::kGoOn : spin(deadline, handled);
  while (phase == Phase::kGoOn) phase = sleep(deadline, handled);
  return handled;
}

}  // namespace verbena::engine
