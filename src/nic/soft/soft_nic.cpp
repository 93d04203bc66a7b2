// The control plane of the soft NIC: objects, memory, keys, queue pairs and their states.
#include "nic/soft/path.hpp"

#include "base/check.hpp"
#include "nic/footprint.hpp"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

namespace verbena::nic::soft {

namespace {

constexpr std::uint32_t kMaxCqs = 1024;
// Large enough that an eager message of the message layer needs no staging copy.
constexpr std::uint32_t kMaxInline = 8192;
constexpr std::uint32_t kMaxCqe = 1U << 20;
constexpr int kRemoteWriters = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/// IB specification, table 46 (RNR NAK timer field): 0.01 ms units, 0 is the longest.
constexpr std::uint32_t kRnrTimerUs[32] = {
    655360, 10,   20,   30,   40,    60,    80,    120,   160,   240,   320,   480,    640,    960,    1280,   1920,
    2560,   3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};

[[nodiscard]] std::uint64_t us_to_ticks(double us) noexcept { return static_cast<std::uint64_t>(us * ticks_per_us()); }

}  // namespace

template <class T>
LazyTable<T>::~LazyTable() {
  if (data_ != nullptr) ::munmap(data_, count_ * sizeof(T));
}

template <class T>
Result<LazyTable<T>> LazyTable<T>::create(std::size_t count) {
  void* data =
      ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return fail_system("mmap", errno, "making a key table");
  LazyTable table;
  // All-zero bytes are a valid T here: atomics of 0, null pointers.
  table.data_ = static_cast<T*>(data);
  table.count_ = count;
  return table;
}
template class LazyTable<Import>;
template class LazyTable<LocalKey>;

/// Runs `change` while the owner of `cq` is outside poll and stays there. Under the NIC's mutex; must not be called by
/// the owner from inside poll (it never is: polls call no control plane).
template <class Change>
void SoftNic::exclusively(SoftCq& cq, Change&& change) noexcept {
  cq.control.fetch_or(SoftCq::kExclusive, std::memory_order_seq_cst);
  barrier_this_process();
  const std::uint64_t word = cq.poll_word.load(std::memory_order_acquire);
  if (word % 2 == 1) {
    // A poll takes microseconds and cannot wait for anything; any change of the word means that this one is over, and
    // that the next one saw kExclusive.
    while (cq.poll_word.load(std::memory_order_acquire) == word) std::this_thread::yield();
  }
  change();
  cq.control.fetch_and(~SoftCq::kExclusive, std::memory_order_release);
}

SoftNic::SoftNic(const SoftOptions& options, const TestOptions& test)
    : options_(options),
      test_(test),
      ordinal_(live_.fetch_add(1, std::memory_order_relaxed)),
      allowed_uids_(options.allowed_uids.begin(), options.allowed_uids.end()) {
  options_.allowed_uids = {};
  limits_ = {.max_qp = options.max_qp,
             .max_cq = kMaxCqs,
             .max_mr = options.max_mr - 1,
             .max_pd = 65536,
             .max_mw = options.max_mr - 1,
             .max_srq = kMaxSrqs,
             .max_srq_wr = kMaxQpWr,
             .max_qp_wr = kMaxQpWr,
             .max_cqe = kMaxCqe,
             .max_sge = kMaxSge,
             .max_inline = kMaxInline,
             .max_rd_atomic = 128,
             .max_message = kMaxMessage};
}

Result<void> SoftNic::start() {
  if (options_.max_qp == 0 || options_.max_qp > 65536 || options_.max_mr < 2 || options_.max_mr > kMaxKeyIndex) {
    return fail(Status::kBadArgument, "open_soft", 0, "max_qp {} must be 1 to 65536 and max_mr {} 2 to {}",
                options_.max_qp, options_.max_mr, kMaxKeyIndex);
  }
  if (!options_.chaos) {
    VERBENA_ASSIGN(options_.chaos, chaos_of_environment());
  }
  if (options_.chaos) VERBENA_TRY(check_chaos(*options_.chaos));
  VERBENA_TRY(register_membarriers());
  VERBENA_ASSIGN(keys_, Mapping::create("verbena-keys", options_.max_mr * sizeof(KeyEntry), Mapping::Mode::kRead));
  VERBENA_ASSIGN(ready_, Mapping::create("verbena-ready", kMaxCqs * kReadyWords * sizeof(std::uint64_t),
                                         Mapping::Mode::kReadWrite));
  VERBENA_ASSIGN(local_keys_, LazyTable<LocalKey>::create(options_.max_mr));
  generations_.resize(options_.max_mr, 0);
  free_keys_.resize(options_.max_mr - 1);
  // Index 0 stays unused: no key is 0.
  for (std::uint32_t i = 0; i < free_keys_.size(); ++i) free_keys_[i] = i + 1;
  cq_slots_.resize(kMaxCqs, false);

  std::strncpy(device_.name, "verbena-soft", sizeof device_.name - 1);
  device_.node_type = IBV_NODE_UNSPECIFIED;
  device_.transport_type = IBV_TRANSPORT_UNSPECIFIED;
  verbs_.sz = sizeof verbs_;
  verbs_.context.device = &device_;
  verbs_.context.cmd_fd = -1;
  verbs_.context.async_fd = -1;
  verbs_.context.num_comp_vectors = 1;
  verbs_.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  verbs_.context.ops.post_send = &post_send;
  verbs_.context.ops.post_recv = &post_recv;
  verbs_.context.ops.poll_cq = &poll_cq;
  verbs_.context.ops.req_notify_cq = &req_notify_cq;
  verbs_.context.ops.post_srq_recv = &post_srq_recv;
  (void)ticks_per_us();  // Measured now, not at the first stall.
  return open_rendezvous();
}

Result<ibv_pd*> SoftNic::alloc_pd() {
  const std::lock_guard lock(mutex_);
  auto* pd = new (std::nothrow) SoftPd();
  if (pd == nullptr) return no_memory("a protection domain");
  pd->context = context();
  pd->id = next_pd_++;
  pd->handle = pd->id;
  ++objects_.pds;
  return pd;
}

Result<void> SoftNic::dealloc_pd(ibv_pd* base) {
  const std::lock_guard lock(mutex_);
  auto* pd = static_cast<SoftPd*>(base);
  if (pd->users != 0) {
    return fail(Status::kBusy, "dealloc_pd", EBUSY, "{} queue pairs or memory regions still use the protection domain",
                pd->users);
  }
  delete pd;
  --objects_.pds;
  return {};
}

namespace {
[[nodiscard]] Result<void> check_grant(const Grant& grant, host::Share share) {
  if (grant.to != Grant::To::kNobody && share == host::Share::kNone) {
    return fail(Status::kBadArgument, "attach", 0,
                "the arena was made with Share::kNone and can be granted to nobody; make it kReadOnly or kReadWrite");
  }
  return {};
}
}  // namespace

Result<std::uint64_t> SoftNic::attach(const host::Arena& arena, const Grant& grant) {
  if (arena.data() == nullptr) return fail(Status::kBadArgument, "attach", 0, "the arena is empty");
  VERBENA_TRY(check_grant(grant, arena.share()));
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_memory_++;
  memories_[id] = {arena.data(), arena.size(), arena.fd(), arena.share(), grant, 0};
  note_owner_mapping(arena.fd(), arena.data());
  ++objects_.arenas;
  return id;
}

Result<void> SoftNic::grant(std::uint64_t memory_id, const Grant& grant) {
  const std::lock_guard lock(mutex_);
  const auto at = memories_.find(memory_id);
  if (at == memories_.end()) return fail(Status::kBadArgument, "grant", 0, "no arena {} is attached", memory_id);
  VERBENA_TRY(check_grant(grant, at->second.share));
  if (at->second.grant.to != Grant::To::kNobody) {
    return fail(
        Status::kBadArgument, "grant", 0,
        "the arena is granted already; memory that one peer may write is never given to another: make a new arena");
  }
  at->second.grant = grant;
  return {};
}

Result<void> SoftNic::detach(std::uint64_t memory_id) {
  const std::lock_guard lock(mutex_);
  const auto at = memories_.find(memory_id);
  if (at == memories_.end()) return fail(Status::kBadArgument, "detach", 0, "no arena {} is attached", memory_id);
  if (at->second.regions != 0) {
    return fail(Status::kBusy, "detach", EBUSY, "{} memory regions still lie in the arena", at->second.regions);
  }
  forget_owner_mapping(at->second.data);
  memories_.erase(at);
  --objects_.arenas;
  return {};
}

/// A key of an index that is not in use, newer than its last.
Result<std::uint32_t> SoftNic::take_key(const char* call) {
  if (free_keys_head_ == free_keys_.size()) {
    return fail(Status::kLimit, call, ENOMEM, "all {} memory regions and windows are in use; raise SoftOptions::max_mr",
                limits_.max_mr);
  }
  const std::uint32_t index = free_keys_[free_keys_head_++];
  return (index << 8) | ++generations_[index];
}

/// A queue: the generation of an index grows only when all other free indices have been used, so a stale key stays
/// stale for a long time. The consumed front is dropped now and then.
void SoftNic::give_key_back(std::uint32_t index) {
  free_keys_.push_back(index);
  if (free_keys_head_ > 4096 && free_keys_head_ * 2 > free_keys_.size()) {
    free_keys_.erase(free_keys_.begin(), free_keys_.begin() + static_cast<std::ptrdiff_t>(free_keys_head_));
    free_keys_head_ = 0;
  }
}

namespace {
/// Of memory in no arena: faulted in, as a device would, so that what is not there is found now and not by a copy.
[[nodiscard]] Result<void> check_mapped(void* address, std::size_t length, int access) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t page = first & ~std::uintptr_t{4095};
  const int populate = (access & IBV_ACCESS_LOCAL_WRITE) != 0 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  if (::madvise(reinterpret_cast<void*>(page), first - page + length, populate) == 0) return {};
  const int cause = errno;
  alignas(4096) static std::byte known[4096];
  if (cause == EINVAL && ::madvise(known, sizeof known, MADV_POPULATE_READ) != 0) return {};  // Before Linux 5.14.
  return fail(Status::kBadArgument, "reg_mr", cause,
              "{} bytes at {} are not mapped, or not writable as the access asks for; register what is", length,
              address);
}
}  // namespace

