// An arena that is attached to one NIC and registered; its destructor undoes both in the right order.
#pragma once

#include "base/error.hpp"
#include "base/log.hpp"
#include "host/arena.hpp"
#include "nic/nic.hpp"

#include <cstddef>
#include <cstdint>

namespace verbena::nic {

/// Immovable. \thread any, one at a time  \alloc setup
class RegisteredArena {
 public:
  RegisteredArena() noexcept = default;
  RegisteredArena(const RegisteredArena&) = delete;
  RegisteredArena& operator=(const RegisteredArena&) = delete;
  ~RegisteredArena() {
    mr_.reset();
    if (nic_ == nullptr) return;
    if (const auto detached = nic_->detach(memory_id_); !detached)
      log(VERBENA_LOG_ERROR, "{} bytes are in quarantine, because a peer still uses them: {}", arena_.bytes().size(),
          detached.error().text());
  }

  /// Call it once. Registers the bytes asked for, not the size rounded up to whole pages.
  [[nodiscard]] Result<void> open(Nic& nic, ibv_pd* pd, const host::ArenaOptions& options, const Grant& grant,
                                  int access) {
    VERBENA_ASSIGN(arena_, host::Arena::create(options));
    VERBENA_ASSIGN(memory_id_, nic.attach(arena_, grant));
    nic_ = &nic;
    if (options.share == host::Share::kNone) arena_.close_file();
    const auto iova = reinterpret_cast<std::uintptr_t>(arena_.data());
    VERBENA_ASSIGN(ibv_mr * mr, nic.reg_mr(pd, arena_.data(), options.size_bytes, iova, access));
    mr_ = Mr(nic, mr);
    return {};
  }

  /// Ends the registration as Nic::dereg_mr does. The destructor waits for no peer.
  [[nodiscard]] Result<void> deregister(Deadline deadline) { return nic_->dereg_mr(mr_.release(), deadline); }

  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(mr_); }
  [[nodiscard]] const host::Arena& arena() const noexcept { return arena_; }
  [[nodiscard]] std::byte* data() const noexcept { return arena_.data(); }
  [[nodiscard]] std::uint64_t memory_id() const noexcept { return memory_id_; }
  [[nodiscard]] const ibv_mr* mr() const noexcept { return mr_.get(); }
  /// For windows that are bound on it.
  [[nodiscard]] ibv_mr* mr() noexcept { return mr_.get(); }
  [[nodiscard]] std::uint32_t lkey() const noexcept { return mr_->lkey; }
  [[nodiscard]] Window window() const noexcept { return nic_->window_of(mr_.get()); }

 private:
  host::Arena arena_;
  Nic* nic_ = nullptr;
  std::uint64_t memory_id_ = 0;
  Mr mr_;
};

}  // namespace verbena::nic
