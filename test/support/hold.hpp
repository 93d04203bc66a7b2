// Chaos on demand: keeps what the soft NIC does back, until it is let go.
#pragma once

#include "nic/soft/soft_nic.hpp"

namespace verbena::test {

/// Keeps work requests of a soft `qp` from being executed: they wait in the send queue as on a slow wire, and land late
/// when let go. Flushes are delivered all the same. \thread owner
inline void hold_execution(ibv_qp* qp, bool hold) noexcept {
  auto& held = static_cast<nic::soft::SoftQp*>(qp)->sq.held;
  if (hold) {
    held.fetch_or(nic::soft::Hold::kByTest, std::memory_order_relaxed);
  } else {
    held.fetch_and(static_cast<std::uint8_t>(~nic::soft::Hold::kByTest), std::memory_order_relaxed);
  }
}

/// Keeps completions of a soft `cq` from being polled. \thread owner
inline void hold_completions(ibv_cq* cq, bool hold) noexcept {
  auto& held = static_cast<nic::soft::SoftCq*>(cq)->held;
  held = static_cast<std::uint8_t>((held & ~nic::soft::Hold::kByTest) | (hold ? nic::soft::Hold::kByTest : 0));
}

}  // namespace verbena::test