Result<ibv_mr*> SoftNic::reg_mr(ibv_pd* base, void* address, std::size_t length, std::uint64_t iova, int access) {
  auto* pd = static_cast<SoftPd*>(base);
  constexpr int kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | kRemoteWriters | IBV_ACCESS_MW_BIND |
                         IBV_ACCESS_RELAXED_ORDERING;
  if (length == 0 || (access & ~kKnown) != 0 || iova + length < iova) {
    return fail(Status::kBadArgument, "reg_mr", EINVAL, "length {} or access {:#x} cannot be registered", length,
                access);
  }
  if ((access & kRemoteWriters) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return fail(Status::kBadArgument, "reg_mr", EINVAL,
                "remote write and atomic access need IBV_ACCESS_LOCAL_WRITE too");
  }
  const auto* bytes = static_cast<const std::byte*>(address);
  std::unique_lock lock(mutex_);
  const auto find = [&] {
    return std::find_if(memories_.begin(), memories_.end(), [&](const auto& entry) {
      const Memory& memory = entry.second;
      return bytes >= memory.data && length <= memory.size &&
             static_cast<std::size_t>(bytes - memory.data) <= memory.size - length;
    });
  };
  auto at = find();
  if (at == memories_.end()) {
    lock.unlock();  // Faulting in gigabytes takes a while.
    VERBENA_TRY(check_mapped(address, length, access));
    lock.lock();
    at = find();
  }
  Memory* const memory = at == memories_.end() ? nullptr : &at->second;
  if (memory != nullptr && (((access & kRemoteWriters) != 0 && memory->share != host::Share::kReadWrite) ||
                            ((access & IBV_ACCESS_REMOTE_READ) != 0 && memory->share == host::Share::kNone))) {
    return fail(Status::kBadArgument, "reg_mr", EACCES,
                "the arena's share does not allow the remote access {:#x}; make the arena kReadOnly or kReadWrite",
                access);
  }
  auto owned = std::unique_ptr<SoftMr>(new (std::nothrow) SoftMr());
  if (owned == nullptr) return no_memory("a memory region");
  VERBENA_ASSIGN(const std::uint32_t key, take_key("reg_mr"));
  const std::uint32_t index = key_index(key);
  SoftMr* const mr = owned.release();
  mr->context = context();
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->handle = index;
  mr->lkey = key;
  mr->rkey = key | kRemoteKeyBit;
  // Nobody else maps memory that is in no arena: its owner's process copies, or the kernel on its behalf.
  const host::Share share = memory != nullptr ? memory->share : host::Share::kReadWrite;
  mr->memory_id = memory != nullptr ? at->first : kProcessMemory;
  mr->memory_offset =
      memory != nullptr ? static_cast<std::uint64_t>(bytes - memory->data) : reinterpret_cast<std::uint64_t>(address);
  mr->grantable = share == host::Share::kReadWrite  ? unsigned{IBV_ACCESS_REMOTE_READ} | kRemoteWriters
                  : share == host::Share::kReadOnly ? unsigned{IBV_ACCESS_REMOTE_READ}
                                                    : 0U;
  if (memory != nullptr) ++memory->regions;
  ++pd->users;
  ++objects_.mrs;

  LocalKey& local = local_keys_[index];
  local.pd = pd->id;
  local.iova = iova;
  local.length = length;
  local.base = static_cast<std::byte*>(address);
  local.access = static_cast<std::uint32_t>(access);
  local.lkey.store(mr->lkey, std::memory_order_release);

  KeyEntry& entry = shared_key(index);
  entry.domain.store(pd->id, std::memory_order_relaxed);
  entry.iova = iova;
  entry.length = length;
  entry.memory_id = mr->memory_id;
  entry.memory_offset = mr->memory_offset;
  entry.access = static_cast<std::uint32_t>(access);
  publish_key(index, mr->rkey);
  return mr;
}

namespace {
/// Asks the kernel too: who marks peers dead, the control thread, waits for the mutex that the caller holds.
[[nodiscard]] bool process_gone(const Peer& peer) noexcept {
  return peer.dead.load(std::memory_order_acquire) || (peer.pidfd && is_signalled(peer.pidfd.get()));
}
}  // namespace

/// What became of a peer that was inside an access when it was looked at.
SoftNic::Presence SoftNic::presence_of(const Inside& inside) const noexcept {
  const auto at = qps_.find(inside.qp_num);
  const RemoteQp* remote = at == qps_.end() ? nullptr : at->second->remote.load(std::memory_order_acquire);
  if (remote != inside.remote) return Presence::kUnknown;
  const bool has_moved = remote->control->access.word.load(std::memory_order_acquire) != inside.word;
  return has_moved || process_gone(*remote->peer) ? Presence::kLeft : Presence::kStays;
}

