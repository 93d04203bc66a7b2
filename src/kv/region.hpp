// An arena that one NIC knows and that is registered as a whole; taken down in the right order.
#pragma once

#include "base/error.hpp"
#include "host/arena.hpp"
#include "nic/nic.hpp"

#include <cstddef>
#include <cstdint>

namespace verbena::kv {

/// Immovable. \thread any, one at a time  \alloc setup
class Region {
 public:
  Region() noexcept = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    mr_.reset();
    // Refused only while a peer sits in the region past the deadline of its deregistration; the memfd is never reused.
    if (nic_ != nullptr) (void)nic_->detach(memory_id_);
  }

  [[nodiscard]] Result<void> open(nic::Nic& nic, ibv_pd* pd, const host::ArenaOptions& options, const nic::Grant& grant,
                                  int access) {
    VERBENA_ASSIGN(arena_, host::Arena::create(options));
    VERBENA_ASSIGN(memory_id_, nic.attach(arena_, grant));
    nic_ = &nic;
    const auto iova = reinterpret_cast<std::uintptr_t>(arena_.data());
    VERBENA_ASSIGN(ibv_mr * mr, nic.reg_mr(pd, arena_.data(), arena_.size(), iova, access));
    mr_ = nic::Mr(nic, mr);
    return {};
  }

  [[nodiscard]] const host::Arena& arena() const noexcept { return arena_; }
  [[nodiscard]] std::byte* data() const noexcept { return arena_.data(); }
  [[nodiscard]] std::uint32_t lkey() const noexcept { return mr_->lkey; }
  [[nodiscard]] nic::Window window() const noexcept { return nic_->window_of(mr_.get()); }

 private:
  host::Arena arena_;
  nic::Nic* nic_ = nullptr;
  std::uint64_t memory_id_ = 0;
  nic::Mr mr_;
};

}  // namespace verbena::kv
