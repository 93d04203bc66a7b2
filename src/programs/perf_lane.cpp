#include "programs/perf_lane.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/relax.hpp"
#include "base/ticks.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::programs {
namespace {

/// A client that is slow, or stuck, does not keep a server from the next one for ever.
constexpr std::chrono::hours kLongestRun{1};
/// Without a sign of the peer.
constexpr std::chrono::milliseconds kProbeAfter{100};
/// One operation in so many carries the time of its start: reading the clock costs as much as some operations do.
constexpr std::uint64_t kTimedEvery = 32;
/// Messages on one connection before it is the next one's turn.
constexpr std::uint64_t kBurst = 16;

}  // namespace

PerfPatience::PerfPatience(PerfRole role, std::chrono::milliseconds timeout) noexcept
    : timeout_ticks_(ticks_in(timeout)),
      end_(role == PerfRole::kServer ? Deadline::after(kLongestRun) : Deadline::never()) {}

// --- setup

Result<std::unique_ptr<PerfLane>> PerfLane::create(PerfDevice& device, const perf_wire::RunHello& run, PerfRole role,
                                                   PerfPatience patience) {
  std::unique_ptr<PerfLane> lane(new PerfLane(run, role, patience));
  VERBENA_TRY(lane->create(device));
  return lane;
}

Result<void> PerfLane::create(PerfDevice& device) {
  nic_ = &device.nic();
  VERBENA_TRY(own_.open(*nic_, device.pd.get(), {.size_bytes = run_.bytes, .prefault_threads = 1, .name = "perf-own"},
                        {}, IBV_ACCESS_LOCAL_WRITE));
  const PerfTestFacts& facts = facts_of(run_.test);
  if (facts.one_sided()) VERBENA_TRY(create_shared(device));
  const engine::LocalSpan own{own_.data(), run_.bytes, own_.lkey()};
  for (unsigned i = 0; i < run_.connections; ++i)
    connections_.push_back(std::make_unique<PerfConnection>(run_, role_, own, counts_));
  // A server whose memory is used sleeps meanwhile.
  const bool is_busy = role_ == PerfRole::kClient || facts.keeps_server_busy;
  const engine::WaitPolicy wait = is_busy ? run_.wait : engine::WaitPolicy::kEvent;
  VERBENA_ASSIGN(loop_, engine::CompletionLoop::create(*nic_, perf_wire::loop_options(run_, wait)));
  for (const auto& connection : connections_) VERBENA_TRY(connection->create(device, *loop_));
  return {};
}

Result<void> PerfLane::create_shared(PerfDevice& device) {
  VERBENA_TRY(shared_.open(*nic_, device.pd.get(),
                           {.size_bytes = perf_wire::shared_bytes(run_),
                            .share = host::Share::kReadWrite,
                            .prefault_threads = 1,
                            .name = "perf-shared"},
                           {}, IBV_ACCESS_LOCAL_WRITE | perf_wire::window_access(run_)));
  const bool is_physical = facts_of(run_.test).by == PerfBy::kPhysical && role_ == PerfRole::kServer;
  return is_physical ? export_shared() : Result<void>();
}

Result<void> PerfLane::export_shared() {
  VERBENA_ASSIGN(const host::PageMap pages, host::PageMap::open());
  constexpr std::uint32_t kRights = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  VERBENA_ASSIGN(export_, remote::PhysicalExport::create(*nic_, shared_.mr(), kRights, pages));
  const std::vector<std::byte> table = export_->table().encode();
  const std::uint64_t length = table.size(), offset = perf_wire::table_offset(run_);
  VERBENA_CHECK(offset + sizeof length + length <= perf_wire::shared_bytes(run_));
  std::memcpy(shared_.data() + offset, &length, sizeof length);
  std::ranges::copy(table, shared_.data() + offset + sizeof length);
  return {};
}

Result<void> PerfLane::grant(const link::Endpoint& remote) {
  if (granted_ || shared_.memory_id() == 0) return {};
  granted_ = true;
  return nic_->grant(shared_.memory_id(), {.to = nic::Grant::To::kOneGid, .gid = remote.qp.gid});
}

