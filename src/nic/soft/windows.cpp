// Memory windows of type 2: a posted work request gives a key to the peer of one QP, and another one revokes it.
//
// A window is an entry of the key table like a region's, but bound by the QP's owner on its data path, and valid for
// that QP only (KeyEntry::domain). The caller chooses the key's low byte, which repeats after 256 bindings. The count
// of uses beside it in the entry does not repeat, so that an import of an older binding never works for a newer one.
//
// Invalidation revokes as dereg_mr does: it clears the entry, calls membarrier, and waits until the peer is outside of
// an access. There is only one peer to look at, because a window belongs to one QP. A remote invalidation needs none of
// this: the peer's NIC itself forgets the window when it sends the message, after all its earlier accesses.
#include "nic/soft/path.hpp"

#include <algorithm>

namespace verbena::nic::soft {

namespace {

constexpr std::uint32_t kVariant = 0xFF;  // The part of a key that each binding changes.

/// Whether the region allows such a window.
[[nodiscard]] bool fits_region(const SoftQp& qp, const SoftMw& mw, const ibv_mw_bind_info& bind) noexcept {
  const auto& mr = *static_cast<const SoftMr*>(bind.mr);
  const LocalKey& local = qp.nic->local_key(mr.handle);
  if (local.lkey.load(std::memory_order_acquire) != mr.lkey) return false;  // Deregistered.
  if (mr.pd != mw.pd || mr.pd != qp.pd) return false;
  if (bind.length == 0 || bind.addr < local.iova || bind.addr - local.iova > local.length ||
      bind.length > local.length - (bind.addr - local.iova)) {
    return false;
  }
  const std::uint32_t access = bind.mw_access_flags & ~std::uint32_t{IBV_ACCESS_ZERO_BASED};
  const std::uint32_t needed =
      IBV_ACCESS_MW_BIND | ((access & std::uint32_t{kRemoteWriters}) != 0 ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0U);
  return (access & ~mr.grantable) == 0 && (local.access & needed) == needed;
}

/// Frees a window; false if it was free already.
bool release(SoftNic& nic, SoftMw& mw) noexcept {
  SoftMr* const mr = mw.mr.exchange(nullptr, std::memory_order_acq_rel);
  if (mr == nullptr) return false;
  nic.shared_key(mw.handle).live.store(0, std::memory_order_release);
  mr->windows.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

}  // namespace

ibv_wc_status bind_window(SoftQp& qp, const ibv_send_wr& wr) noexcept {
  auto& mw = *static_cast<SoftMw*>(wr.bind_mw.mw);
  const ibv_mw_bind_info& bind = wr.bind_mw.bind_info;
  const std::uint32_t key = wr.bind_mw.rkey;
  const std::uint32_t last = mw.key.load(std::memory_order_relaxed);
  const bool is_next = (key & ~kVariant) == (last & ~kVariant) && key != last;
  if (!is_next || mw.mr.load(std::memory_order_acquire) != nullptr || !fits_region(qp, mw, bind)) {
    return IBV_WC_MW_BIND_ERR;
  }
  auto& mr = *static_cast<SoftMr*>(bind.mr);
  const std::uint64_t offset = bind.addr - qp.nic->local_key(mr.handle).iova;
  constexpr std::uint32_t kZeroBased = IBV_ACCESS_ZERO_BASED;
  KeyEntry& entry = qp.nic->shared_key(mw.handle);
  // Release stores: a reader of the previous binding that sees one of these also sees that the binding is gone.
  constexpr auto kRelease = std::memory_order_release;
  entry.domain.store(window_domain(qp.qp_num), kRelease);
  entry.access.store(bind.mw_access_flags & ~kZeroBased, kRelease);
  entry.iova.store((bind.mw_access_flags & kZeroBased) != 0 ? 0 : bind.addr, kRelease);
  entry.length.store(bind.length, kRelease);
  entry.memory_id.store(mr.memory_id, kRelease);
  entry.memory_offset.store(mr.memory_offset + offset, kRelease);
  mr.windows.fetch_add(1, std::memory_order_relaxed);
  mw.key.store(key, std::memory_order_relaxed);
  mw.qp_num.store(qp.qp_num, std::memory_order_relaxed);
  mw.mr.store(&mr, std::memory_order_release);
  qp.nic->publish_key(mw.handle, key);
  return IBV_WC_SUCCESS;
}

bool withdraw_window(SoftQp& qp, std::uint32_t rkey) noexcept {
  const std::uint32_t index = key_index(rkey);
  if ((rkey & kRemoteKeyBit) == 0 || index >= qp.nic->key_count()) return false;
  SoftMw* const mw = qp.nic->local_key(index).window.load(std::memory_order_acquire);
  if (mw == nullptr || mw->mr.load(std::memory_order_acquire) == nullptr ||
      mw->key.load(std::memory_order_relaxed) != rkey || mw->qp_num.load(std::memory_order_relaxed) != qp.qp_num) {
    return false;
  }
  return release(*qp.nic, *mw);
}

bool may_invalidate(const RemoteQp& remote, std::uint32_t rkey) noexcept {
  const std::uint32_t index = key_index(rkey);
  if ((rkey & kRemoteKeyBit) == 0 || index == 0 || index >= remote.peer->key_entries) return false;
  const KeyEntry& entry = reinterpret_cast<const KeyEntry*>(remote.peer->keys.data())[index];
  return static_cast<std::uint32_t>(entry.live.load(std::memory_order_acquire)) == rkey &&
         entry.domain.load(std::memory_order_relaxed) == remote.window_domain;
}

void forget_window(const RemoteQp& remote, std::uint32_t rkey) noexcept {
  Import& import = remote.peer->imports[key_index(rkey)];
  // No live word has this value: its key would be all ones.
  if (import.rkey.load(std::memory_order_relaxed) == rkey) import.word.store(~std::uint64_t{0});
}

Result<ibv_mw*> SoftNic::alloc_mw(ibv_pd* base) {
  const std::lock_guard lock(mutex_);
  auto at = std::ranges::find_if(windows_, [](const auto& window) { return !window->is_used; });
  if (at == windows_.end()) {
    auto fresh = std::unique_ptr<SoftMw>(new (std::nothrow) SoftMw());
    if (fresh == nullptr) return no_memory("a memory window");
    windows_.push_back(std::move(fresh));
    at = windows_.end() - 1;
  }
  SoftMw& mw = **at;
  VERBENA_ASSIGN(const std::uint32_t taken, take_key("alloc_mw"));
  const std::uint32_t key = taken | kRemoteKeyBit;
  mw.is_used = true;
  mw.context = context();
  mw.pd = base;
  mw.spd = static_cast<SoftPd*>(base);
  mw.type = IBV_MW_TYPE_2;
  mw.handle = key_index(key);
  mw.rkey = key;
  mw.key.store(key, std::memory_order_relaxed);
  keys_.local[mw.handle].window.store(&mw, std::memory_order_release);
  ++mw.spd->users;
  ++objects_.mws;
  return &mw;
}

Result<void> SoftNic::dealloc_mw(ibv_mw* base, Deadline deadline) {
  auto* const mw = static_cast<SoftMw*>(base);
  std::unique_lock lock(mutex_);
  Result<void> result;
  keys_.local[mw->handle].window.store(nullptr, std::memory_order_release);
  const std::uint32_t number = mw->qp_num.load(std::memory_order_relaxed);
  const auto at = qps_.find(number);
  // An invalidation that began and did not end has freed the window, but has not waited for the peer to leave it.
  const bool is_free = !release(*this, *mw);
  const auto gone =
      std::ranges::find_if(gone_.departed, [&](const Departed& departed) { return departed.qp_num == number; });
  if (!is_free || gone != gone_.departed.end() ||
      (at != qps_.end() && at->second->peer_work.is_revoking.load(std::memory_order_acquire))) {
    barrier_all_processes();
    std::vector<Inside> inside;
    const RemoteQp* remote = at == qps_.end() ? nullptr : at->second->remote.load(std::memory_order_acquire);
    if (remote != nullptr) {
      const std::uint64_t seen = remote->control->access.word.load(std::memory_order_acquire);
      if (seen % 2 == 1) inside.push_back({number, remote, seen});
    }
    if (gone != gone_.departed.end()) inside.push_back({number, gone->remote.get(), gone->word});
    result = wait_until_left(std::move(inside), lock, "dealloc_mw", deadline);
  }
  // The next user of the index begins after the last key that was bound.
  keys_.generations[mw->handle] = static_cast<std::uint8_t>(mw->key.load(std::memory_order_relaxed) & kVariant);
  give_key_back(mw->handle);
  --mw->spd->users;
  --objects_.mws;
  mw->is_used = false;
  return result;
}

/// Frees the windows that are bound on a QP.
void SoftNic::release_windows(const SoftQp& qp) noexcept {
  for (const auto& mw : windows_) {
    if (mw->qp_num.load(std::memory_order_relaxed) == qp.qp_num) (void)release(*this, *mw);
  }
}

}  // namespace verbena::nic::soft
