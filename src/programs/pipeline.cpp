#include "programs/pipeline.hpp"

#include <algorithm>

namespace verbena::programs {

Pipeline::Pipeline(kv::Client& client, unsigned depth, std::size_t slot_bytes, std::chrono::milliseconds patience)
    : client_(client), slots_(std::max(depth, 1U)), patience_(patience) {
  constexpr std::size_t kLine = 64;
  const std::size_t wanted = (std::max<std::size_t>(slot_bytes, 1) + kLine - 1) / kLine * kLine;
  std::span<std::byte> memory = client.allocate(wanted * slots_.size());
  slot_bytes_ = wanted;
  if (memory.empty()) {
    slot_bytes_ = std::min(wanted, kv::kEagerBytes - kLine);
    plain_.resize(slot_bytes_ * slots_.size());
    memory = plain_;
  }
  free_.reserve(slots_.size());
  for (std::size_t i = slots_.size(); i-- > 0;) {
    slots_[i].buffer = memory.subspan(i * slot_bytes_, slot_bytes_);
    free_.push_back(&slots_[i]);
  }
}

void Pipeline::note_idle() noexcept {
  // Where client and server share a core, the server needs it now.
  constexpr std::uint32_t kYieldEvery = 1024, kLookEvery = 4096;
  ++idle_polls_;
  if (idle_polls_ == 1) give_up_ = Deadline::never();
  if (idle_polls_ % kYieldEvery == 0) std::this_thread::yield();
  if (idle_polls_ % kLookEvery != 0) return;
  if (give_up_.is_never()) give_up_ = Deadline::after(patience_);
  if (give_up_.passed() || client_.connection_error().status() != Status::kOk) broken_ = true;
}

}  // namespace verbena::programs