// --- waiting

Status PerfLane::advance() noexcept {
  if (loop_->wait(deadline_) != 0 && counts_.failure == Status::kOk) [[likely]]
    return Status::kOk;
  return look_for_progress();
}

Status PerfLane::look_for_progress() noexcept {
  if (counts_.failure != Status::kOk) return counts_.failure;
  if (!deadline_.passed()) return Status::kOk;
  if (progress() == seen_) return Status::kTimedOut;
  start_waiting();
  return Status::kOk;
}

Status PerfLane::probe() noexcept {
  std::byte one{};
  const engine::RemoteSpan peer = first().peer();
  return first().link().read(std::span(&one, 1), {.address = peer.address, .length = 1, .rkey = peer.rkey},
                             patience_.now());
}

// --- one at a time

// The last byte of a write lands last, and no two rounds that follow each other have the same.
Status PerfLane::write_mark(std::uint64_t round, Deadline deadline) noexcept {
  std::byte* const end = own_.data() + run_.bytes;
  if (run_.bytes >= sizeof round) {
    // A whole word: a load of eight bytes, of which one was just stored, waits until the store is in the cache.
    const std::uint64_t word = round << 56;
    std::memcpy(end - sizeof word, &word, sizeof word);
  } else {
    end[-1] = static_cast<std::byte>(round);
  }
  return write(deadline);
}

Status PerfLane::await_mark(std::uint64_t round, const std::atomic<bool>* stop, Deadline deadline) noexcept {
  constexpr unsigned kLookEvery = 1024;  // Rare enough that the look does not show in the figure.
  const auto* last = reinterpret_cast<const std::uint8_t*>(shared_.data() + run_.bytes - 1);
  Deadline next_probe = Deadline::never();
  for (unsigned polls = 1;; ++polls) {
    if (__atomic_load_n(last, __ATOMIC_ACQUIRE) == static_cast<std::uint8_t>(round)) return Status::kOk;
    relax();
    if (polls % kLookEvery != 0) continue;
    loop_->poll();
    if (counts_.failure != Status::kOk) return counts_.failure;
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) return Status::kClosed;
    if (deadline.passed()) return Status::kTimedOut;
    if (next_probe.is_never()) next_probe = Deadline::after(kProbeAfter);
    if (!next_probe.passed()) continue;
    if (const Status status = probe(); status != Status::kOk) return status;
    next_probe = Deadline::after(kProbeAfter);
  }
}

Status PerfLane::ping_pong(std::uint64_t round, Deadline deadline) noexcept {
  const Status status = write_mark(round, deadline);
  return status == Status::kOk ? await_mark(round, nullptr, deadline) : status;
}

Status PerfLane::ask(Deadline deadline) noexcept {
  const std::uint64_t before = counts_.arrived;
  for (;;) {
    const Status status = first().send(PerfConnection::Wants::kAnswer);
    if (status == Status::kOk) break;
    if (status != Status::kAgain) return status;
    if (loop_->wait(deadline) == 0 && deadline.passed()) return Status::kTimedOut;
  }
  return await([&] { return counts_.arrived != before; }, deadline);
}

Status PerfLane::ask_after(std::uint64_t idle_ticks, std::uint64_t& ticks) noexcept {
  for (const Deadline end = Deadline::at_ticks(ticks_now() + idle_ticks); !end.passed();) relax();
  const std::uint64_t start = ticks_now();
  const Deadline deadline = patience_.from(start);
  const std::uint64_t before = counts_.arrived;
  if (const Status status = first().send(PerfConnection::Wants::kAnswer); status != Status::kOk) return status;
  // This end does not sleep, whatever the policy: its own wake-up is not what is asked for.
  while (counts_.arrived == before) {
    if (loop_->poll() != 0) continue;
    if (counts_.failure != Status::kOk) return counts_.failure;
    if (deadline.passed()) return Status::kTimedOut;
    relax();
  }
  ticks = ticks_now() - start;
  return Status::kOk;
}

Status PerfLane::idle(Deadline deadline) noexcept {
  while (!deadline.passed()) {
    loop_->wait(deadline);
    if (counts_.failure != Status::kOk) return counts_.failure;
  }
  return Status::kOk;
}

