#include "kv/held_leases.hpp"

#include "base/ticks.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace verbena::kv {
namespace {

/// How many values are streamed without getting a lease before another lease is given up. The first of a kind gets none
/// while the server is about to take others back.
constexpr unsigned kPatience = 2;

}  // namespace

// The server takes the lease back one term after it gave it, which was after the request was sent. The WRITE gets half
// of the term and must be over by then: the NIC refuses a later one, which ends the connection.
void HeldLeases::keep(unsigned worker, const wire::Lease& lease, std::uint64_t sent_ticks) noexcept {
  workers_[worker].streamed = 0;
  put_back(worker, {lease, sent_ticks + ticks_in(std::chrono::nanoseconds(lease.term_ns)) / 2});
}

void HeldLeases::put_back(unsigned worker, const Held& held) noexcept {
  auto& places = workers_[worker].held;
  const auto free = std::ranges::find(places, 0u, [](const Held& one) { return one.lease.id; });
  if (free != places.end()) *free = held;
}

std::optional<HeldLeases::Held> HeldLeases::take(unsigned worker, std::uint64_t bytes, std::uint64_t now) noexcept {
  Held* best = nullptr;
  for (Held& one : workers_[worker].held) {
    if (one.lease.id == 0 || one.until_ticks <= now || one.lease.length < bytes) continue;
    // A much larger block would be wasted on this value.
    if (one.lease.length / 2 >= bytes) continue;
    if (best == nullptr || one.until_ticks < best->until_ticks) best = &one;
  }
  if (best == nullptr) return {};
  return std::exchange(*best, Held{});
}

std::uint32_t HeldLeases::give_up_one(unsigned worker, std::uint64_t now) noexcept {
  Worker& at = workers_[worker];
  Held* next = nullptr;
  for (Held& one : at.held)
    if (one.lease.id != 0 && (next == nullptr || one.until_ticks < next->until_ticks)) next = &one;
  const bool is_short = ++at.streamed > kPatience;
  if (next == nullptr || (next->until_ticks > now && !is_short)) return 0;
  return std::exchange(next->lease.id, 0);
}

}  // namespace verbena::kv
