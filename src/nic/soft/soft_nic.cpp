// The control plane of the soft NIC: objects, memory, keys, queue pairs and their states.
#include "nic/soft/path.hpp"
#include "nic/soft/rendezvous.hpp"

#include "base/check.hpp"
#include "base/random.hpp"
#include "host/prefault.hpp"
#include "nic/footprint.hpp"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

namespace verbena::nic::soft {

namespace {

constexpr std::uint32_t kMaxCqs = 4096;  // The default number of queue pairs: each may have its own.
constexpr std::uint32_t kMaxCqe = 1U << 20;

/// IB specification, table 46 (RNR NAK timer field): 0.01 ms units, 0 is the longest.
constexpr std::uint32_t kRnrTimerUs[32] = {
    655360, 10,   20,   30,   40,    60,    80,    120,   160,   240,   320,   480,    640,    960,    1280,   1920,
    2560,   3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};

[[nodiscard]] std::uint64_t us_to_ticks(double us) noexcept { return static_cast<std::uint64_t>(us * ticks_per_us()); }

}  // namespace

/// Runs `change` while it keeps the owner of `cq` outside poll. Call it under the NIC's mutex, but never from inside
/// the owner's poll (polls call no control plane).
template <class Change>
void SoftNic::exclusively(SoftCq& cq, Change&& change) noexcept {
  cq.control.fetch_or(SoftCq::kExclusive, std::memory_order_seq_cst);
  barrier_this_process();
  const std::uint64_t word = cq.poll_word.load(std::memory_order_acquire);
  if (word % 2 == 1) {
    // A poll takes microseconds and waits for nothing. Any change of the word means that this poll is over and that the
    // next one saw kExclusive.
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
  if (options_.chaos) {
    VERBENA_TRY(check_chaos(*options_.chaos));
    retry_.chaos.emplace(*options_.chaos, chaos_stream(static_cast<std::uint32_t>(::getpid())));
  }
  VERBENA_TRY(register_membarriers());
  VERBENA_ASSIGN(keys_.shared,
                 Mapping::create("verbena-keys", options_.max_mr * sizeof(KeyEntry), Mapping::Mode::kRead));
  VERBENA_ASSIGN(ready_.words, Mapping::create("verbena-ready", kMaxCqs * kReadyWords * sizeof(std::uint64_t),
                                               Mapping::Mode::kReadWrite));
  VERBENA_ASSIGN(keys_.local, LazyTable<LocalKey>::create(options_.max_mr));
  // Keys begin at random, so that a key of one process opens nothing of another one with the same addresses.
  const std::uint64_t start = random_word();
  keys_.generations.resize(options_.max_mr, static_cast<std::uint8_t>(start));
  keys_.free.resize(options_.max_mr - 1);
  // Index 0 stays unused: no key is 0.
  const auto count = static_cast<std::uint32_t>(keys_.free.size());
  const auto first = static_cast<std::uint32_t>((start >> 8) % count);
  for (std::uint32_t i = 0; i < count; ++i) keys_.free[i] = 1 + (first + i) % count;
  ready_.taken.resize(kMaxCqs, false);

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
  (void)ticks_per_us();  // Measures it now, not at the first stall.
  return open_rendezvous();
}

Result<ibv_pd*> SoftNic::alloc_pd() {
  const std::lock_guard lock(mutex_);
  auto* pd = new (std::nothrow) SoftPd();
  if (pd == nullptr) return no_memory("a protection domain");
  pd->context = context();
  pd->id = next_.pd++;
  pd->handle = pd->id;
  ++objects_.pds;
  return pd;
}

Result<void> SoftNic::dealloc_pd(ibv_pd* base) {
  const std::lock_guard lock(mutex_);
  auto* pd = static_cast<SoftPd*>(base);
  VERBENA_TRY(check_unused("dealloc_pd", pd->users, kPdUsers));
  delete pd;
  --objects_.pds;
  return {};
}

Result<std::uint64_t> SoftNic::attach(const host::Arena& arena, const Grant& grant) {
  VERBENA_TRY(check_arena(arena, grant));
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_.memory++;
  // An arena that is not shared may close its file afterwards.
  const int fd = arena.share() != host::Share::kNone ? arena.fd() : -1;
  memories_[id] = {arena.data(), arena.size(), fd, arena.share(), grant, arena.populate(), 0};
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
  VERBENA_TRY(check_unused("detach", at->second.regions, "memory regions still lie in the arena"));
  forget_owner_mapping(at->second.data);
  memories_.erase(at);
  --objects_.arenas;
  return {};
}

/// Returns a key of a free index, newer than the index's last key.
Result<std::uint32_t> SoftNic::take_key(const char* call) {
  if (keys_.free_head == keys_.free.size()) {
    return fail(Status::kLimit, call, ENOMEM,
                "all {} memory regions and windows of this process are in use: deregister some", limits_.max_mr);
  }
  const std::uint32_t index = keys_.free[keys_.free_head++];
  return (index << 8) | ++keys_.generations[index];
}

/// The free indices are a queue: the generation of an index grows only after all other free indices have been used, so
/// a stale key stays stale for a long time. Drops the consumed front now and then.
void SoftNic::give_key_back(std::uint32_t index) {
  keys_.free.push_back(index);
  if (keys_.free_head > 4096 && keys_.free_head * 2 > keys_.free.size()) {
    keys_.free.erase(keys_.free.begin(), keys_.free.begin() + static_cast<std::ptrdiff_t>(keys_.free_head));
    keys_.free_head = 0;
  }
}

namespace {
[[nodiscard]] Result<void> check_region(std::size_t length, std::uint64_t iova, int access) {
  constexpr int kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | kRemoteWriters | IBV_ACCESS_MW_BIND |
                         IBV_ACCESS_RELAXED_ORDERING;
  if (length == 0 || (access & ~kKnown) != 0 || iova + length < iova) {
    return fail(Status::kBadArgument, "reg_mr", EINVAL, "length {} or access {:#x} cannot be registered", length,
                access);
  }
  return check_region_access(access);
}

/// For memory in no arena: faults it in, as a device would, so that unmapped memory is found now and not by a copy.
[[nodiscard]] Result<void> check_mapped(void* address, std::size_t length, int access) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t page = first & ~std::uintptr_t{4095};
  const int populate = (access & IBV_ACCESS_LOCAL_WRITE) != 0 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  if (::madvise(reinterpret_cast<void*>(page), first - page + length, populate) == 0) return {};
  const int cause = errno;
  alignas(4096) static std::byte known[4096];
  if (cause == EINVAL && ::madvise(known, sizeof known, MADV_POPULATE_READ) != 0) return {};  // Before Linux 5.14.
  return fail(Status::kBadArgument, "reg_mr", cause,
              "{} bytes at {} are not mapped, or not writable as the access needs; register mapped memory", length,
              address);
}
}  // namespace

Result<ibv_mr*> SoftNic::reg_mr(ibv_pd* base, void* address, std::size_t length, std::uint64_t iova, int access) {
  auto* pd = static_cast<SoftPd*>(base);
  VERBENA_TRY(check_region(length, iova, access));
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
    lock.unlock();  // Faulting in gigabytes takes time.
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
  // Peers do not map memory that is in no arena: its owner's process copies, or the kernel on the peer's behalf.
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

  LocalKey& local = keys_.local[index];
  local.pd = pd->id;
  local.iova = iova;
  local.length = length;
  local.base = static_cast<std::byte*>(address);
  local.access = static_cast<std::uint32_t>(access);
  local.lkey.store(mr->lkey, std::memory_order_release);

  // Release stores, as in bind_window: an importer that sees one of them also sees that the previous region is gone.
  constexpr auto kRelease = std::memory_order_release;
  KeyEntry& entry = shared_key(index);
  entry.domain.store(pd->id, kRelease);
  entry.iova.store(iova, kRelease);
  entry.length.store(length, kRelease);
  entry.memory_id.store(mr->memory_id, kRelease);
  entry.memory_offset.store(mr->memory_offset, kRelease);
  entry.access.store(static_cast<std::uint32_t>(access), kRelease);
  publish_key(index, mr->rkey);
  return mr;
}

namespace {
/// Also asks the kernel, because the control thread, which marks peers dead, waits for the mutex that the caller holds.
[[nodiscard]] bool process_gone(const Peer& peer) noexcept {
  return peer.dead.load(std::memory_order_acquire) || (peer.pidfd && is_signalled(peer.pidfd.get()));
}
}  // namespace

/// The peer's side, which may be that of a queue pair that has departed; nullptr if the peer is known to have left it.
const RemoteQp* SoftNic::find_remote(const Inside& inside) const noexcept {
  if (const auto at = qps_.find(inside.qp_num); at != qps_.end()) {
    const RemoteQp* const remote = at->second->remote.load(std::memory_order_acquire);
    if (remote == inside.remote) return remote;
  }
  const auto gone = std::ranges::find_if(gone_.departed, [&](const Departed& departed) {
    return departed.qp_num == inside.qp_num && departed.remote.get() == inside.remote;
  });
  return gone == gone_.departed.end() ? nullptr : gone->remote.get();
}

/// Whether a peer that was inside an access still is.
bool SoftNic::stays(const Inside& inside) const noexcept {
  const RemoteQp* const remote = find_remote(inside);
  if (remote == nullptr || remote->control->access.word.load(std::memory_order_acquire) != inside.word) return false;
  return !process_gone(*remote->peer);
}

/// Takes the peer's side from a queue pair that lets nobody in any more (its readiness is told), and keeps it while the
/// peer is inside an access that began before. Memory that the peer may be in can be deregistered after its queue pair.
void SoftNic::depart(SoftQp& qp) noexcept {
  forget_departed();
  qp.remote.store(nullptr, std::memory_order_release);
  qp.rx_remote = nullptr;
  std::unique_ptr<RemoteQp> remote = std::move(qp.path.remote);
  if (remote == nullptr) return;
  // After the barrier the peer either sees that the queue pair is gone, or its access word is odd here.
  barrier_all_processes();
  const std::uint64_t word = remote->control->access.word.load(std::memory_order_acquire);
  if (word % 2 == 0 || process_gone(*remote->peer)) return free_later(gone_.ended.remotes, std::move(remote));
  // An honest peer has no more threads inside than processors; each of them costs this process a mapping. The
  // processes of another user share that number.
  constexpr std::ptrdiff_t kMostDeparted = 64;
  Peer& peer = *remote->peer;
  const auto is_counted = [&](const Departed& one) {
    const Peer& other = *one.remote->peer;
    return &other == &peer || (peer.is_stranger() && other.process.uid == peer.process.uid);
  };
  if (std::ranges::count_if(gone_.departed, is_counted) >= kMostDeparted) {
    lose_peer(peer,
              format_error(Status::kProtocol, "destroy_qp", 0,
                           "the peer (pid {}), or another process of its user, says that it is inside of accesses "
                           "through {} queue pairs that are gone",
                           peer.process.pid, kMostDeparted));
    return forget_departed();
  }
  ++peer.users;
  gone_.departed.push_back({.qp_num = qp.qp_num, .pd = qp.spd, .word = word, .remote = std::move(remote)});
}

/// Forgets departed queue pairs whose peers have left, or are lost.
void SoftNic::forget_departed() noexcept {
  std::erase_if(gone_.departed, [&](Departed& departed) {
    if (stays({departed.qp_num, departed.remote.get(), departed.word})) return false;
    release_peer(departed.remote->peer);
    free_later(gone_.ended.remotes, std::move(departed.remote));
    return true;
  });
}

/// Whether nobody waits any more for the peer that was inside.
bool SoftNic::is_late(const Inside& inside) const noexcept {
  const RemoteQp* const remote = find_remote(inside);
  return remote != nullptr && remote->peer->was_late;
}

/// Waits until no peer is inside any more, or only peers that were late before. Releases the lock meanwhile, so that a
/// peer that stays delays only this call.
Result<void> SoftNic::wait_until_left(std::vector<Inside> inside, std::unique_lock<std::mutex>& lock, const char* call,
                                      Deadline deadline) {
  for (;;) {
    std::erase_if(inside, [&](const Inside& one) { return !stays(one); });
    if (deadline.passed() || std::ranges::all_of(inside, [&](const Inside& one) { return is_late(one); })) break;
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  // Who was given no time is not late: it may be in the middle of a copy, and of other memory than this.
  if (is_poll(deadline)) {
    if (inside.empty()) return {};
    return fail(Status::kTimedOut, call, ETIMEDOUT,
                "the peer of queue pair {} is inside an access, perhaps to this memory, which must not be reused",
                inside.front().qp_num);
  }
  for (const Inside& one : inside) {
    if (const RemoteQp* const remote = find_remote(one); remote != nullptr) remote->peer->was_late = true;
    if (const auto at = qps_.find(one.qp_num); at != qps_.end()) want_error(*at->second, Status::kTimedOut);
  }
  if (!inside.empty()) {
    return fail(Status::kTimedOut, call, ETIMEDOUT,
                "the peer of queue pair {} is still inside the region; its queue pair is in error, and the memory must "
                "not be reused before that process is gone",
                inside.front().qp_num);
  }
  return {};
}

Result<void> SoftNic::dereg_mr(ibv_mr* base, Deadline deadline) {
  auto* mr = static_cast<SoftMr*>(base);
  std::unique_lock lock(mutex_);
  const std::uint32_t index = mr->handle;
  auto* pd = static_cast<SoftPd*>(mr->pd);
  VERBENA_TRY(
      check_unused("dereg_mr", mr->windows.load(), "memory windows are bound on the region: invalidate them first"));
  keys_.local[index].lkey.store(0, std::memory_order_release);
  shared_key(index).live.store(0, std::memory_order_release);
  // After the barrier an initiator either sees the key gone, or we see its access word odd.
  barrier_all_processes();
  // Only who was handed the memory can be inside it. Memory outside of arenas is everybody's, by way of the kernel.
  const Memory* const memory = mr->memory_id != kProcessMemory ? &memories_.at(mr->memory_id) : nullptr;
  const auto reaches = [&](const RemoteQp& remote) {
    return memory == nullptr || memory->is_given_to(remote.peer->process);
  };
  std::vector<Inside> inside;
  for (auto& [number, qp] : qps_) {
    const RemoteQp* remote = qp->remote.load(std::memory_order_acquire);
    if (remote == nullptr || qp->spd != pd || !reaches(*remote)) continue;
    const std::uint64_t seen = remote->control->access.word.load(std::memory_order_acquire);
    if (seen % 2 == 1) inside.push_back({number, remote, seen});
  }
  for (const Departed& departed : gone_.departed) {
    if (departed.pd == pd && reaches(*departed.remote))
      inside.push_back({departed.qp_num, departed.remote.get(), departed.word});
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
  const LocalKey& local = keys_.local[mr->handle];
  return {.address = local.iova,
          .length = mr->length,
          .rkey = mr->rkey,
          .access = local.access,
          .memory_id = mr->memory_id};
}

// --- channels and completion queues ----------------------------------------------------------------------------------

Result<ibv_comp_channel*> SoftNic::create_channel() {
  auto channel = std::make_unique<SoftChannel>();
  channel->context = context();
  channel->nic = this;
  VERBENA_ASSIGN(channel->bell, make_eventfd());
  channel->fd = channel->bell.get();
  const std::lock_guard lock(mutex_);
  channel->number = next_.bell++;
  ++objects_.channels;
  return channel.release();
}

Result<void> SoftNic::destroy_channel(ibv_comp_channel* base) {
  auto* channel = static_cast<SoftChannel*>(base);
  const std::lock_guard lock(mutex_);
  VERBENA_TRY(check_unused("destroy_channel", channel->cqs.size(), kChannelUsers));
  delete channel;
  --objects_.channels;
  return {};
}

void SoftNic::wake(ibv_comp_channel* base) noexcept {
  auto& channel = *static_cast<SoftChannel*>(base);
  channel.is_woken.store(true, std::memory_order_release);
  signal_eventfd(channel.bell.get());
}

/// Empties the bell. Returns a wake (null), or the queue whose event has been due for longest; nothing if the bell rang
/// for an event that has been taken since.
std::optional<ibv_cq*> SoftNic::take_event(SoftChannel& channel) noexcept {
  std::uint64_t rings = 0;
  if (::read(channel.bell.get(), &rings, sizeof rings) != static_cast<ssize_t>(sizeof rings)) rings = 0;
  if (rings > std::exchange(channel.own_rings, 0)) {
    for (SoftCq* cq : channel.cqs) take_ring(*cq);
  }
  std::optional<ibv_cq*> event;
  if (channel.is_woken.exchange(false, std::memory_order_acquire)) event = nullptr;
  bool is_left = false;
  const std::size_t first = channel.next;
  for (std::size_t i = 0; i < channel.cqs.size(); ++i) {
    const std::size_t at = (first + i) % channel.cqs.size();
    SoftCq& cq = *channel.cqs[at];
    if (!cq.is_due) continue;
    if (event) {
      is_left = true;
      break;
    }
    cq.is_due = false;
    channel.next = at + 1;
    event = &cq;
  }
  // Keeps the descriptor readable as long as there are events.
  if (is_left) {
    channel.own_rings = 1;
    signal_eventfd(channel.bell.get());
  }
  return event;
}

Result<ibv_cq*> SoftNic::wait(ibv_comp_channel* base, Deadline deadline) {
  auto& channel = *static_cast<SoftChannel*>(base);
  for (;;) {
    Deadline until = deadline;
    bool stalled = false;
    // `cqs` changes only while nothing waits on the channel: as on a device, CQs are made before its use and destroyed
    // after it.
    for (SoftCq* cq : channel.cqs) {
      // A queue that always has something to do must not delay a wake.
      if (arm_stalled(*cq)) return channel.is_woken.exchange(false, std::memory_order_acquire) ? nullptr : cq;
      const Deadline gives_up = stall_deadline(*cq);
      stalled |= !gives_up.is_never();
      until = earlier(until, gives_up);
    }
    if (wait_readable(channel.bell.get(), until)) {
      if (const auto event = take_event(channel)) return *event;
      // The bell may keep ringing without an event for us.
      if (!deadline.passed()) continue;
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
  VERBENA_TRY(check_cqe(cqe, limits_));
  auto cq = std::make_unique<SoftCq>();
  const std::uint32_t entries = std::bit_ceil(cqe);
  VERBENA_ASSIGN(cq->memory, LazyMemory::create(entries * sizeof(Cqe), "making a completion queue"));
  cq->ring = reinterpret_cast<Cqe*>(cq->memory.data());
  cq->context = context();
  cq->channel = base;
  cq->cqe = static_cast<int>(cqe);
  cq->nic = this;
  cq->mask = entries - 1;
  cq->capacity = cqe;
  if (base != nullptr) cq->bell = base->fd;
  const std::lock_guard lock(mutex_);
  const auto slot = std::find(ready_.taken.begin(), ready_.taken.end(), false);
  if (slot == ready_.taken.end()) {
    return fail(Status::kLimit, "create_cq", ENOMEM, "all {} completion queues are in use; share them", kMaxCqs);
  }
  if (base != nullptr) static_cast<SoftChannel*>(base)->cqs.push_back(cq.get());
  *slot = true;
  if (options_.chaos) {
    cq->chaos = std::make_unique<CqChaos>(*options_.chaos, chaos_stream(next_.cq++));
    cq->held = Hold::kByChaos;
  }
  cq->ready_index = static_cast<std::uint32_t>(slot - ready_.taken.begin());
  cq->ready_words = reinterpret_cast<PeerWord<std::uint64_t>*>(ready_.words.mapping.data()) +
                    std::size_t{cq->ready_index} * kReadyWords;
  ++objects_.cqs;
  return cq.release();
}

Result<void> SoftNic::destroy_cq(ibv_cq* base) {
  auto* cq = static_cast<SoftCq*>(base);
  const std::lock_guard lock(mutex_);
  VERBENA_TRY(check_unused("destroy_cq", cq->members.size(), kCqUsers));
  if (cq->channel != nullptr) std::erase(static_cast<SoftChannel*>(cq->channel)->cqs, cq);
  for (std::uint32_t i = 0; i < kReadyWords; ++i) cq->ready_words[i].store(0, std::memory_order_relaxed);
  ready_.taken[cq->ready_index] = false;
  delete cq;
  --objects_.cqs;
  return {};
}

// --- queue pairs
// ------------------------------------------------------------------------------------------------------

namespace {

QpGeometry geometry_for(std::uint32_t max_send_wr, std::uint32_t max_recv_wr) noexcept {
  QpGeometry geometry;
  // Slots: one for every send of a full send queue, and for every receive that the peer's twin of this QP may hold.
  // Data: a segment for each send, within bounds. Pages take memory only once used.
  const std::uint32_t slots = std::bit_ceil(std::max({max_send_wr, max_recv_wr, 16U}));
  geometry.receive_entries = std::bit_ceil(max_recv_wr);
  geometry.slots = slots;
  geometry.data_bytes =
      std::clamp<std::uint32_t>(static_cast<std::uint32_t>(std::bit_ceil(std::uint64_t{slots} * kSegmentBytes)),
                                4 * kSegmentBytes, kMostDataBytes);
  return geometry;
}

}  // namespace

Result<void> SoftNic::make_shared_memory(SoftQp& qp) {
  QpGeometry& geometry = qp.storage.geometry = geometry_for(qp.sq.max_wr, qp.rq.max_wr);
  const std::uint32_t slots = geometry.slots;
  geometry.start = test_.ring_start / slots * slots;
  VERBENA_ASSIGN(Mapping::Owned owned, Mapping::create("verbena-qp", geometry.total_bytes(), Mapping::Mode::kRead));
  qp.storage.memory = std::move(owned.fd);
  qp.storage.mapping = std::make_shared<const Mapping>(std::move(owned.mapping));
  std::byte* base = qp.storage.mapping->data();
  qp.own = reinterpret_cast<QpControl*>(base);
  qp.service = reinterpret_cast<ServiceBlock*>(base + geometry.service_offset());
  qp.own->rare.min_receive.store(~0U, std::memory_order_relaxed);
  qp.own->consumer.consumed.store(geometry.start, std::memory_order_relaxed);
  qp.rq.lengths = reinterpret_cast<PeerWord<std::uint32_t>*>(base + geometry.lengths_offset());
  if (geometry.start != 0) {
    // Writes the headers of the previous lap, as a ring that has run this far would have them: a zeroed slot would look
    // valid at the index whose low half wraps to 0.
    auto* ring = reinterpret_cast<Slot*>(base + geometry.slots_offset());
    for (std::uint64_t i = 0; i < slots; ++i) {
      ring[i].header.store(static_cast<std::uint32_t>(geometry.start + i + 1 - slots), std::memory_order_relaxed);
    }
  }
  qp.tx = RingProducer<RealMemory>(reinterpret_cast<Slot*>(base + geometry.slots_offset()), slots,
                                   base + geometry.data_offset(), geometry.data_bytes, qp.storage.ring_ends,
                                   geometry.start);
  qp.watch.wake_flags = 0;
  qp.access_count = 0;
  return {};
}

namespace {
/// Makes the QP's own arrays, in one mapping. Receives come first, because a connection without traffic uses only them.
[[nodiscard]] Result<void> make_queues(SoftQp& qp) {
  const std::uint32_t sends = std::bit_ceil(qp.sq.max_wr);
  const std::uint32_t receives = std::bit_ceil(qp.rq.max_wr);
  qp.pending.mask = sends - 1;
  qp.rq.mask = receives - 1;
  Places places;
  const std::size_t receives_at = places.add<ReceiveWqe>(receives);
  const std::size_t receive_sges_at = places.add<ibv_sge>(std::size_t{receives} * qp.rq.max_sge);
  const std::size_t ends_at = places.add<std::uint64_t>(geometry_for(qp.sq.max_wr, qp.rq.max_wr).slots);
  const std::size_t pending_at = places.add<SendWqe>(sends);
  const std::size_t pending_sges_at = places.add<ibv_sge>(std::size_t{sends} * qp.sq.max_sge);
  const std::size_t early_at = places.add<Cqe>(receives);
  const std::size_t inline_at = places.add<std::byte>(std::size_t{sends} * qp.sq.max_inline);
  VERBENA_ASSIGN(qp.storage.queues, LazyMemory::create(places.size(), "making a queue pair's queues"));
  std::byte* const base = qp.storage.queues.data();
  qp.rq.wqes = reinterpret_cast<ReceiveWqe*>(base + receives_at);
  qp.rq.sges = reinterpret_cast<ibv_sge*>(base + receive_sges_at);
  qp.storage.ring_ends = reinterpret_cast<std::uint64_t*>(base + ends_at);
  qp.pending.wqes = reinterpret_cast<SendWqe*>(base + pending_at);
  qp.pending.sges = reinterpret_cast<ibv_sge*>(base + pending_sges_at);
  qp.early.ring = reinterpret_cast<Cqe*>(base + early_at);
  qp.pending.inline_data = base + inline_at;
  return {};
}
}  // namespace

/// Enters the QP into the lists of its CQs, and gives it a bit of the ready set.
void SoftNic::link(SoftQp& qp) {
  for (SoftCq* cq : {qp.rcq, qp.scq}) {
    if (std::find(cq->members.begin(), cq->members.end(), &qp) != cq->members.end()) continue;
    exclusively(*cq, [&] {
      cq->members.push_back(&qp);
      // Makes room for every member in every list, so that the data path never allocates.
      cq->active.reserve(cq->members.capacity());
      cq->stalled.reserve(cq->members.capacity());
      cq->unarmed.reserve(cq->members.capacity());
      if (cq == qp.rcq) list_unarmed(qp);
    });
  }
  // Takes the bit of the ready set that fewest QPs have.
  std::array<std::uint32_t, kReadyBits> taken{};
  for (const SoftQp* other : qp.rcq->members) {
    if (other != &qp && other->rcq == qp.rcq) ++taken[other->path.ready_slot];
  }
  qp.path.ready_slot = static_cast<std::uint32_t>(std::min_element(taken.begin(), taken.end()) - taken.begin());
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
    // The few receives that it holds at a time, which the shared queue hands out.
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
  qp->rq.srq = srq;
  qp->rq.pd = srq != nullptr ? srq->spd->id : qp->spd->id;
  qp->scq = static_cast<SoftCq*>(options.send_cq);
  qp->rcq = static_cast<SoftCq*>(options.recv_cq);
  qp->sq.max_wr = options.max_send_wr;
  qp->sq.max_sge = std::max(options.max_send_sge, 1U);
  qp->rq.max_wr = options.max_recv_wr;
  qp->rq.max_sge = std::max(options.max_recv_sge, 1U);
  qp->sq.max_inline = std::max(options.max_inline, 64U);
  qp->sq.signal_all = options.signal_all;
  options.max_send_sge = qp->sq.max_sge;
  options.max_recv_sge = qp->rq.max_sge;
  options.max_inline = qp->sq.max_inline;
  VERBENA_TRY(make_queues(*qp));
  VERBENA_TRY(make_shared_memory(*qp));
  qp->path.offers.reserve(kMaxOffers);
  qp->path.imported.reserve();
  const std::lock_guard lock(mutex_);
  if (qps_.size() >= limits_.max_qp) {
    return fail(Status::kLimit, "create_qp", ENOMEM,
                "all {} queue pairs of this process are in use: close some connections", limits_.max_qp);
  }
  do {
    next_.qp = next_.qp % 0xFFFFFF + 1;  // 24 bits, never 0; a number is not reused for a long time.
  } while (qps_.contains(next_.qp));
  qp->qp_num = next_.qp;
  if (options_.chaos) {
    qp->chaos = std::make_unique<QpChaos>(*options_.chaos, chaos_stream(qp->qp_num));
    qp->sq.held = Hold::kByChaos;
  }
  link(*qp);
  ++qp->spd->users;
  if (srq != nullptr) ++srq->users;
  ++objects_.qps;
  qps_.emplace(qp->qp_num, qp.get());
  return qp.release();
}

void SoftNic::ring_bells(const SoftQp& qp) noexcept {
  if (qp.rcq->bell >= 0) signal_eventfd(qp.rcq->bell);
  if (qp.scq->bell >= 0 && qp.scq->bell != qp.rcq->bell) signal_eventfd(qp.scq->bell);
}

/// Makes the owners of the QP's queues look at it.
void SoftNic::attention(SoftQp& qp) noexcept {
  for (SoftCq* cq : {qp.rcq, qp.scq}) {
    // The first thread that sets it rings, after the store: the woken owner sees the news of all of them.
    const std::uint32_t before = cq->control.fetch_or(SoftCq::kAttention, std::memory_order_acq_rel);
    if ((before & SoftCq::kAttention) == 0 && cq->bell >= 0) signal_eventfd(cq->bell);
  }
}

/// Makes the owner's next poll move the QP to error.
void SoftNic::want_error(SoftQp& qp, Status reason) noexcept {
  qp.failing.blame(reason);
  qp.failing.error_wanted.store(true, std::memory_order_release);
  attention(qp);
}

/// Returns whether there was something to receive.
bool SoftNic::receive_for_owner(SoftQp& qp) noexcept {
  const ibv_qp_state state = qp.state_now();
  if ((state != IBV_QPS_RTR && state != IBV_QPS_RTS) || qp.rq.srq != nullptr) return false;
  bool any = false;
  exclusively(*qp.rcq, [&] { any = receive_early(qp); });
  if (any) attention(qp);
  return any;
}

/// Makes the peer's QP usable here once both sides have offered. Call it under the mutex.
void SoftNic::match_offer(SoftQp& qp) noexcept {
  const ibv_qp_state state = qp.state_now();
  if ((state != IBV_QPS_RTR && state != IBV_QPS_RTS) || qp.path.peer == nullptr || qp.remote.load() != nullptr) return;
  const auto offer = std::find_if(qp.path.offers.rbegin(), qp.path.offers.rend(), [&](const Offer& candidate) {
    // Compares the process that offered with the process that owns the GID, both as the kernel tells them.
    return same(candidate.request.my_gid, qp.path.gid) && candidate.request.my_qp == qp.path.qp_num &&
           candidate.process == qp.path.peer->process &&
           candidate.request.qp_type == static_cast<std::uint32_t>(qp.qp_type);
  });
  if (offer == qp.path.offers.rend()) return;
  const Request& request = offer->request;
  auto mapping = request.geometry.valid()
                     ? Mapping::of_peer(offer->memory.get(), request.geometry.total_bytes(), Mapping::Mode::kRead)
                     : Result<Mapping>(fail(Status::kProtocol, "offer", 0, "impossible geometry"));
  if (mapping && qp.path.peer->is_stranger() && !is_whole(offer->memory.get(), mapping->size(), true))
    mapping = std::unexpected(punchable(*qp.path.peer));
  auto remote = std::unique_ptr<RemoteQp>(new (std::nothrow) RemoteQp());
  if (!mapping || remote == nullptr) return want_error(qp, mapping ? Status::kNoMemory : mapping.error().status());
  const std::byte* base = mapping->data();
  remote->control = reinterpret_cast<const QpControl*>(base);
  remote->service = reinterpret_cast<const ServiceBlock*>(base + request.geometry.service_offset());
  remote->receive_lengths = reinterpret_cast<const PeerWord<std::uint32_t>*>(base + request.geometry.lengths_offset());
  remote->receive_mask = request.geometry.receive_entries - 1;
  remote->pd = request.pd;
  remote->access = request.access;
  remote->has_srq = request.has_srq != 0;
  remote->rnr_ticks = us_to_ticks(kRnrTimerUs[request.min_rnr_timer % 32]);
  remote->peer = qp.path.peer;
  remote->ring = RingConsumer<RealMemory>(reinterpret_cast<const Slot*>(base + request.geometry.slots_offset()),
                                          request.geometry.slots, base + request.geometry.data_offset(),
                                          request.geometry.data_bytes, request.geometry.start);
  const bool bit_known = request.ready_bit < qp.path.peer->ready.size() * 8;
  if (qp.path.peer->ready && bit_known) {
    remote->ready_word =
        reinterpret_cast<PeerWord<std::uint64_t>*>(qp.path.peer->ready.data()) + request.ready_bit / 64;
    remote->ready_bit = std::uint64_t{1} << (request.ready_bit % 64);
  }
  remote->qp_num = request.my_qp;
  remote->window_domain = window_domain(request.my_qp);
  if (qp.path.peer->process.uid == ::geteuid()) {
    remote->kept_bells = std::move(offer->bells);
    auto* bell = remote->bells.begin();
    for (const auto& kept : remote->kept_bells) {
      if (kept != nullptr) *bell++ = kept->get();
    }
  } else {
    remote->wake_socket = qp.path.peer->socket.get();
  }
  remote->mapping = std::move(*mapping);
  // Only a peer of our own user has our ready set mapped; the owner always polls the others.
  qp.watch.may_park = qp.path.peer->process.uid == ::geteuid();
  qp.own->consumer.consumed.store(request.geometry.start, std::memory_order_release);
  qp.path.remote = std::move(remote);
  qp.remote.store(qp.path.remote.get(), std::memory_order_release);
  qp.path.offers.clear();
  attention(qp);
  // Wakes a peer that sleeps until we are ready for its send. Its membarrier, between setting the flag and looking once
  // more, orders our store before this load.
  fences::credit_before_bell();
  if ((qp.path.remote->control->rare.wake.load(std::memory_order_relaxed) & Wake::kCredit) != 0) {
    wake_peer(*qp.path.remote);
  }
}

namespace {
/// Checks like the kernel's ib_modify_qp_is_ok, by the specification's table: all needed attributes, and none that the
/// transition does not allow.
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
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) qp.path.access_flags = attr.qp_access_flags;
  qp.enter(IBV_QPS_INIT);
  return {};
}

Result<void> SoftNic::to_rtr(SoftQp& qp, const ibv_qp_attr& attr, int mask, Deadline deadline, Lock& lock) {
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
  const auto timer = static_cast<std::uint8_t>(is_reliable ? attr.min_rnr_timer : 0);
  if (qp.path.approach != nullptr && !qp.path.approach->leads_to(gid, attr.dest_qp_num, timer)) {
    retreat(qp, Status::kTimedOut);
    if (qp.state_now() != IBV_QPS_INIT) {
      return fail(Status::kPeerLost, "modify_qp", 0,
                  "the peer that was given up has connected all the same: the queue pair is in error, reset it");
    }
  }
  if (qp.path.approach == nullptr) {
    VERBENA_ASSIGN(Peer * peer, find_peer(gid));
    qp.path.approach = std::make_unique<Approach>(Approach{gid, attr.dest_qp_num, timer, peer, nullptr});
  }
  for (;;) {
    if (lacks_pages(qp)) VERBENA_TRY(make_pages(qp, lock));
    const Result<void> result = approach(qp);
    if (result || result.error().status() != Status::kAgain || is_poll(deadline)) return result;
    if (await_answer(lock, deadline)) continue;
    const auto late = no_answer(*qp.path.approach->peer);
    retreat(qp, Status::kTimedOut);
    return late;
  }
}

/// Whether the QP's peer is known, and takes only memory that is all there: another user's process does.
bool SoftNic::lacks_pages(const SoftQp& qp) noexcept {
  const Approach& approach = *qp.path.approach;
  const Peer& peer = *approach.peer;
  if (approach.offer != nullptr || approach.has_pages || peer.dead.load() || peer.state != Peer::State::kKnown)
    return false;
  return peer.process.uid != ::geteuid() && !is_root_of_host();
}

/// Makes the QP's memory for such a peer, without the lock. A failure leaves the QP as `retreat` does.
Result<void> SoftNic::make_pages(SoftQp& qp, Lock& lock) {
  const std::span<std::byte> shared(qp.storage.mapping->data(), qp.storage.mapping->size());
  lock.unlock();
  const int cause = host::prefault(shared, qp.storage.memory.get(), 4096, 1);
  lock.lock();
  qp.path.approach->has_pages = cause == 0;
  if (cause == 0) return {};
  retreat(qp, Status::kNoMemory);
  return fail_system("madvise", cause, "making a queue pair's memory for another user's process");
}

/// Takes the next steps to RTR without waiting: kAgain until the peer's NIC has answered. A failure leaves the QP as
/// `retreat` does.
Result<void> SoftNic::approach(SoftQp& qp) {
  const Peer& peer = *qp.path.approach->peer;
  if (qp.path.approach->offer == nullptr) {
    if (peer.dead.load()) {
      const Error why = peer.failure;
      retreat(qp, why.status());
      return std::unexpected(why);
    }
    if (peer.state != Peer::State::kKnown) return not_yet("modify_qp");
    make_offer(qp);
  }
  const std::shared_ptr<const Ask> offer = qp.path.approach->offer;
  if (!offer->is_over) return not_yet("modify_qp");
  if (offer->failure) {
    retreat(qp, offer->failure->status());
    return std::unexpected(*offer->failure);
  }
  if (offer->reply.answer != Answer::kOk) {
    retreat(qp, Status::kProtocol);
    return fail(Status::kProtocol, "modify_qp", 0, "the peer's NIC refused the offer (answer {})",
                static_cast<std::uint32_t>(offer->reply.answer));
  }
  qp.path.approach.reset();
  qp.storage.memory.reset();
  if (peer.dead.load()) qp.failing.peer_dead.store(true, std::memory_order_release);
  match_offer(qp);
  return {};
}

void SoftNic::make_offer(SoftQp& qp) {
  Approach& approach = *qp.path.approach;
  auto offer = std::make_shared<Ask>();
  Request& request = offer->request;
  request.type = RequestType::kOffer;
  request.my_qp = qp.qp_num;
  request.your_qp = approach.qp_num;
  request.my_gid = gid_;
  request.pd = qp.spd->id;
  request.access = qp.path.access_flags;
  request.min_rnr_timer = approach.min_rnr_timer;
  request.ready_bit = qp.rcq->ready_index * kReadyBits + qp.path.ready_slot;
  request.geometry = qp.storage.geometry;
  request.has_srq = qp.rq.srq != nullptr ? 1 : 0;
  request.qp_type = static_cast<std::uint32_t>(qp.qp_type);
  offer->fds.add(qp.storage.memory.get());
  // Another user's process could empty a bell, and this process would sleep on.
  const bool is_of_this_user = approach.peer->process.uid == ::geteuid();
  for (const ibv_comp_channel* channel : {qp.rcq->channel, qp.scq->channel}) {
    if (channel == nullptr || !is_of_this_user || (channel == qp.rcq->channel && request.bell_count != 0)) continue;
    request.bells[request.bell_count++] = static_cast<const SoftChannel*>(channel)->number;
    offer->fds.add(channel->fd);
  }
  approach.offer = offer;
  // Becomes able to receive before the peer can learn of this QP, because the peer may send at once.
  qp.path.peer = approach.peer;
  qp.path.gid = approach.gid;
  qp.path.qp_num = approach.qp_num;
  qp.path.min_rnr_timer = approach.min_rnr_timer;
  qp.enter(IBV_QPS_RTR);
  qp.tell_readiness(Readiness::kReady);
  ask(*approach.peer, std::move(offer));
}

/// Stops waiting for the peer's answer. The QP keeps the peer that it was offered to.
void SoftNic::end_approach(SoftQp& qp) noexcept {
  const std::unique_ptr<Approach> approach = std::move(qp.path.approach);
  if (approach == nullptr) return;
  if (approach->offer == nullptr) return release_peer(approach->peer);
  drop_ask(*approach->peer, *approach->offer);
}

/// Moves the QP from `from` to `to`, unless its owner, in a poll or post, has moved it to error. Both sides exclude
/// each other by the receive CQ.
bool SoftNic::move(SoftQp& qp, ibv_qp_state from, ibv_qp_state to) noexcept {
  bool has_moved = false;
  exclusively(*qp.rcq, [&] {
    has_moved = qp.state_now() == from;
    if (has_moved) qp.enter(to);
  });
  return has_moved;
}

/// Gives up going to RTR, and moves the QP back to INIT. If the peer has connected all the same, that cannot be undone:
/// the QP goes to error for `reason`, and keeps the peer's memory and data until it is reset or destroyed.
void SoftNic::retreat(SoftQp& qp, Status reason) noexcept {
  const bool was_offered = qp.path.approach->offer != nullptr;
  end_approach(qp);
  if (!was_offered) return;
  if (qp.remote.load() != nullptr || !move(qp, IBV_QPS_RTR, IBV_QPS_INIT)) return want_error(qp, reason);
  qp.tell_readiness(Readiness::kNotReady);
  qp.failing.peer_dead.store(false, std::memory_order_release);
  release_peer(std::exchange(qp.path.peer, nullptr));
}

Result<void> SoftNic::to_rts(SoftQp& qp, const ibv_qp_attr& attr, int mask) {
  constexpr int kReliable =
      IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  constexpr int kOptional = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
  if (qp.qp_type == IBV_QPT_UC) {
    VERBENA_TRY(check_mask(mask, IBV_QP_SQ_PSN, kOptional, "RTR to RTS of an unreliable connection"));
    qp.path.rnr_retry = 7;
    qp.path.retry_ticks = 0;  // A stalled request waits only for room on this side.
  } else {
    VERBENA_TRY(check_mask(mask, kReliable, kOptional | IBV_QP_MIN_RNR_TIMER, "RTR to RTS"));
    qp.path.rnr_retry = attr.rnr_retry;
    qp.path.retry_count = attr.retry_cnt;
    qp.path.timeout = attr.timeout;
    // 4.096 us * 2^timeout per try (IB specification, local ACK timeout); 0: no limit.
    qp.path.retry_ticks = attr.timeout == 0 ? 0 : us_to_ticks(4.096 * std::exp2(attr.timeout) * (attr.retry_cnt + 1));
  }
  if (move(qp, IBV_QPS_RTR, IBV_QPS_RTS)) return {};
  return fail(Status::kPeerLost, "modify_qp", 0, "the peer has gone meanwhile: the queue pair is in error, reset it");
}

/// Takes the QP out of both CQs' lists, and its completions out of their rings.
void SoftNic::unlink(SoftQp& qp, Unlink how) noexcept {
  const std::array cqs{qp.rcq, qp.scq};
  for (SoftCq* cq : std::span(cqs).first(qp.rcq == qp.scq ? 1 : 2)) {
    exclusively(*cq, [&] {
      if (how == Unlink::kForGood) std::erase(cq->members, &qp);
      std::erase(cq->active, &qp);
      std::erase(cq->stalled, &qp);
      if (qp.rq.srq != nullptr && cq == qp.rcq) give_back_shared(qp, GiveBack::kAll);
      if (cq == qp.rcq) {
        forget_parked(qp);
        // Whoever arms the CQ writes into the memory of a listed QP, which is about to go.
        std::erase(cq->unarmed, &qp);
        qp.watch.in_unarmed = false;
      }
      // Without completions of it the ring stays as it is: another thread, which owns the CQ, may be posting for other
      // queue pairs.
      if (qp.sq.posted == qp.sq.retired && qp.rq.posted == qp.rq.polled) return;
      std::uint64_t keep = cq->head;
      for (std::uint64_t at = cq->head; at != cq->tail; ++at) {
        const Cqe& entry = cq->ring[at & cq->mask];
        if (entry.qp != &qp) cq->ring[keep++ & cq->mask] = entry;
      }
      cq->tail = keep;
    });
  }
  qp.sq.in_stalled = false;
}

/// Resets the QP's private state.
void SoftNic::purge(SoftQp& qp) noexcept {
  end_approach(qp);
  if (qp.own != nullptr) qp.tell_readiness(Readiness::kGone);
  abandon_copy(qp);
  release_imports(qp);
  if (qp.path.peer != nullptr) stop_asking(qp, *qp.path.peer);
  release_windows(qp);
  depart(qp);
  qp.path.offers.clear();
  if (qp.path.peer != nullptr) release_peer(std::exchange(qp.path.peer, nullptr));
}

Result<void> SoftNic::to_reset(SoftQp& qp) {
  unlink(qp, Unlink::kForReset);
  purge(qp);
  exclusively(*qp.rcq, [&] { qp.enter(IBV_QPS_RESET); });
  qp.credit = {};
  qp.sq.posted = qp.sq.retired = 0;
  qp.pending.head = qp.pending.tail = 0;
  qp.pending.offset = qp.pending.takers = 0;
  qp.peer_work.asked = qp.peer_work.served_bytes = qp.peer_work.revoke_word = 0;
  qp.peer_work.is_revoking.store(false);
  qp.peer_work.is_asking = false;
  qp.pending.take_asked = qp.early.head = qp.early.tail = 0;
  qp.pending.stall = SoftQp::Stall::kNone;
  if (qp.chaos != nullptr) qp.chaos->is_drawn = false;
  qp.rq.posted = qp.rq.done = qp.rq.polled = 0;
  qp.rq.offset = 0;
  qp.rq.is_open = qp.failing.flushing = qp.sq.notify = qp.failing.loss_told = false;
  qp.failing.peer_dead.store(false);
  qp.failing.error_wanted.store(false);
  qp.failing.reason.store(Status::kOk);
  const Result<void> made = make_shared_memory(qp);
  exclusively(*qp.rcq, [&] { list_unarmed(qp); });  // For when it is connected again.
  return made;
}

Result<void> SoftNic::modify_qp(ibv_qp* base, const ibv_qp_attr& attr, int mask, Deadline deadline) {
  auto& qp = *static_cast<SoftQp*>(base);
  if ((mask & IBV_QP_STATE) == 0) {
    return fail(Status::kUnsupported, "modify_qp", EOPNOTSUPP, "the soft NIC changes attributes with the state only");
  }
  Lock lock(*this);
  const ibv_qp_state from = qp.state_now();
  const ibv_qp_state to = attr.qp_state;
  if (to == IBV_QPS_RESET) return to_reset(qp);
  if (to == IBV_QPS_ERR) {
    if (from == IBV_QPS_ERR) return {};
    end_approach(qp);
    qp.failing.blame(Status::kClosed);
    qp.tell_readiness(Readiness::kGone);
    exclusively(*qp.rcq, [&] { qp.enter(IBV_QPS_ERR); });
    want_error(qp, Status::kClosed);
    return {};
  }
  if ((from == IBV_QPS_RESET || from == IBV_QPS_INIT) && to == IBV_QPS_INIT) return to_init(qp, attr, mask);
  if (to == IBV_QPS_RTR && (from == IBV_QPS_INIT || qp.path.approach != nullptr)) {
    return to_rtr(qp, attr, mask, deadline, lock);
  }
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) {
    if (qp.path.approach == nullptr) return to_rts(qp, attr, mask);
    return fail(Status::kBadArgument, "modify_qp", EINVAL,
                "the queue pair is going to RTR: repeat that modify_qp until it no longer returns kAgain");
  }
  return fail(Status::kBadArgument, "modify_qp", EINVAL,
              "a queue pair cannot go from state {} to {}: the order is RESET, INIT, RTR, RTS", static_cast<int>(from),
              static_cast<int>(to));
}

ibv_qp_state SoftNic::qp_state(const ibv_qp* qp) const noexcept { return static_cast<const SoftQp*>(qp)->state_now(); }

Status SoftNic::qp_failure(const ibv_qp* base) const noexcept {
  const auto& qp = *static_cast<const SoftQp*>(base);
  if (qp.failing.peer_dead.load(std::memory_order_acquire)) return Status::kPeerLost;
  return qp.failing.reason.load(std::memory_order_acquire);
}

void SoftNic::lose_peer(const ibv_qp* base) noexcept {
  const std::lock_guard lock(mutex_);
  const auto at = qps_.find(base->qp_num);
  if (at == qps_.end() || at->second != base || qp_failure(base) != Status::kOk) return;
  at->second->failing.peer_dead.store(true, std::memory_order_release);
  attention(*at->second);
}

Result<void> SoftNic::destroy_qp(ibv_qp* base) {
  const std::unique_ptr<SoftQp> qp(static_cast<SoftQp*>(base));  // Freed without the lock.
  const Lock lock(*this);
  qps_.erase(qp->qp_num);
  unlink(*qp, Unlink::kForGood);
  purge(*qp);
  --qp->spd->users;
  if (qp->rq.srq != nullptr) --qp->rq.srq->users;
  --objects_.qps;
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
  if (qp.path.peer == nullptr)
    return fail(Status::kBadArgument, "peer_of", EINVAL, "the queue pair has no peer before RTR");
  return qp.path.peer->process;
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

// Next to create_qp and create_cq, which allocate in this order.
host::Footprint qp_footprint(Kind kind, const QpOptions& options) {
  host::Footprint pools;
  if (kind != Kind::kSoft) return pools;
  const std::uint64_t sends = std::bit_ceil(options.max_send_wr);
  const std::uint64_t receives = std::bit_ceil(options.max_recv_wr);
  const soft::QpGeometry geometry = soft::geometry_for(options.max_send_wr, options.max_recv_wr);
  pools.add({.name = "queue pair",
             .bytes_each = sizeof(soft::SoftQp) + soft::kMaxOffers * sizeof(soft::Offer) +
                           soft::ImportCounts::kReserved * sizeof(soft::ImportCounts::Entry)});
  const auto as_used = [&](const char* name, std::uint64_t count, std::uint64_t bytes_each) {
    pools.add({.name = name, .kind = host::PoolKind::kAsUsed, .count = count, .bytes_each = bytes_each});
  };
  as_used("receives", receives,
          sizeof(soft::ReceiveWqe) + std::max(options.max_recv_sge, 1U) * sizeof(ibv_sge) + sizeof(soft::Cqe));
  as_used("ends of the ring's data", geometry.slots, sizeof(std::uint64_t));
  as_used("sends that wait", sends, sizeof(soft::SendWqe) + std::max(options.max_send_sge, 1U) * sizeof(ibv_sge));
  as_used("inline data of sends that wait", sends, std::max(options.max_inline, 64U));
  as_used("memory that the peer reads", 1, geometry.total_bytes());
  return pools;
}

host::Footprint cq_footprint(Kind kind, std::uint32_t cqe) {
  host::Footprint pools;
  if (kind != Kind::kSoft) return pools;
  pools.add({.name = "completion queue", .bytes_each = sizeof(soft::SoftCq)});
  pools.add({.name = "completions",
             .kind = host::PoolKind::kAsUsed,
             .count = std::bit_ceil(cqe),
             .bytes_each = sizeof(soft::Cqe)});
  return pools;
}

host::Footprint mw_footprint(Kind kind) {
  host::Footprint pools;
  // Includes its place in the list of windows.
  if (kind == Kind::kSoft) pools.add({.name = "window", .bytes_each = sizeof(soft::SoftMw) + sizeof(soft::SoftMw*)});
  return pools;
}

}  // namespace verbena::nic