/// Waits until nobody is inside any more, with the lock given up meanwhile: whoever stays holds up this call alone.
Result<void> SoftNic::wait_until_left(std::vector<Inside> inside, std::unique_lock<std::mutex>& lock, const char* call,
                                      Deadline deadline) {
  bool is_unknown = false;
  for (;;) {
    std::erase_if(inside, [&](const Inside& one) {
      const Presence presence = presence_of(one);
      is_unknown |= presence == Presence::kUnknown;
      return presence != Presence::kStays;
    });
    if (inside.empty() || deadline.passed()) break;
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  for (const Inside& one : inside) {
    SoftQp& qp = *qps_.at(one.qp_num);
    Status none = Status::kOk;
    qp.failure.compare_exchange_strong(none, Status::kTimedOut);
    qp.error_wanted.store(true, std::memory_order_release);
    attention(qp);
  }
  if (!inside.empty()) {
    return fail(Status::kTimedOut, call, ETIMEDOUT,
                "the peer of queue pair {} is still inside the region; its queue pair is in error, and the memory must "
                "not be reused before that process is gone",
                inside.front().qp_num);
  }
  if (is_unknown) {
    return fail(Status::kTimedOut, call, ETIMEDOUT,
                "a queue pair was reset or destroyed while its peer was inside the region; the memory must not be "
                "reused before that process is gone");
  }
  return {};
}

Result<void> SoftNic::dereg_mr(ibv_mr* base, Deadline deadline) {
  auto* mr = static_cast<SoftMr*>(base);
  std::unique_lock lock(mutex_);
  const std::uint32_t index = mr->handle;
  auto* pd = static_cast<SoftPd*>(mr->pd);
  if (const std::uint32_t windows = mr->windows.load(); windows != 0) {
    return fail(Status::kBusy, "dereg_mr", EBUSY, "{} memory windows are bound on the region: invalidate them first",
                windows);
  }
  local_keys_[index].lkey.store(0, std::memory_order_release);
  shared_key(index).live.store(0, std::memory_order_release);
  // After the barrier an initiator either sees the key gone, or its access word is odd to us.
  barrier_all_processes();
  std::vector<Inside> inside;
  for (auto& [number, qp] : qps_) {
    const RemoteQp* remote = qp->remote.load(std::memory_order_acquire);
    if (remote == nullptr || qp->spd != pd) continue;
    const std::uint64_t seen = remote->control->access.word.load(std::memory_order_acquire);
    if (seen % 2 == 1) inside.push_back({number, remote, seen});
  }
  const Result<void> result = wait_until_left(std::move(inside), lock, "dereg_mr", deadline);
  if (mr->memory_id != kProcessMemory) --memories_.at(mr->memory_id).regions;
  --pd->users;
  give_key_back(index);
  delete mr;
  --objects_.mrs;
  return result;
}

Window SoftNic::window_of(const ibv_mr* base) const noexcept {
  const auto* mr = static_cast<const SoftMr*>(base);
  const LocalKey& local = local_keys_[mr->handle];
  return {.address = local.iova,
          .length = mr->length,
          .rkey = mr->rkey,
          .access = local.access,
          .memory_id = mr->memory_id};
}

// --- windows of peers -------------------------------------------------------------------------------------------

Result<void> SoftNic::import_window(ibv_qp* base, const Window& window, Deadline deadline) {
  auto& qp = *static_cast<SoftQp*>(base);
  std::unique_lock lock(mutex_);
  Peer* peer = qp.peer;
  if (peer == nullptr) {
    return fail(Status::kBadArgument, "import_window", EINVAL, "the queue pair is not in RTR yet: it has no peer");
  }
  if (peer->dead.load()) return fail(Status::kPeerLost, "import_window", 0, "the peer's process is gone");
  const std::uint32_t index = key_index(window.rkey);
  if ((window.rkey & kRemoteKeyBit) == 0 || index == 0 || index >= peer->key_entries) {
    return fail(Status::kOutOfRange, "import_window", EINVAL, "{:#x} is not a remote key of that peer", window.rkey);
  }
  Import& import = peer->imports[index];
  const auto remember = [&] {
    ++qp.imported[index];
    ++import.uses;
  };
  const auto is_inside = [&](std::uint64_t memory_id, std::uint64_t iova, std::uint64_t length) {
    return window.memory_id == memory_id && window.length <= length && window.address - iova <= length - window.length;
  };
  const auto outside = [] {
    return fail(Status::kOutOfRange, "import_window", 0, "the window is not inside the region that its key names");
  };
  if (import.rkey.load() == window.rkey && import.live->load(std::memory_order_acquire) == import.word.load()) {
    if (!is_inside(import.memory_id, import.iova, import.length)) return outside();
    remember();
    return {};
  }
  // The entry is the owner's word: copied once, then checked.
  const KeyEntry& shared = reinterpret_cast<const KeyEntry*>(peer->keys.data())[index];
  const std::uint64_t word = shared.live.load(std::memory_order_acquire);
  const auto revoked = [&] {
    return fail(Status::kNotFound, "import_window", 0, "the peer has revoked the window's key {:#x}", window.rkey);
  };
  if (static_cast<std::uint32_t>(word) != window.rkey) return revoked();
  const std::uint32_t domain = shared.domain.load(std::memory_order_acquire);
  const std::uint64_t iova = shared.iova.load(std::memory_order_acquire);
  const std::uint64_t length = shared.length.load(std::memory_order_acquire);
  const std::uint64_t memory_id = shared.memory_id.load(std::memory_order_acquire);
  const std::uint64_t memory_offset = shared.memory_offset.load(std::memory_order_acquire);
  const std::uint32_t access = shared.access.load(std::memory_order_acquire);
  // A window may be bound anew while it is copied: it was valid before and after, or it is not what was copied.
  if (shared.live.load(std::memory_order_relaxed) != word) return revoked();
  if (!is_inside(memory_id, iova, length)) return outside();
  const auto find_memory = [&]() -> Peer::Memory* {
    for (const auto& memory : peer->memories) {
      if (memory->id == memory_id) return memory.get();
    }
    return nullptr;
  };
  const bool is_mapped = memory_id != kProcessMemory;
  Peer::Memory* memory = find_memory();
  if (memory == nullptr && is_mapped) {
    ++peer->users;  // Keeps it while the lock is dropped.
    lock.unlock();
    Request ask;
    ask.type = RequestType::kMemory;
    ask.my_gid = gid_;
    ask.memory_id = memory_id;
    Fds received;
    auto reply = request(*peer, ask, {}, received, deadline);
    lock.lock();
    --peer->users;
    if (!reply) return std::unexpected(reply.error());
    if (reply->answer == Answer::kNotGranted) {
      return fail(Status::kNotAllowed, "import_window", EACCES,
                  "the peer has not granted the window's memory to this process (Nic::attach and Nic::grant)");
    }
    if (reply->answer != Answer::kOk || received.count != 1) {
      return fail(Status::kNotFound, "import_window", 0, "the peer has no memory {}: it has detached it", memory_id);
    }
    memory = find_memory();  // Another thread may have been faster.
    if (memory == nullptr) {
      const bool writable = reply->writable != 0;
      VERBENA_ASSIGN(Mapping mapping, Mapping::of_peer(received.fds[0].get(), reply->size,
                                                       writable ? Mapping::Mode::kReadWrite : Mapping::Mode::kRead));
      // Fault the window in now, not on the data path; beyond this size the time to connect would show, and shared
      // memory faults in 64 KiB around each first touch anyway.
      constexpr std::size_t kPopulateBytes = std::size_t{256} << 20;
      if (mapping.size() <= kPopulateBytes) {
        ::madvise(mapping.data(), mapping.size(), writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
      }
      auto owned = std::make_unique<Peer::Memory>();
      owned->id = memory_id;
      owned->mapping = std::move(mapping);
      owned->writable = writable;
      memory = owned.get();
      peer->memories.push_back(std::move(owned));
    }
  }
  if (is_mapped && (memory_offset > memory->mapping.size() || length > memory->mapping.size() - memory_offset ||
                    (!memory->writable && (access & kRemoteWriters) != 0))) {
    return fail(Status::kProtocol, "import_window", 0,
                "the peer's key names bytes outside of the memory that it handed over");
  }
  if (import.rkey.load() != 0 && import.word.load() != word) drop_import(*peer, index);  // A revoked predecessor.
  if (import.rkey.load() == 0) {
    import.domain = domain;
    import.word.store(word, std::memory_order_relaxed);
    import.iova = iova;
    import.length = length;
    // Not an address of this process when it is not mapped, and hidden from the data path by the access.
    import.base = is_mapped ? memory->mapping.data() + memory_offset : reinterpret_cast<std::byte*>(memory_offset);
    import.live = &shared.live;
    import.access = is_mapped ? access : access << kOutsideShift;
    import.memory_id = memory_id;
    import.uses = 0;
    import.rkey.store(window.rkey, std::memory_order_release);
    if (memory != nullptr) ++memory->uses;
    ++objects_.imports;
  }
  remember();
  return {};
}

/// Waits until no QP of this process is inside an access to `peer` that began before.
void SoftNic::quiesce_own(const Peer& peer) noexcept {
  barrier_this_process();
  for (auto& [number, qp] : qps_) {
    if (qp->peer != &peer || qp->own == nullptr) continue;
    const std::uint64_t seen = qp->own->access.word.load(std::memory_order_acquire);
    if (seen % 2 == 0) continue;
    // An access is one copy by a thread of this process: it ends.
    while (qp->own->access.word.load(std::memory_order_acquire) == seen) std::this_thread::yield();
  }
}

void SoftNic::drop_import(Peer& peer, std::uint32_t index) noexcept {
  Import& import = peer.imports[index];
  import.rkey.store(0, std::memory_order_release);
  quiesce_own(peer);
  import.uses = 0;
  --objects_.imports;
  const auto at = std::find_if(peer.memories.begin(), peer.memories.end(),
                               [&](const auto& memory) { return memory->id == import.memory_id; });
  if (at != peer.memories.end() && --(*at)->uses == 0) peer.memories.erase(at);
}

Result<void> SoftNic::release_window(ibv_qp* base, const Window& window) {
  auto& qp = *static_cast<SoftQp*>(base);
  const std::lock_guard lock(mutex_);
  const std::uint32_t index = key_index(window.rkey);
  const auto at = qp.imported.find(index);
  if (at == qp.imported.end()) {
    return fail(Status::kBadArgument, "release_window", EINVAL, "the window was not imported on this queue pair");
  }
  if (--at->second == 0) qp.imported.erase(at);
  Import& import = qp.peer->imports[index];
  if (import.uses > 0 && --import.uses == 0) drop_import(*qp.peer, index);
  return {};
}

void SoftNic::release_imports(SoftQp& qp) noexcept {
  for (const auto& [index, count] : qp.imported) {
    Import& import = qp.peer->imports[index];
    const std::uint32_t gone = std::min(import.uses, count);
    import.uses -= gone;
    if (gone != 0 && import.uses == 0) drop_import(*qp.peer, index);
  }
  qp.imported.clear();
}

// --- channels and completion queues ----------------------------------------------------------------------------------

Result<ibv_comp_channel*> SoftNic::create_channel() {
  auto channel = std::make_unique<SoftChannel>();
  channel->context = context();
  channel->nic = this;
  channel->epoll = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!channel->epoll) return fail_system("epoll_create1", errno, "making a completion channel");
  VERBENA_ASSIGN(channel->wake, make_eventfd());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (::epoll_ctl(channel->epoll.get(), EPOLL_CTL_ADD, channel->wake.get(), &event) != 0) {
    return fail_system("epoll_ctl", errno, "making a completion channel");
  }
  channel->fd = channel->epoll.get();
  const std::lock_guard lock(mutex_);
  ++objects_.channels;
  return channel.release();
}

Result<void> SoftNic::destroy_channel(ibv_comp_channel* base) {
  auto* channel = static_cast<SoftChannel*>(base);
  const std::lock_guard lock(mutex_);
  if (!channel->cqs.empty()) {
    return fail(Status::kBusy, "destroy_channel", EBUSY, "{} completion queues still use the channel",
                channel->cqs.size());
  }
  delete channel;
  --objects_.channels;
  return {};
}

void SoftNic::wake(ibv_comp_channel* channel) noexcept {
  signal_eventfd(static_cast<SoftChannel*>(channel)->wake.get());
}

Result<ibv_cq*> SoftNic::wait(ibv_comp_channel* base, Deadline deadline) {
  auto& channel = *static_cast<SoftChannel*>(base);
  for (;;) {
    Deadline until = deadline;
    bool stalled = false;
    // `cqs` changes only while nothing waits on the channel: as on a device, a CQ is made and destroyed around its use.
    for (SoftCq* cq : channel.cqs) {
      // A wake is not put off by a queue that always has something to do.
      if (arm_stalled(*cq)) return drain_eventfd(channel.wake.get()) ? nullptr : cq;
      const Deadline gives_up = stall_deadline(*cq);
      stalled |= !gives_up.is_never();
      until = earlier(until, gives_up);
    }
    epoll_event event{};
    const int ready = ::epoll_wait(channel.epoll.get(), &event, 1, until.left_ms());
    if (ready < 0 && errno != EINTR) return fail_system("epoll_wait", errno, "waiting for a completion");
    if (ready > 0) {
      if (event.data.ptr == nullptr) {
        if (drain_eventfd(channel.wake.get())) return nullptr;
        continue;
      }
      // Low bit set: the CQ's own event; else a QP's. Both name their CQ and are drained here.
      const auto tagged = reinterpret_cast<std::uintptr_t>(event.data.ptr);
      SoftCq* cq = nullptr;
      if ((tagged & 1) != 0) {
        cq = reinterpret_cast<SoftCq*>(tagged & ~std::uintptr_t{1});
        drain_eventfd(cq->event.get());
      } else {
        auto* qp = static_cast<SoftQp*>(event.data.ptr);
        drain_eventfd(qp->event.get());
        cq = qp->rcq->channel == base ? qp->rcq : qp->scq;
      }
      cq->armed = SoftCq::Armed::kNo;
      return cq;
    }
    if (deadline.passed()) return fail(Status::kTimedOut, "wait", ETIMEDOUT, "no completion event before the deadline");
    if (stalled && until.passed()) {
      for (SoftCq* cq : channel.cqs) {
        if (stall_deadline(*cq).passed()) return cq;
      }
    }
  }
}

Result<ibv_cq*> SoftNic::create_cq(std::uint32_t cqe, ibv_comp_channel* base) {
  if (cqe == 0 || cqe > limits_.max_cqe) {
    return fail(Status::kBadArgument, "create_cq", EINVAL, "{} completions: a queue holds 1 to {}", cqe,
                limits_.max_cqe);
  }
  auto cq = std::make_unique<SoftCq>();
  const std::uint32_t entries = std::bit_ceil(cqe);
  cq->ring = make_array<Cqe>(entries);
  if (cq->ring == nullptr) return no_memory("a completion queue");
  cq->context = context();
  cq->channel = base;
  cq->cqe = static_cast<int>(cqe);
  cq->nic = this;
  cq->mask = entries - 1;
  cq->capacity = cqe;
  VERBENA_ASSIGN(cq->event, make_eventfd());
  const std::lock_guard lock(mutex_);
  const auto slot = std::find(cq_slots_.begin(), cq_slots_.end(), false);
  if (slot == cq_slots_.end()) {
    return fail(Status::kLimit, "create_cq", ENOMEM, "all {} completion queues are in use; share them", kMaxCqs);
  }
  if (base != nullptr) {
    auto& channel = *static_cast<SoftChannel*>(base);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = reinterpret_cast<std::uintptr_t>(cq.get()) | 1U;
    if (::epoll_ctl(channel.epoll.get(), EPOLL_CTL_ADD, cq->event.get(), &event) != 0) {
      return fail_system("epoll_ctl", errno, "adding a completion queue to its channel");
    }
    channel.cqs.push_back(cq.get());
  }
  *slot = true;
  if (options_.chaos) {
    cq->chaos = std::make_unique<CqChaos>(*options_.chaos, chaos_stream(next_cq_++));
    cq->held = Hold::kByChaos;
  }
  cq->ready_index = static_cast<std::uint32_t>(slot - cq_slots_.begin());
  cq->ready_words =
      reinterpret_cast<std::atomic<std::uint64_t>*>(ready_.mapping.data()) + std::size_t{cq->ready_index} * kReadyWords;
  ++objects_.cqs;
  return cq.release();
}

Result<void> SoftNic::destroy_cq(ibv_cq* base) {
  auto* cq = static_cast<SoftCq*>(base);
  const std::lock_guard lock(mutex_);
  if (!cq->members.empty()) {
    return fail(Status::kBusy, "destroy_cq", EBUSY, "{} queue pairs still use the completion queue",
                cq->members.size());
  }
  if (cq->channel != nullptr) {
    auto& channel = *static_cast<SoftChannel*>(cq->channel);
    ::epoll_ctl(channel.epoll.get(), EPOLL_CTL_DEL, cq->event.get(), nullptr);
    std::erase(channel.cqs, cq);
  }
  for (std::uint32_t i = 0; i < kReadyWords; ++i) cq->ready_words[i].store(0, std::memory_order_relaxed);
  cq_slots_[cq->ready_index] = false;
  delete cq;
  --objects_.cqs;
  return {};
}

// --- queue pairs
// ------------------------------------------------------------------------------------------------------

namespace {

QpGeometry geometry_for(std::uint32_t max_send_wr, std::uint32_t max_recv_wr) noexcept {
  QpGeometry geometry;
  // Slots: every send of a full send queue has one, and so has every receive the peer's twin of this QP may hold; data:
  // a segment for each send, within bounds. Pages are touched only as they are used.
  const std::uint32_t slots = std::bit_ceil(std::max({max_send_wr, max_recv_wr, 16U}));
  geometry.receive_entries = std::bit_ceil(max_recv_wr);
  geometry.slots = slots;
  geometry.data_bytes = std::clamp<std::uint32_t>(
      static_cast<std::uint32_t>(std::bit_ceil(std::uint64_t{slots} * kSegmentBytes)), 4 * kSegmentBytes, 16U << 20);
  return geometry;
}

}  // namespace

Result<void> SoftNic::make_shared_memory(SoftQp& qp) {
  QpGeometry& geometry = qp.geometry = geometry_for(qp.max_send_wr, qp.max_recv_wr);
  const std::uint32_t slots = geometry.slots;
  geometry.start = test_.ring_start / slots * slots;
  VERBENA_ASSIGN(Mapping::Owned owned, Mapping::create("verbena-qp", geometry.total_bytes(), Mapping::Mode::kRead));
  qp.memory = std::move(owned.fd);
  qp.mapping = std::move(owned.mapping);
  std::byte* base = qp.mapping.data();
  qp.own = reinterpret_cast<QpControl*>(base);
  qp.service = reinterpret_cast<ServiceBlock*>(base + geometry.service_offset());
  qp.own->rare.min_receive.store(~0U, std::memory_order_relaxed);
  qp.own->consumer.consumed.store(geometry.start, std::memory_order_relaxed);
  qp.receive_lengths = reinterpret_cast<std::atomic<std::uint32_t>*>(base + geometry.lengths_offset());
  if (geometry.start != 0) {
    // The headers of the lap before, as a ring has them that came this far by itself: a zeroed slot would look valid at
    // the index whose low half wraps to 0.
    auto* ring = reinterpret_cast<Slot*>(base + geometry.slots_offset());
    for (std::uint64_t i = 0; i < slots; ++i) {
      ring[i].header.store(static_cast<std::uint32_t>(geometry.start + i + 1 - slots), std::memory_order_relaxed);
    }
  }
  auto ends = make_array<std::uint64_t>(slots);
  if (ends == nullptr) return no_memory("a ring's bookkeeping");
  qp.tx = RingProducer<RealMemory>(reinterpret_cast<Slot*>(base + geometry.slots_offset()), slots,
                                   base + geometry.data_offset(), geometry.data_bytes, std::move(ends), geometry.start);
  qp.wake_flags = 0;
  qp.access_count = 0;
  return {};
}

Result<ibv_qp*> SoftNic::create_qp(ibv_pd* base, QpOptions& options) {
  if (options.type != IBV_QPT_RC && options.type != IBV_QPT_UC) {
    return fail(Status::kUnsupported, "create_qp", EOPNOTSUPP,
                "the soft NIC has connections only: IBV_QPT_RC, and IBV_QPT_UC");
  }
  if (options.send_cq == nullptr || options.recv_cq == nullptr) {
    return fail(Status::kBadArgument, "create_qp", EINVAL, "a queue pair needs a send and a receive completion queue");
  }
  auto* const srq = static_cast<SoftSrq*>(options.srq);
  if (srq != nullptr) {
    // The few that it holds at a time, handed out by the shared queue.
    options.max_recv_wr = kSharedGrant;
    options.max_recv_sge = srq->max_sge;
  }
  if (options.max_send_wr == 0 || options.max_send_wr > limits_.max_qp_wr || options.max_recv_wr == 0 ||
      options.max_recv_wr > limits_.max_qp_wr || options.max_send_sge > kMaxSge || options.max_recv_sge > kMaxSge ||
      options.max_inline > kMaxInline) {
    return fail(Status::kBadArgument, "create_qp", EINVAL,
                "send queue {}, receive queue {} (1 to {} each), SGEs {} and {} (to {}), inline {} (to {})",
                options.max_send_wr, options.max_recv_wr, limits_.max_qp_wr, options.max_send_sge, options.max_recv_sge,
                kMaxSge, options.max_inline, kMaxInline);
  }
  auto qp = std::make_unique<SoftQp>();
  qp->context = context();
  qp->pd = base;
  qp->send_cq = options.send_cq;
  qp->recv_cq = options.recv_cq;
  qp->qp_type = options.type;
  qp->state = IBV_QPS_RESET;
  qp->nic = this;
  qp->spd = static_cast<SoftPd*>(base);
  qp->ibv_qp::srq = srq;
  qp->srq = srq;
  qp->receive_pd = srq != nullptr ? srq->spd->id : qp->spd->id;
  qp->scq = static_cast<SoftCq*>(options.send_cq);
  qp->rcq = static_cast<SoftCq*>(options.recv_cq);
  qp->max_send_wr = options.max_send_wr;
  qp->max_send_sge = std::max(options.max_send_sge, 1U);
  qp->max_recv_wr = options.max_recv_wr;
  qp->max_recv_sge = std::max(options.max_recv_sge, 1U);
  qp->max_inline = std::max(options.max_inline, 64U);
  qp->signal_all = options.signal_all;
  options.max_send_sge = qp->max_send_sge;
  options.max_recv_sge = qp->max_recv_sge;
  options.max_inline = qp->max_inline;
  const std::uint32_t sends = std::bit_ceil(qp->max_send_wr);
  const std::uint32_t receives = std::bit_ceil(qp->max_recv_wr);
  qp->pending_mask = sends - 1;
  qp->receive_mask = receives - 1;
  qp->pending = make_array<SendWqe>(sends);
  qp->pending_sges = make_array<ibv_sge>(std::size_t{sends} * qp->max_send_sge);
  // Not zeroed: pages of it are touched only when a send with inline data has to wait.
  qp->pending_inline.reset(new (std::nothrow) std::byte[std::size_t{sends} * qp->max_inline]);
  qp->receives = make_array<ReceiveWqe>(receives);
  qp->receive_sges = make_array<ibv_sge>(std::size_t{receives} * qp->max_recv_sge);
  qp->early = make_array<Cqe>(receives);
  if (qp->pending == nullptr || qp->pending_sges == nullptr || qp->pending_inline == nullptr ||
      qp->receives == nullptr || qp->receive_sges == nullptr || qp->early == nullptr) {
    return no_memory("a queue pair's queues");
  }
  qp->offers.reserve(kMaxOffers);
  const std::lock_guard lock(mutex_);
  if (qps_.size() >= limits_.max_qp) {
    return fail(Status::kLimit, "create_qp", ENOMEM, "all {} queue pairs are in use; raise SoftOptions::max_qp",
                limits_.max_qp);
  }
  VERBENA_TRY(make_shared_memory(*qp));
  if (qp->scq->channel != nullptr || qp->rcq->channel != nullptr) {
    VERBENA_ASSIGN(qp->event, make_eventfd());
    for (ibv_comp_channel* channel : {qp->rcq->channel, qp->scq->channel}) {
      if (channel == nullptr) continue;
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.ptr = qp.get();
      if (::epoll_ctl(static_cast<SoftChannel*>(channel)->epoll.get(), EPOLL_CTL_ADD, qp->event.get(), &event) != 0 &&
          errno != EEXIST) {  // Both CQs on one channel.
        return fail_system("epoll_ctl", errno, "adding a queue pair to a completion channel");
      }
    }
  }
  do {
    next_qp_ = next_qp_ % 0xFFFFFF + 1;  // 24 bits, never 0; a number rests long before it comes again.
  } while (qps_.contains(next_qp_));
  qp->qp_num = next_qp_;
  if (options_.chaos) {
    qp->chaos = std::make_unique<QpChaos>(*options_.chaos, chaos_stream(qp->qp_num));
    qp->held = Hold::kByChaos;
  }
  for (SoftCq* cq : {qp->rcq, qp->scq}) {
    if (std::find(cq->members.begin(), cq->members.end(), qp.get()) != cq->members.end()) continue;
    exclusively(*cq, [&] {
      cq->members.push_back(qp.get());
      // Room for every member in every list, so that the data path never allocates.
      cq->active.reserve(cq->members.capacity());
      cq->stalled.reserve(cq->members.capacity());
    });
  }
  // A bit of the ready set, if one is left.
  std::array<bool, kReadyWords * 64> taken{};
  for (const SoftQp* other : qp->rcq->members) {
    if (other->rcq == qp->rcq && other->ready_slot != kNoReadyBit) taken[other->ready_slot] = true;
  }
  const auto* free_bit = std::find(taken.begin(), taken.end(), false);
  if (free_bit != taken.end()) qp->ready_slot = static_cast<std::uint32_t>(free_bit - taken.begin());
  ++qp->spd->users;
  if (srq != nullptr) ++srq->users;
  ++objects_.qps;
  qps_.emplace(qp->qp_num, qp.get());
  return qp.release();
}

void SoftNic::attention(SoftQp& qp) noexcept {
  qp.rcq->control.fetch_or(SoftCq::kAttention, std::memory_order_release);
  if (qp.scq != qp.rcq) qp.scq->control.fetch_or(SoftCq::kAttention, std::memory_order_release);
  if (qp.event) signal_eventfd(qp.event.get());
}

void SoftNic::receive_for_owner(SoftQp& qp) noexcept {
  const ibv_qp_state state = qp.state_now();
  if ((state != IBV_QPS_RTR && state != IBV_QPS_RTS) || qp.srq != nullptr) return;
  bool any = false;
  exclusively(*qp.rcq, [&] { any = receive_early(qp); });
  if (any) attention(qp);
}

/// Under the mutex: when both sides have offered, makes the peer's QP usable here.
void SoftNic::match_offer(SoftQp& qp) noexcept {
  const ibv_qp_state state = qp.state_now();
  if ((state != IBV_QPS_RTR && state != IBV_QPS_RTS) || qp.peer == nullptr || qp.remote.load() != nullptr) return;
  const auto offer = std::find_if(qp.offers.rbegin(), qp.offers.rend(), [&](const Offer& candidate) {
    // The kernel's word on who offered, against its word on who answers to the GID.
    return same(candidate.gid, qp.remote_gid) && candidate.qp_num == qp.remote_qp_num &&
           candidate.pid == qp.peer->process.pid && candidate.uid == qp.peer->process.uid &&
           candidate.request.qp_type == static_cast<std::uint32_t>(qp.qp_type);
  });
  if (offer == qp.offers.rend()) return;
  const Request& request = offer->request;
  auto mapping = request.geometry.valid()
                     ? Mapping::of_peer(offer->memory.get(), request.geometry.total_bytes(), Mapping::Mode::kRead)
                     : Result<Mapping>(fail(Status::kProtocol, "offer", 0, "impossible geometry"));
  auto remote = std::unique_ptr<RemoteQp>(new (std::nothrow) RemoteQp());
  if (!mapping || remote == nullptr) {
    Status none = Status::kOk;
    qp.failure.compare_exchange_strong(none, mapping ? Status::kNoMemory : mapping.error().status());
    qp.error_wanted.store(true, std::memory_order_release);
    attention(qp);
    return;
  }
  const std::byte* base = mapping->data();
  remote->control = reinterpret_cast<const QpControl*>(base);
  remote->service = reinterpret_cast<const ServiceBlock*>(base + request.geometry.service_offset());
  remote->receive_lengths =
      reinterpret_cast<const std::atomic<std::uint32_t>*>(base + request.geometry.lengths_offset());
  remote->receive_mask = request.geometry.receive_entries - 1;
  remote->pd = request.pd;
  remote->access = request.access;
  remote->has_srq = request.has_srq != 0;
  remote->rnr_ticks = us_to_ticks(kRnrTimerUs[request.min_rnr_timer % 32]);
  remote->peer = qp.peer;
  remote->ring = RingConsumer<RealMemory>(reinterpret_cast<const Slot*>(base + request.geometry.slots_offset()),
                                          request.geometry.slots, base + request.geometry.data_offset(),
                                          request.geometry.data_bytes, request.geometry.start);
  const bool bit_known = request.ready_bit < qp.peer->ready.size() * 8;
  if (qp.peer->ready && bit_known) {
    remote->ready_word = reinterpret_cast<std::atomic<std::uint64_t>*>(qp.peer->ready.data()) + request.ready_bit / 64;
    remote->ready_bit = std::uint64_t{1} << (request.ready_bit % 64);
  }
  remote->qp_num = offer->qp_num;
  remote->window_domain = window_domain(offer->qp_num);
  if (qp.peer->process.uid == ::geteuid()) {
    remote->event = std::move(offer->event);
    remote->event_fd = remote->event.get();
  } else {
    // The description of an event descriptor is shared: its maker could fill it and make it block at any time.
    remote->wake_socket = qp.peer->socket.get();
  }
  remote->mapping = std::move(*mapping);
  // Only a peer of our own user has our ready set mapped; others are always looked at.
  qp.may_park = qp.ready_slot != kNoReadyBit && qp.peer->process.uid == ::geteuid();
  qp.own->consumer.consumed.store(request.geometry.start, std::memory_order_release);
  qp.remote_owner = std::move(remote);
  qp.remote.store(qp.remote_owner.get(), std::memory_order_release);
  qp.offers.clear();
  attention(qp);
  // A peer that sleeps over a send which waits for us to be ready: it is told. Its membarrier, between setting the flag
  // and looking once more, orders our store before this load; the compiler is kept from turning them around here.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if ((qp.remote_owner->control->rare.wake.load(std::memory_order_relaxed) & Wake::kCredit) != 0) {
    wake_peer(*qp.remote_owner);
  }
}

