// Access to memory of peers that is in no arena, and so is not mapped here.
//
// READ and WRITE go through process_vm_readv and process_vm_writev, by a thread of their own (copier.hpp), while the
// QP's access word is odd, as for any other access. Where the kernel refuses those (yama, seccomp, another user) or
// that thread is stuck, and for atomics, which must be the target's own instructions, the target's service thread does
// the work: its control thread, which sleeps until a peer's message comes. The initiator's shared memory has the
// request and the bytes of a WRITE, the target's has the answer and the bytes of a READ (ServiceBlock): only its owner
// writes each. The target then checks key, range and rights under the mutex that dereg_mr takes. An initiator that is
// gone leaves nothing to wait for; a target that is gone, or does not answer within the QP's retries, fails the work
// request.
#include "base/ticks.hpp"
#include "nic/soft/copier.hpp"
#include "nic/soft/path.hpp"

namespace verbena::nic::soft {

namespace {

using namespace std::chrono_literals;

/// A post waits so long for the copier, as copies take that are not long.
constexpr auto kPatience = 20us;

[[nodiscard]] ServiceOp operation_of(ibv_wr_opcode opcode) noexcept {
  switch (opcode) {
    case IBV_WR_RDMA_READ: return ServiceOp::kRead;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return ServiceOp::kCompareSwap;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return ServiceOp::kFetchAdd;
    default: return ServiceOp::kWrite;
  }
}

[[nodiscard]] bool is_atomic(ServiceOp operation) noexcept {
  return operation == ServiceOp::kCompareSwap || operation == ServiceOp::kFetchAdd;
}

/// The rights that `operation` needs at the peer.
[[nodiscard]] std::uint32_t rights_for(ServiceOp operation) noexcept {
  if (is_atomic(operation)) return IBV_ACCESS_REMOTE_ATOMIC;
  return operation == ServiceOp::kRead ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
}

struct Target {
  std::uint64_t address = 0;  // An IO virtual address of the key.
  std::uint32_t rkey = 0;
  std::uint64_t length = 0;
};

[[nodiscard]] Target target_of(const ibv_send_wr& wr) noexcept {
  if (is_atomic(operation_of(wr.opcode))) return {wr.wr.atomic.remote_addr, wr.wr.atomic.rkey, 8};
  return {wr.wr.rdma.remote_addr, wr.wr.rdma.rkey, total_length(wr)};
}

/// Like remote_address, for an import that is not mapped: the address in the peer's process, or nothing.
[[nodiscard]] std::optional<std::uint64_t> outside_address(const RemoteQp& remote, const Target& target,
                                                           std::uint32_t needed) noexcept {
  if (!remote.is_ready() || !is_outside(remote, target.rkey)) return std::nullopt;
  const Import& key = remote.peer->imports[key_index(target.rkey)];
  if (key.live->load(std::memory_order_acquire) != key.word.load(std::memory_order_relaxed)) return std::nullopt;
  const std::uint64_t offset = target.address - key.iova;
  if ((key.domain != remote.pd && key.domain != remote.window_domain) || target.address < key.iova ||
      offset > key.length || target.length > key.length - offset ||
      ((key.access >> kOutsideShift) & remote.access & needed) != needed) {
    return std::nullopt;
  }
  return reinterpret_cast<std::uint64_t>(key.base) + offset;
}

/// Gives the copier, which this QP holds, its READ or WRITE. False: the peer would refuse it.
bool begin_copy(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline, Copier& copier) noexcept {
  const bool is_read = wr.opcode == IBV_WR_RDMA_READ;
  const Target target = target_of(wr);
  PeerWord<std::uint64_t>& word = qp.own->access.word;
  word.store(++qp.access_count, std::memory_order_release);  // As an AccessGuard.
  fences::access_before_key();
  const std::uint64_t even = ++qp.access_count;
  const auto there = outside_address(remote, target, is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
  Copier::Job& job = copier.job();
  job.count = 0;
  const auto add = [&](const ibv_sge& sge) {
    const std::byte* const at = sge_address(qp, sge, false, 0);
    job.parts[job.count++] = {.addr = reinterpret_cast<std::uint64_t>(at), .length = sge.length, .lkey = sge.lkey};
    return at != nullptr;
  };
  if (is_inline) {
    gather(qp, wr, true, 0, copier.inline_data(), target.length);
    job.count = 1;
    job.parts[0] = {.addr = reinterpret_cast<std::uint64_t>(copier.inline_data()),
                    .length = static_cast<std::uint32_t>(target.length),
                    .lkey = 0};
  }
  // A region may have been deregistered since the check.
  if (!there || (!is_inline && !std::ranges::all_of(sges_of(wr), add))) {
    word.store(even, std::memory_order_release);
    return false;
  }
  job.there = *there;
  job.length = target.length;
  job.word.store(&word, std::memory_order_release);  // The import is read: see quiesce_own.
  job.even = even;
  job.is_read = is_read;
  copier.post();
  return true;
}

/// Writes the next request, or again the one that the socket did not take, and tells the peer.
void ask_service(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline,
                 const Target& target) noexcept {
  ServiceBlock& own = *qp.service;
  if (!qp.peer_work.is_asking) {
    ServiceTask task{.op = operation_of(wr.opcode),
                     .rkey = target.rkey,
                     .address = target.address + qp.peer_work.served_bytes,
                     .length = std::min<std::uint64_t>(target.length - qp.peer_work.served_bytes, kServiceBytes)};
    if (is_atomic(task.op)) {
      task.compare_add = wr.wr.atomic.compare_add;
      task.swap = wr.wr.atomic.swap;
    }
    own.ask.write(task);
    if (task.op == ServiceOp::kWrite) gather(qp, wr, is_inline, qp.peer_work.served_bytes, own.written, task.length);
    own.ask.number.store(++qp.peer_work.asked, std::memory_order_release);
    qp.peer_work.is_asking = true;
    qp.peer_work.is_ask_sent = false;
    ++thread_counters.services;
  }
  if (qp.peer_work.is_ask_sent) return;
  qp.peer_work.is_ask_sent = tell_nic(remote.peer->socket.get(), RequestType::kServe, remote);
}

}  // namespace

bool is_outside(const RemoteQp& remote, std::uint32_t rkey) noexcept {
  const std::uint32_t index = key_index(rkey);
  if ((rkey & kRemoteKeyBit) == 0 || index >= remote.peer->imports.size()) return false;
  const Import& key = remote.peer->imports[index];
  return key.rkey.load(std::memory_order_acquire) == rkey && key.memory_id == kProcessMemory;
}

bool is_served(const SoftQp& qp, const RemoteQp& remote) noexcept {
  return remote.service->answer.number.load(std::memory_order_acquire) == qp.peer_work.asked;
}

std::optional<Ran> continue_copy(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline,
                                 std::uint64_t sq_index, std::uint64_t patience) noexcept {
  Copier& copier = *qp.path.peer->copier;
  for (const std::uint64_t start = ticks_now(); !copier.is_done();) {
    copier.look_again();
    if (copier.is_done() || ticks_now() - start < patience) continue;
    copier.hurry();
    // Each piece is progress, so the peer's time begins again.
    if (copier.has_progress()) qp.pending.stall = SoftQp::Stall::kNone;
    return stall(qp, SoftQp::Stall::kService);
  }
  const Copied copied = copier.outcome();
  qp.peer_work.is_copying = false;
  copier.release();
  switch (copied) {
    case Copied::kAll: return std::nullopt;
    case Copied::kFault: return refuse_remote(qp, remote, wr, sq_index);
    case Copied::kGone: return stall(qp, SoftQp::Stall::kPeer);  // The news of its end comes soon.
    case Copied::kDenied: break;
  }
  remote.peer->denies_copies.store(true, std::memory_order_relaxed);
  return run_outside(qp, remote, wr, is_inline, sq_index, nullptr);
}

void abandon_copy(SoftQp& qp) noexcept {
  if (std::exchange(qp.peer_work.is_copying, false)) qp.path.peer->copier->abandon(qp.storage.mapping);
}

bool arm_copy(SoftQp& qp) noexcept {
  // Who waits for another queue pair's turn to end polls: that one is done soon, or stuck.
  return qp.peer_work.is_copying ? qp.path.peer->copier->arm(qp) : !qp.peer_work.is_asking;
}

std::optional<Ran> run_outside(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline,
                               std::uint64_t sq_index, std::uint64_t* old) noexcept {
  const Target target = target_of(wr);
  if (!qp.peer_work.is_asking && qp.peer_work.served_bytes == 0) {
    Copier* const copier = remote.peer->copier.get();
    if (old == nullptr && copier != nullptr && !remote.peer->denies_copies.load(std::memory_order_relaxed)) {
      if (copier->claim()) {
        qp.peer_work.is_copying = begin_copy(qp, remote, wr, is_inline, *copier);
        if (qp.peer_work.is_copying) return continue_copy(qp, remote, wr, is_inline, sq_index, ticks_in(kPatience));
        copier->release();
        return refuse_remote(qp, remote, wr, sq_index);
      }
      if (!copier->is_stuck()) {
        // Another queue pair has it. While that one makes progress, this one's time does not begin.
        qp.pending.stall = SoftQp::Stall::kNone;
        return stall(qp, SoftQp::Stall::kService);
      }
    }
    const AccessGuard guard(qp);
    if (!outside_address(remote, target, rights_for(operation_of(wr.opcode))))
      return refuse_remote(qp, remote, wr, sq_index);
  }
  if (!qp.peer_work.is_asking || !is_served(qp, remote)) {
    ask_service(qp, remote, wr, is_inline, target);
    return stall(qp, SoftQp::Stall::kService);
  }
  // Reads each of the peer's words once; takes the bytes as they are.
  qp.peer_work.is_asking = false;
  const ServiceBlock& theirs = *remote.service;
  constexpr auto kRelaxed = std::memory_order_relaxed;  // The number was loaded before.
  if (theirs.answer.answer.load(kRelaxed) != ServiceAnswer::kDone) {
    qp.peer_work.served_bytes = 0;
    return refuse_remote(qp, remote, wr, sq_index);
  }
  const std::uint64_t length = qp.service->ask.length.load(kRelaxed);
  if (old != nullptr) *old = theirs.answer.old.load(kRelaxed);
  if (wr.opcode == IBV_WR_RDMA_READ) {
    const CopyByNic copy(true);
    scatter_read(qp, wr, qp.peer_work.served_bytes, theirs.read, length);
  }
  qp.peer_work.served_bytes += length;
  if (qp.peer_work.served_bytes < target.length) {
    ask_service(qp, remote, wr, is_inline, target);
    // Each answer is progress, so the peer's time begins again.
    qp.pending.stall = SoftQp::Stall::kNone;
    return stall(qp, SoftQp::Stall::kService);
  }
  qp.peer_work.served_bytes = 0;
  return std::nullopt;
}

[[gnu::noinline]] ServiceTask ServiceBlock::Ask::read() const noexcept {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  return {.op = op.load(kRelaxed),
          .rkey = rkey.load(kRelaxed),
          .address = address.load(kRelaxed),
          .length = length.load(kRelaxed),
          .compare_add = compare_add.load(kRelaxed),
          .swap = swap.load(kRelaxed)};
}

// --- the target: its control thread ---------------------------------------------------------------------------------

/// Where the bytes that the peer asks for are, if it has the right to them. `ask` is a private copy; the key's entry is
/// this process's own.
std::byte* SoftNic::address_for_peer(const SoftQp& qp, const ServiceTask& ask, std::uint32_t needed) noexcept {
  const std::uint32_t index = key_index(ask.rkey);
  if ((ask.rkey & kRemoteKeyBit) == 0 || index == 0 || index >= options_.max_mr) return nullptr;
  const KeyEntry& entry = shared_key(index);
  if (static_cast<std::uint32_t>(entry.live.load(std::memory_order_acquire)) != ask.rkey) return nullptr;
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const std::uint32_t domain = entry.domain.load(kRelaxed);
  const std::uint64_t iova = entry.iova.load(kRelaxed), length = entry.length.load(kRelaxed);
  const std::uint64_t offset = ask.address - iova;
  if (entry.memory_id.load(kRelaxed) != kProcessMemory ||
      (domain != qp.spd->id && domain != window_domain(qp.qp_num)) || ask.address < iova || offset > length ||
      ask.length > length - offset || (entry.access.load(kRelaxed) & qp.path.access_flags & needed) != needed) {
    return nullptr;
  }
  return reinterpret_cast<std::byte*>(entry.memory_offset.load(kRelaxed) + offset);
}

/// Returns whether there was a request.
bool SoftNic::serve_outside(SoftQp& qp) noexcept {
  RemoteQp* const remote = qp.remote.load(std::memory_order_acquire);
  if (remote == nullptr || qp.state_now() == IBV_QPS_ERR) return false;
  const ServiceBlock& theirs = *remote->service;
  ServiceBlock& own = *qp.service;
  const std::uint64_t number = theirs.ask.number.load(std::memory_order_acquire);
  if (number == remote->served) return false;
  remote->served = number;
  const ServiceTask ask = theirs.ask.read();  // A private copy: the peer can write the shared one at any time.
  const bool on_word = is_atomic(ask.op);
  const bool is_known = on_word || ask.op == ServiceOp::kRead || ask.op == ServiceOp::kWrite;
  std::byte* at = nullptr;
  if (is_known && ask.length <= kServiceBytes && (!on_word || ask.length == 8)) {
    at = address_for_peer(qp, ask, rights_for(ask.op));
  }
  if (on_word && reinterpret_cast<std::uintptr_t>(at) % 8 != 0) at = nullptr;
  if (at == nullptr) {
    own.answer.answer.store(ServiceAnswer::kRefused, std::memory_order_relaxed);
  } else {
    own.answer.answer.store(ServiceAnswer::kDone, std::memory_order_relaxed);
    if (ask.op == ServiceOp::kRead) {
      std::memcpy(own.read, at, ask.length);
    } else if (ask.op == ServiceOp::kWrite) {
      std::memcpy(at, theirs.written, ask.length);
    } else {
      std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(at));
      std::uint64_t old = ask.compare_add;
      if (ask.op == ServiceOp::kFetchAdd) {
        old = word.fetch_add(ask.compare_add, std::memory_order_seq_cst);
      } else {
        word.compare_exchange_strong(old, ask.swap, std::memory_order_seq_cst);
      }
      own.answer.old.store(old, std::memory_order_relaxed);
    }
  }
  own.answer.number.store(number, std::memory_order_release);
  ring_credit(*remote);
  return true;
}

}  // namespace verbena::nic::soft
