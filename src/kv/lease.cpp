#include "kv/lease.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/ticks.hpp"
#include "nic/footprint.hpp"

#include <algorithm>
#include <bit>
#include <chrono>

namespace verbena::kv {
namespace {

/// A client finishes its access within one copy, or its process is dead. The same limit as for a region (nic.cpp).
constexpr std::chrono::milliseconds kLeaveTimeout{100};

}  // namespace

Result<void> Leases::open(nic::Nic& nic, ibv_pd* pd, Account* account) {
  nic_ = &nic;
  account_ = account;
  if (policy_.memory == nullptr) return {};
  leases_.resize(policy_.most);
  for (Lease& lease : leases_) {
    VERBENA_ASSIGN(ibv_mw * window, nic.alloc_mw(pd));
    lease.window = nic::Mw(nic, window);
  }
  return {};
}

host::Footprint Leases::footprint(nic::Kind kind, unsigned most) {
  host::Footprint pools;
  if (most == 0) return pools;
  pools.add({.name = "leases", .count = most, .bytes_each = sizeof(Lease)});
  pools.add("windows", most, nic::mw_footprint(kind));
  return pools;
}

bool Leases::offer(channel::Connection& channel, std::uint64_t value_length, wire::Lease& told) noexcept {
  if (value_length < wire::kLeastLease || value_length > policy_.longest) return false;
  if (policy_.is_scarce(ticks_now())) return false;
  const std::uint64_t bytes = std::bit_ceil(value_length);
  if (policy_.bytes + bytes > policy_.most_bytes) return false;
  const auto at = std::ranges::find(leases_, Lease::State::kNone, &Lease::state);
  if (at == leases_.end()) return false;
  at->block = store_.take_block(static_cast<std::size_t>(bytes));
  if (!at->block) return false;
  at->bytes = at->block.bytes.size();
  if (account_ != nullptr && account_->charge({.bytes = at->bytes}) != Quota::kNone) {
    store_.give_back(at->block);
    return false;
  }
  ++policy_.leases;
  policy_.bytes += at->bytes;
  return give_again(channel, *at, told);
}

bool Leases::give_again(channel::Connection& channel, Lease& lease, wire::Lease& told) noexcept {
  // Read after the request came, so it is later than the client's own reading before it sent.
  const std::uint64_t now = ticks_now();
  const std::uint32_t rkey = ibv_inc_rkey(lease.window->rkey);
  const ibv_mw_bind_info info{.mr = policy_.memory,
                              .addr = reinterpret_cast<std::uintptr_t>(lease.block.bytes.data()),
                              .length = lease.block.bytes.size(),
                              .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
  if (policy_.is_scarce(now) || channel.bind(*lease.window.get(), rkey, info) != Status::kOk) {
    close(lease);
    return false;
  }
  lease.window->rkey = rkey;
  lease.state = Lease::State::kGiven;
  ++lease.generation;  // A request with the old id finds nothing.
  lease.given_ticks = now;
  told = {.address = info.addr, .length = info.length, .term_ns = policy_.term_ns, .rkey = rkey, .id = id_of(lease)};
  return true;
}

Leases::Lease* Leases::find(std::uint32_t id) noexcept {
  const std::uint32_t at = (id & 0xffff) - 1;
  if (at >= leases_.size()) return nullptr;
  Lease& lease = leases_[at];
  return lease.state == Lease::State::kGiven && id_of(lease) == id ? &lease : nullptr;
}

bool Leases::revoke(channel::Connection& channel, Lease& lease, Lease::State state) noexcept {
  VERBENA_DCHECK(lease.state == Lease::State::kGiven);
  lease.state = state;
  lease.is_posted = false;
  ++unposted_;
  return post(channel);
}

bool Leases::post(channel::Connection& channel) noexcept {
  for (std::size_t at = 0; unposted_ != 0 && at < leases_.size(); ++at) {
    Lease& lease = leases_[at];
    const bool waits = lease.state == Lease::State::kAdopting || lease.state == Lease::State::kReturning;
    if (!waits || lease.is_posted) continue;
    // After any failure but kAgain the client is lost, and `end` takes everything back.
    if (channel.start_invalidate(lease.window->rkey, at) == Status::kAgain) return false;
    lease.is_posted = true;
    --unposted_;
  }
  return true;
}

void Leases::close(Lease& lease) noexcept {
  if (lease.block) store_.give_back(lease.block);
  --policy_.leases;
  policy_.bytes -= lease.bytes;
  if (account_ != nullptr) account_->give_back({.bytes = lease.bytes});
  lease.state = Lease::State::kNone;
}

bool Leases::expire(channel::Connection& channel, std::uint64_t now) noexcept {
  bool is_posted = true;
  for (Lease& lease : leases_) {
    // `now` may be older than a lease.
    const bool is_old = now > lease.given_ticks && now - lease.given_ticks > policy_.term_ticks;
    if (lease.state == Lease::State::kGiven && is_old) is_posted &= revoke(channel, lease, Lease::State::kReturning);
  }
  return is_posted;
}

void Leases::end(channel::Connection* channel) noexcept {
  // An invalidation in flight must find its window: in the error state nothing is executed any more.
  const auto is_used = [](const Lease& lease) { return lease.state != Lease::State::kNone; };
  if (channel != nullptr && std::ranges::any_of(leases_, is_used)) channel->fail(Status::kClosed);
  // A window also ends with its queue pair, but that waits for nobody: clients of the software NIC write by themselves.
  // A device's memory cannot be reached without the queue pair.
  const bool is_bound = channel != nullptr && channel->queue_pair() != nullptr;
  const Deadline deadline = Deadline::after(kLeaveTimeout);  // For all leases together: a single client has to leave
                                                             // them.
  for (Lease& lease : leases_) {
    if (!is_used(lease)) continue;
    const bool is_waited_for = is_bound || !nic_->capabilities().maps_windows;
    const auto left = nic_->dealloc_mw(lease.window.release(), deadline);
    // Otherwise somebody may still write: the block is lost, and stays in the account.
    if (left && is_waited_for) close(lease);
  }
  leases_.clear();
}

}  // namespace verbena::kv