namespace {
/// As ib_modify_qp_is_ok of the specification's table: everything needed, and nothing that the transition does not
/// know.
[[nodiscard]] Result<void> check_mask(int mask, int needed, int optional, const char* transition) {
  if ((mask & needed) == needed && (mask & ~(needed | optional | IBV_QP_STATE)) == 0) return {};
  return fail(Status::kBadArgument, "modify_qp", EINVAL,
              "{} needs the attributes {:#x}, may have {:#x}, and was given {:#x} (IBV_QP_* bits)", transition, needed,
              optional, mask & ~IBV_QP_STATE);
}
}  // namespace

Result<void> SoftNic::to_init(SoftQp& qp, const ibv_qp_attr& attr, int mask) {
  constexpr int kAttributes = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (qp.state_now() == IBV_QPS_INIT) {
    VERBENA_TRY(check_mask(mask, 0, kAttributes, "INIT to INIT"));
  } else {
    VERBENA_TRY(check_mask(mask, kAttributes, 0, "RESET to INIT"));
  }
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) qp.access_flags = attr.qp_access_flags;
  qp.state = IBV_QPS_INIT;
  qp.now.store(IBV_QPS_INIT, std::memory_order_release);
  return {};
}

Result<void> SoftNic::to_rtr(SoftQp& qp, const ibv_qp_attr& attr, int mask, Deadline deadline) {
  constexpr int kOfBoth = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  constexpr int kOptional = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
  const bool is_reliable = qp.qp_type == IBV_QPT_RC;
  const int needed = kOfBoth | (is_reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
  VERBENA_TRY(check_mask(mask, needed, kOptional, "INIT to RTR"));
  if (attr.ah_attr.is_global == 0) {
    return fail(Status::kBadArgument, "modify_qp", EINVAL,
                "the soft NIC addresses peers by GID: set ah_attr.is_global and dgid");
  }
  const ibv_gid gid = attr.ah_attr.grh.dgid;
  VERBENA_ASSIGN(Peer * peer, connect_peer(gid, deadline));  // Counted as a user of the peer from here on.
  Request offer;
  offer.type = RequestType::kOffer;
  offer.my_qp = qp.qp_num;
  offer.your_qp = attr.dest_qp_num;
  offer.my_gid = gid_;
  offer.pd = qp.spd->id;
  offer.access = qp.access_flags;
  offer.min_rnr_timer = is_reliable ? attr.min_rnr_timer : 0;
  offer.ready_bit = qp.ready_slot == kNoReadyBit ? kNoReadyBit : qp.rcq->ready_index * kReadyWords * 64 + qp.ready_slot;
  offer.geometry = qp.geometry;
  offer.has_srq = qp.srq != nullptr ? 1 : 0;
  offer.qp_type = static_cast<std::uint32_t>(qp.qp_type);
  offer.has_event = qp.event ? 1 : 0;
  std::array<int, 2> fds{qp.memory.get(), qp.event.get()};
  {
    // Receivable before the peer can learn of this QP: what it sends at once finds its place.
    const std::lock_guard lock(mutex_);
    qp.peer = peer;
    qp.remote_gid = gid;
    qp.remote_qp_num = attr.dest_qp_num;
    qp.min_rnr_timer = static_cast<std::uint8_t>(offer.min_rnr_timer);
    qp.state = IBV_QPS_RTR;
    qp.now.store(IBV_QPS_RTR, std::memory_order_release);
    qp.own->rare.readiness.store(static_cast<std::uint32_t>(Readiness::kReady), std::memory_order_release);
  }
  Fds none;
  const auto reply = request(*peer, offer, std::span(fds.data(), qp.event ? 2U : 1U), none, deadline);
  const std::lock_guard lock(mutex_);
  if (!reply || reply->answer != Answer::kOk) {
    if (qp.remote.load() != nullptr) {
      // The peer has connected to us all the same: this attempt cannot be undone, and its memory and what is known of
      // it stay until the QP is reset or destroyed.
      Status unset = Status::kOk;
      qp.failure.compare_exchange_strong(unset, reply ? Status::kProtocol : reply.error().status());
      qp.error_wanted.store(true, std::memory_order_release);
      attention(qp);
    } else {
      qp.own->rare.readiness.store(static_cast<std::uint32_t>(Readiness::kNotReady), std::memory_order_release);
      qp.state = IBV_QPS_INIT;
      qp.now.store(IBV_QPS_INIT, std::memory_order_release);
      qp.peer = nullptr;
      release_peer(peer);
    }
    if (!reply) return std::unexpected(reply.error());
    return fail(Status::kProtocol, "modify_qp", 0, "the peer's NIC refused the offer (answer {})",
                static_cast<std::uint32_t>(reply->answer));
  }
  if (peer->dead.load()) qp.peer_dead.store(true, std::memory_order_release);
  match_offer(qp);
  return {};
}

Result<void> SoftNic::to_rts(SoftQp& qp, const ibv_qp_attr& attr, int mask) {
  constexpr int kReliable =
      IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  constexpr int kOptional = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
  if (qp.qp_type == IBV_QPT_UC) {
    VERBENA_TRY(check_mask(mask, IBV_QP_SQ_PSN, kOptional, "RTR to RTS of an unreliable connection"));
    qp.rnr_retry = 7;
    qp.retry_ticks = 0;  // What waits, waits for room of this side's.
  } else {
    VERBENA_TRY(check_mask(mask, kReliable, kOptional | IBV_QP_MIN_RNR_TIMER, "RTR to RTS"));
    qp.rnr_retry = attr.rnr_retry;
    qp.retry_count = attr.retry_cnt;
    qp.timeout = attr.timeout;
    // 4.096 us * 2^timeout a try (IB specification, local ACK timeout); 0 is without end.
    qp.retry_ticks = attr.timeout == 0 ? 0 : us_to_ticks(4.096 * std::exp2(attr.timeout) * (attr.retry_cnt + 1));
  }
  qp.state = IBV_QPS_RTS;
  qp.now.store(IBV_QPS_RTS, std::memory_order_release);
  return {};
}

/// Takes the QP out of both CQs' lists, and its completions out of their rings.
void SoftNic::unlink(SoftQp& qp) noexcept {
  for (SoftCq* cq : {qp.rcq, qp.scq}) {
    exclusively(*cq, [&] {
      std::erase(cq->active, &qp);
      std::erase(cq->stalled, &qp);
      if (qp.srq != nullptr && cq == qp.rcq) give_back_shared(qp, GiveBack::kAll);
      if (qp.parked && cq == qp.rcq) {
        cq->parked[qp.ready_slot] = nullptr;
        --cq->parked_count;
        qp.parked = false;
      }
      // Nothing of it can be in the ring, and another thread, which owns the CQ, may be posting for other queue pairs.
      if (qp.sq_posted == 0 && qp.rq_posted == 0) return;
      std::uint64_t keep = cq->head;
      for (std::uint64_t at = cq->head; at != cq->tail; ++at) {
        const Cqe& entry = cq->ring[at & cq->mask];
        if (entry.qp != &qp) cq->ring[keep++ & cq->mask] = entry;
      }
      cq->tail = keep;
    });
  }
  qp.in_stalled = false;
}

/// The private state that a QP has in RESET.
void SoftNic::purge(SoftQp& qp) noexcept {
  if (qp.own != nullptr) {
    qp.own->rare.readiness.store(static_cast<std::uint32_t>(Readiness::kGone), std::memory_order_release);
  }
  release_imports(qp);
  release_windows(qp);
  qp.remote.store(nullptr, std::memory_order_release);
  qp.rx_remote = nullptr;
  qp.remote_owner.reset();
  qp.offers.clear();
  if (qp.peer != nullptr) release_peer(std::exchange(qp.peer, nullptr));
}

Result<void> SoftNic::to_reset(SoftQp& qp) {
  unlink(qp);
  purge(qp);
  qp.now.store(IBV_QPS_RESET, std::memory_order_release);
  qp.state = IBV_QPS_RESET;
  qp.sent = qp.sent_limit = qp.wanted = qp.ask = qp.sq_posted = qp.sq_retired = 0;
  qp.pending_head = qp.pending_tail = 0;
  qp.pending_offset = qp.pending_takers = 0;
  qp.asked = qp.served_bytes = qp.revoke_word = 0;
  qp.is_revoking.store(false);
  qp.is_asking = false;
  qp.take_asked = qp.early_head = qp.early_tail = 0;
  qp.stall = SoftQp::Stall::kNone;
  if (qp.chaos != nullptr) qp.chaos->is_drawn = false;
  qp.rq_posted = qp.rq_done = qp.rq_polled = 0;
  qp.rx_offset = 0;
  qp.rx_open = qp.flushing = qp.notify = qp.loss_told = false;
  qp.peer_dead.store(false);
  qp.error_wanted.store(false);
  qp.failure.store(Status::kOk);
  return make_shared_memory(qp);
}

Result<void> SoftNic::modify_qp(ibv_qp* base, const ibv_qp_attr& attr, int mask, Deadline deadline) {
  auto& qp = *static_cast<SoftQp*>(base);
  if ((mask & IBV_QP_STATE) == 0) {
    return fail(Status::kUnsupported, "modify_qp", EOPNOTSUPP, "the soft NIC changes attributes with the state only");
  }
  std::unique_lock lock(mutex_);
  const ibv_qp_state from = qp.state_now();
  const ibv_qp_state to = attr.qp_state;
  if (to == IBV_QPS_RESET) return to_reset(qp);
  if (to == IBV_QPS_ERR) {
    if (from == IBV_QPS_ERR) return {};
    Status none = Status::kOk;
    qp.failure.compare_exchange_strong(none, Status::kClosed);
    qp.own->rare.readiness.store(static_cast<std::uint32_t>(Readiness::kGone), std::memory_order_release);
    qp.state = IBV_QPS_ERR;
    qp.now.store(IBV_QPS_ERR, std::memory_order_release);
    qp.error_wanted.store(true, std::memory_order_release);
    attention(qp);
    return {};
  }
  if ((from == IBV_QPS_RESET || from == IBV_QPS_INIT) && to == IBV_QPS_INIT) return to_init(qp, attr, mask);
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) return to_rts(qp, attr, mask);
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
    lock.unlock();
    return to_rtr(qp, attr, mask, deadline);
  }
  return fail(Status::kBadArgument, "modify_qp", EINVAL,
              "a queue pair cannot go from state {} to {}: the order is RESET, INIT, RTR, RTS", static_cast<int>(from),
              static_cast<int>(to));
}

