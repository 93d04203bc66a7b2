#include "keys.hpp"

namespace verbena::sim {

namespace {

/// Written so that no sum can wrap around.
bool contains(const KeyEntry& entry, std::uint64_t address, std::uint64_t length) noexcept {
  const std::uint64_t offset = address - entry.iova;
  return address >= entry.iova && offset <= entry.length && length <= entry.length - offset;
}

}  // namespace

std::uint32_t KeyTable::add(const KeyEntry& entry, std::uint8_t variant) {
  const std::uint32_t index = next_++;
  const std::uint32_t key = index << 8 | variant;
  entries_[index] = entry;
  entries_[index].key = key;
  return key;
}

std::byte* KeyTable::local(const ibv_pd* pd, const ibv_sge& sge, std::uint32_t needed) const noexcept {
  if ((sge.lkey & kRemoteBit) != 0) return nullptr;
  const auto at = entries_.find(index_of(sge.lkey));
  if (at == entries_.end()) return nullptr;
  const KeyEntry& entry = at->second;
  // Windows have remote keys only.
  if (entry.is_window || entry.key != sge.lkey || entry.pd != pd || (entry.access & needed) != needed ||
      !contains(entry, sge.addr, sge.length))
    return nullptr;
  return entry.base + (sge.addr - entry.iova);
}

std::byte* KeyTable::remote(const ibv_qp& qp, std::uint64_t address, std::uint32_t rkey, std::uint64_t length,
                            std::uint32_t needed) const noexcept {
  if ((rkey & kRemoteBit) == 0) return nullptr;
  const auto at = entries_.find(index_of(rkey));
  if (at == entries_.end()) return nullptr;
  const KeyEntry& entry = at->second;
  const std::uint32_t ignored = entry.is_window && network_.is(Mutant::kKeyNotRotated) ? kVariant : 0;
  if ((entry.key | ignored) != ((rkey & ~kRemoteBit) | ignored) || entry.pd != qp.pd) return nullptr;
  if (entry.is_window && (!entry.is_bound || entry.qp_num != qp.qp_num)) return nullptr;
  if ((entry.access & needed) != needed && !network_.is(Mutant::kNoAccessCheck)) return nullptr;
  return contains(entry, address, length) ? entry.base + (address - entry.iova) : nullptr;
}

bool KeyTable::bind(const ibv_qp& qp, ibv_mw& mw, std::uint32_t rkey, const ibv_mw_bind_info& info) {
  KeyEntry& window = entries_.at(mw.handle);
  const auto at = entries_.find(info.mr->handle);
  if (at == entries_.end() || at->second.is_window) return false;
  KeyEntry& region = at->second;
  const std::uint32_t key = rkey & ~kRemoteBit;
  // The variant has to change, so that the key of the binding before is dead (IBTA 10.6.7.2.4).
  const bool is_next = (rkey & kRemoteBit) != 0 && (key | kVariant) == (window.key | kVariant) && key != window.key;
  if (!is_next || window.is_bound || window.pd != qp.pd || region.pd != qp.pd) return false;
  const std::uint32_t access = info.mw_access_flags & ~std::uint32_t{IBV_ACCESS_ZERO_BASED};
  constexpr std::uint32_t kWriters = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  // The window has rights of its own, but who may write through it needs a region that may be written at all.
  const std::uint32_t needed =
      IBV_ACCESS_MW_BIND | ((access & kWriters) != 0 ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0U);
  if ((region.access & needed) != needed || info.length == 0 || !contains(region, info.addr, info.length)) return false;
  window.key = key;
  window.iova = (info.mw_access_flags & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : info.addr;
  window.length = info.length;
  window.base = region.base + (info.addr - region.iova);
  window.access = access;
  window.is_bound = true;
  window.qp_num = qp.qp_num;
  window.region = at->first;
  ++region.windows;
  return true;
}

bool KeyTable::may_invalidate(const ibv_qp& qp, std::uint32_t rkey) const noexcept {
  const auto at = entries_.find(index_of(rkey));
  if ((rkey & kRemoteBit) == 0 || at == entries_.end()) return false;
  const KeyEntry& entry = at->second;
  return entry.is_window && entry.is_bound && entry.key == (rkey & ~kRemoteBit) && entry.qp_num == qp.qp_num;
}

void KeyTable::invalidate(std::uint32_t index) {
  KeyEntry& window = entries_.at(index);
  if (!std::exchange(window.is_bound, false)) return;
  --entries_.at(window.region).windows;
}

void KeyTable::invalidate_all(const ibv_qp& qp) {
  for (const auto& [index, entry] : entries_) {
    if (entry.is_window && entry.is_bound && entry.qp_num == qp.qp_num) invalidate(index);
  }
}

}  // namespace verbena::sim