// --- many at once

Status PerfLane::fill(PerfConnection& connection, std::uint64_t left, std::uint32_t batch,
                      std::uint64_t& started) noexcept {
  while (left != 0) {
    const auto now = static_cast<std::uint32_t>(std::min<std::uint64_t>(batch, left));
    if (run_.depth - connection.in_flight() < now) return Status::kOk;
    if (batch > 1) connection.hold();
    Status status = Status::kOk;
    for (std::uint32_t i = 0; i < now && status == Status::kOk; ++i) {
      status = connection.start(started % kTimedEvery == 0 ? ticks_now() : 0);
      if (status != Status::kOk) break;
      ++started;
      --left;
    }
    if (batch > 1) connection.release();
    if (status != Status::kOk) return status == Status::kAgain ? Status::kOk : status;
  }
  return Status::kOk;
}

Status PerfLane::pipeline(std::uint64_t count, std::uint32_t batch) noexcept {
  const std::uint64_t target = counts_.completed + count;
  start_waiting();
  for (std::uint64_t started = 0; counts_.completed < target;) {
    for (const auto& connection : connections_) {
      const Status status = fill(*connection, count - started, batch, started);
      if (status != Status::kOk) return status;
    }
    if (const Status status = advance(); status != Status::kOk) return status;
  }
  return Status::kOk;
}

std::uint64_t PerfLane::burst(PerfConnection& connection, std::uint64_t most, std::uint32_t batch) noexcept {
  std::uint64_t sent = 0;
  if (batch > 1) connection.hold();
  // What is neither kOk nor kAgain kills the channel, which the next wait finds.
  while (sent < most && connection.send(PerfConnection::Wants::kNothing) == Status::kOk) ++sent;
  if (batch > 1) connection.release();
  return sent;
}

Status PerfLane::stream(std::uint64_t count, std::uint32_t batch) noexcept {
  const std::uint64_t turn = batch > 1 ? batch : kBurst;
  start_waiting();
  for (std::uint64_t sent = 0; sent < count;) {
    const std::uint64_t before = sent;
    for (const auto& connection : connections_) sent += burst(*connection, std::min(turn, count - sent), batch);
    if (sent != before) {
      loop_->poll();
    } else if (const Status status = advance(); status != Status::kOk) {
      return status;
    }
  }
  return await_answers();
}

Status PerfLane::await_answers() noexcept {
  const std::uint64_t target = counts_.arrived + connections_.size();
  for (const auto& connection : connections_) {
    for (Status status; (status = connection->send(PerfConnection::Wants::kAnswer)) != Status::kOk;) {
      if (status == Status::kAgain) status = advance();
      if (status != Status::kOk) return status;
    }
  }
  while (counts_.arrived < target) {
    if (const Status status = advance(); status != Status::kOk) return status;
  }
  return Status::kOk;
}

// --- the server's part

Status PerfLane::serve(const std::atomic<bool>& stop) noexcept {
  if (run_.test == PerfTest::kPingPong) return serve_ping_pong(stop);
  start_waiting();
  while (!stop.load(std::memory_order_acquire)) {
    const Status status = advance();
    heard_.store(progress(), std::memory_order_relaxed);
    if (status == Status::kTimedOut && !patience_.ended()) {
      start_waiting();
    } else if (status != Status::kOk) {
      return status;
    }
    if (counts_.owed == 0) continue;
    for (const auto& connection : connections_) connection->answer();
  }
  return Status::kOk;
}

Status PerfLane::serve_ping_pong(const std::atomic<bool>& stop) noexcept {
  for (std::uint64_t round = 1;;) {
    const std::uint64_t began = ticks_now();
    Status status = await_mark(round, &stop, patience_.from(began));
    if (status == Status::kTimedOut && !patience_.ended()) continue;
    if (status == Status::kOk) status = write_mark(round, patience_.after_wait(began));
    if (status != Status::kOk) return stop.load(std::memory_order_acquire) ? Status::kOk : status;
    heard_.store(round++, std::memory_order_relaxed);
  }
}

}  // namespace verbena::programs