ibv_qp_state SoftNic::qp_state(const ibv_qp* qp) const noexcept { return static_cast<const SoftQp*>(qp)->state_now(); }

Status SoftNic::qp_failure(const ibv_qp* base) const noexcept {
  const auto& qp = *static_cast<const SoftQp*>(base);
  if (qp.peer_dead.load(std::memory_order_acquire)) return Status::kPeerLost;
  return qp.failure.load(std::memory_order_acquire);
}

Result<void> SoftNic::destroy_qp(ibv_qp* base) {
  auto* qp = static_cast<SoftQp*>(base);
  const std::lock_guard lock(mutex_);
  qps_.erase(qp->qp_num);
  unlink(*qp);
  for (SoftCq* cq : {qp->rcq, qp->scq}) {
    exclusively(*cq, [&] { std::erase(cq->members, qp); });
    if (cq->channel != nullptr && qp->event) {
      ::epoll_ctl(static_cast<SoftChannel*>(cq->channel)->epoll.get(), EPOLL_CTL_DEL, qp->event.get(), nullptr);
    }
  }
  purge(*qp);
  --qp->spd->users;
  if (qp->srq != nullptr) --qp->srq->users;
  --objects_.qps;
  delete qp;
  return {};
}

QpAddress SoftNic::address_of(const ibv_qp* qp) const noexcept {
  QpAddress address;
  address.gid = gid_;
  address.qp_num = qp->qp_num;
  address.mtu = IBV_MTU_4096;
  address.max_rd_atomic = static_cast<std::uint8_t>(limits_.max_rd_atomic);
  return address;
}

