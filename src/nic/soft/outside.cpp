// Access to memory of peers that is in no arena, and so is not mapped here.
//
// READ and WRITE go through process_vm_readv and process_vm_writev, while the QP's access word is odd, as for any other
// access. Where the kernel refuses those (yama, seccomp, another user), and for atomics, which must be the target's own
// instructions, the target's service thread does the work: its control thread, which sleeps until a peer's message
// comes. The initiator's shared memory has the request and the bytes of a WRITE, the target's has the answer and the
// bytes of a READ (ServiceBlock): only its owner writes each. The target then checks key, range and rights under the
// mutex that dereg_mr takes. An initiator that is gone leaves nothing to wait for; a target that is gone, or does not
// answer within the QP's retries, fails the work request.
#include "nic/soft/path.hpp"

#include <sys/uio.h>

#include <array>
#include <cerrno>

namespace verbena::nic::soft {

namespace {

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

enum class Copied : std::uint8_t { kAll, kDenied, kFault, kGone };

/// One READ or WRITE by the kernel. Continues partial transfers where they ended, until the kernel moves nothing more.
Copied copy_by_kernel(const SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline,
                      std::uint64_t there) noexcept {
  const bool is_read = wr.opcode == IBV_WR_RDMA_READ;
  std::uint64_t done = 0;
  const std::uint64_t length = total_length(wr);
  while (done < length) {
    std::array<iovec, kMaxSge> local{};
    std::size_t parts = 0;
    const auto add = [&](const ibv_sge& sge, std::uint64_t offset, std::size_t bytes) {
      std::byte* const at = sge_address(qp, sge, is_inline, 0);
      if (at != nullptr) local[parts++] = {at + offset, bytes};
      return at != nullptr;
    };
    if (!for_parts(sges_of(wr), done, length - done, add)) return Copied::kFault;  // Deregistered since the check.
    const iovec far{reinterpret_cast<void*>(there + done), length - done};
    const pid_t pid = remote.peer->process.pid;  // From the kernel, by SO_PEERCRED.
    // The number may be reused once the peer's process is gone, but not between this check and the copy.
    if (remote.peer->pidfd && is_signalled(remote.peer->pidfd.get())) return Copied::kGone;
    ++thread_counters.copies;
    const ssize_t moved = is_read ? ::process_vm_readv(pid, local.data(), parts, &far, 1, 0)
                                  : ::process_vm_writev(pid, local.data(), parts, &far, 1, 0);
    if (moved > 0) {
      done += static_cast<std::uint64_t>(moved);
    } else if (moved == 0 || errno == EFAULT) {
      return Copied::kFault;
    } else if (errno == ESRCH) {
      return Copied::kGone;
    } else if (errno != EINTR) {
      return Copied::kDenied;
    }
  }
  return Copied::kAll;
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

std::optional<Ran> run_outside(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline,
                               std::uint64_t sq_index, std::uint64_t* old) noexcept {
  const Target target = old != nullptr ? Target{wr.wr.atomic.remote_addr, wr.wr.atomic.rkey, 8}
                                       : Target{wr.wr.rdma.remote_addr, wr.wr.rdma.rkey, total_length(wr)};
  if (!qp.peer_work.is_asking && qp.peer_work.served_bytes == 0) {
    const AccessGuard guard(qp);
    const auto there = outside_address(remote, target, rights_for(operation_of(wr.opcode)));
    if (!there) return refuse_remote(qp, remote, wr, sq_index);
    if (old == nullptr && !remote.peer->denies_copies.load(std::memory_order_relaxed)) {
      const CopyByNic copy(wr.opcode == IBV_WR_RDMA_READ);  // A system call is no fence.
      switch (copy_by_kernel(qp, remote, wr, is_inline, *there)) {
        case Copied::kAll: return std::nullopt;
        case Copied::kFault: return refuse_remote(qp, remote, wr, sq_index);
        case Copied::kGone: return stall(qp, SoftQp::Stall::kPeer);  // The news of its end comes soon.
        case Copied::kDenied: remote.peer->denies_copies.store(true, std::memory_order_relaxed); break;
      }
    }
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

void SoftNic::serve_outside(SoftQp& qp) noexcept {
  RemoteQp* const remote = qp.remote.load(std::memory_order_acquire);
  if (remote == nullptr || qp.state_now() == IBV_QPS_ERR) return;
  const ServiceBlock& theirs = *remote->service;
  ServiceBlock& own = *qp.service;
  const std::uint64_t number = theirs.ask.number.load(std::memory_order_acquire);
  if (number == remote->served) return;
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
}

}  // namespace verbena::nic::soft