Result<PeerProcess> SoftNic::peer_of(const ibv_qp* base) const {
  const auto& qp = *static_cast<const SoftQp*>(base);
  const std::lock_guard lock(mutex_);
  if (qp.peer == nullptr) return fail(Status::kBadArgument, "peer_of", EINVAL, "the queue pair has no peer before RTR");
  return qp.peer->process;
}

Nic::Objects SoftNic::objects() const {
  const std::lock_guard lock(mutex_);
  Objects objects = objects_;
  objects.peers = static_cast<std::uint32_t>(peers_.size());
  return objects;
}

Result<std::unique_ptr<Nic>> open_for_test(const SoftOptions& options, const TestOptions& test) {
  auto nic = std::make_unique<SoftNic>(options, test);
  VERBENA_TRY(nic->start());
  return nic;
}

}  // namespace verbena::nic::soft

namespace verbena::nic {

Result<std::unique_ptr<Nic>> open_soft(const SoftOptions& options) { return soft::open_for_test(options, {}); }

// Beside create_qp and create_cq, which allocate in this order.
host::Footprint qp_footprint(Kind kind, const QpOptions& options) {
  host::Footprint pools;
  if (kind != Kind::kSoft) return pools;
  const std::uint64_t sends = std::bit_ceil(options.max_send_wr);
  const std::uint64_t receives = std::bit_ceil(options.max_recv_wr);
  const soft::QpGeometry geometry = soft::geometry_for(options.max_send_wr, options.max_recv_wr);
  pools.add({.name = "queue pair", .bytes_each = sizeof(soft::SoftQp) + soft::kMaxOffers * sizeof(soft::Offer)});
  pools.add({.name = "sends that wait",
             .count = sends,
             .bytes_each = sizeof(soft::SendWqe) + std::max(options.max_send_sge, 1U) * sizeof(ibv_sge)});
  pools.add({.name = "inline data of sends that wait",
             .kind = host::PoolKind::kAsUsed,
             .count = sends,
             .bytes_each = std::max(options.max_inline, 64U)});
  pools.add({.name = "receives",
             .count = receives,
             .bytes_each =
                 sizeof(soft::ReceiveWqe) + std::max(options.max_recv_sge, 1U) * sizeof(ibv_sge) + sizeof(soft::Cqe)});
  pools.add(
      {.name = "memory that the peer reads", .kind = host::PoolKind::kAsUsed, .bytes_each = geometry.total_bytes()});
  pools.add({.name = "ends of the ring's data", .count = geometry.slots, .bytes_each = sizeof(std::uint64_t)});
  return pools;
}

host::Footprint cq_footprint(Kind kind, std::uint32_t cqe) {
  host::Footprint pools;
  if (kind != Kind::kSoft) return pools;
  pools.add({.name = "completion queue", .bytes_each = sizeof(soft::SoftCq)});
  pools.add({.name = "completions", .count = std::bit_ceil(cqe), .bytes_each = sizeof(soft::Cqe)});
  return pools;
}

host::Footprint mw_footprint(Kind kind) {
  host::Footprint pools;
  // And its place in the list of them.
  if (kind == Kind::kSoft) pools.add({.name = "window", .bytes_each = sizeof(soft::SoftMw) + sizeof(soft::SoftMw*)});
  return pools;
}

}  // namespace verbena::nic
