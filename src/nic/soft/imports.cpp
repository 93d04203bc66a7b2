// Windows of peers: mapped, checked once, and counted; released when the last QP that uses them releases them.
#include "nic/soft/copier.hpp"
#include "nic/soft/path.hpp"
#include "nic/soft/rendezvous.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace verbena::nic::soft {

namespace {

/// Most bytes of address space that one stranger's memory may take, and that of all strangers of one user: an eighth of
/// what a process has.
constexpr std::size_t kMostOfPeer = std::size_t{1} << 41;
constexpr std::size_t kMostOfUser = std::size_t{1} << 44;

/// Most bytes of small pages that a thread which serves others looks at, to see that they are all there: some 15 ms.
constexpr std::size_t kMostLookedAt = std::size_t{1} << 30;

/// Larger memory is not faulted in at its import: the time to connect would grow noticeably, and shared memory faults
/// in 64 KiB around each first touch anyway.
constexpr std::size_t kPopulateBytes = std::size_t{256} << 20;

/// A key's entry as its owner wrote it: copied once, then checked.
struct KeyCopy {
  std::uint64_t word = 0;
  std::uint32_t domain = 0;
  std::uint32_t access = 0;
  std::uint64_t iova = 0;
  std::uint64_t length = 0;
  std::uint64_t memory_id = 0;
  std::uint64_t memory_offset = 0;
};

/// Nothing if the entry does not, or no longer, belong to `rkey`.
[[nodiscard]] std::optional<KeyCopy> copy_key(const KeyEntry& shared, std::uint32_t rkey) noexcept {
  const std::uint64_t word = shared.live.load(std::memory_order_acquire);
  if (static_cast<std::uint32_t>(word) != rkey) return std::nullopt;
  constexpr auto kAcquire = std::memory_order_acquire;
  const KeyCopy copy{.word = word,
                     .domain = shared.domain.load(kAcquire),
                     .access = shared.access.load(kAcquire),
                     .iova = shared.iova.load(kAcquire),
                     .length = shared.length.load(kAcquire),
                     .memory_id = shared.memory_id.load(kAcquire),
                     .memory_offset = shared.memory_offset.load(kAcquire)};
  // A window may be bound again during the copy: the copy is valid only if the word is the same before and after.
  if (shared.live.load(std::memory_order_relaxed) != word) return std::nullopt;
  return copy;
}

[[nodiscard]] bool is_inside(const Window& window, std::uint64_t memory_id, std::uint64_t iova,
                             std::uint64_t length) noexcept {
  return window.memory_id == memory_id && window.length <= length && window.address - iova <= length - window.length;
}

/// Whether a page of the table of a stranger's keys exists, so that reading the entry makes none. It cannot go again.
[[nodiscard]] bool has_entry(const Peer& peer, std::uint32_t index) noexcept {
  if (!peer.is_stranger()) return true;
  std::uint64_t live = 0;  // Unlike a load, this reads zeros from a hole, and leaves it one.
  const auto at = static_cast<off_t>(index * sizeof(KeyEntry) + offsetof(KeyEntry, live));
  return ::pread(peer.key_file.get(), &live, sizeof live, at) == static_cast<ssize_t>(sizeof live) && live != 0;
}

/// Whether this side only reads through the window. Where the importer does not say, its key does.
[[nodiscard]] bool is_only_read(const Window& window, std::uint32_t granted) noexcept {
  return ((window.access != 0 ? window.access : granted) & kRemoteWriters) == 0;
}

[[nodiscard]] bool may_have_holes(const Peer& peer, const Peer::Memory& memory) noexcept {
  return !memory.is_whole && peer.is_stranger();
}

[[nodiscard]] std::unexpected<Error> outside_of_region() noexcept {
  return fail(Status::kOutOfRange, "import_window", 0, "the window is not inside the region that its key names");
}

/// Why a finished answer has no memory; nothing if it has.
[[nodiscard]] std::optional<Error> refusal_of(const Ask& ask) noexcept {
  if (ask.failure) return ask.failure;
  if (ask.reply.answer == Answer::kNotGranted) {
    return format_error(Status::kNotAllowed, "import_window", EACCES,
                        "the peer has not granted the window's memory to this process (Nic::attach and Nic::grant)");
  }
  if (ask.reply.answer == Answer::kOk && ask.received.count == 1) return std::nullopt;
  return format_error(Status::kNotFound, "import_window", 0, "the peer has no memory {}: it has detached it",
                      ask.request.memory_id);
}

}  // namespace

Error punchable(const Peer& peer) noexcept {
  return format_error(
      Status::kProtocol, "import_window", 0,
      "memory of the peer (pid {}, uid {}) has holes, or no seal that forbids them: another user's pages "
      "must all be there, or reading them would cost this process memory",
      peer.process.pid, peer.process.uid);
}

namespace {
/// Returns why the peer's memory does not do for that key and window; nothing if it does.
[[nodiscard]] std::optional<Error> fault_of(const Peer& peer, const Peer::Memory& memory, const Window& window,
                                            const KeyCopy& key) noexcept {
  const std::size_t size = memory.mapping.size();
  if (key.memory_offset > size || key.length > size - key.memory_offset ||
      (!memory.writable && (key.access & kRemoteWriters) != 0)) {
    return format_error(Status::kProtocol, "import_window", 0,
                        "the peer's key names bytes outside of the memory that it handed over");
  }
  if (may_have_holes(peer, memory) && is_only_read(window, key.access)) return punchable(peer);
  return std::nullopt;
}
}  // namespace

/// Maps the memory of a finished answer.
Result<Mapping> SoftNic::map_memory(const Peer& peer, const Ask& ask) const {
  const Reply& reply = ask.reply;
  if (peer.is_stranger()) {
    std::size_t of_peer = 0, of_user = 0;
    for (const auto& other : peers_) {
      if (other->process.uid != peer.process.uid) continue;
      for (const auto& memory : other->memories) {
        of_user += memory->mapping.size();
        if (other.get() == &peer) of_peer += memory->mapping.size();
      }
    }
    if (reply.size > kMostOfPeer - of_peer || reply.size > kMostOfUser - of_user) {
      return fail(Status::kLimit, "import_window", ENOMEM,
                  "memory of {} bytes of the peer (pid {}, uid {}): another user's process may have {} bytes mapped "
                  "here, and all of its user's {}",
                  reply.size, peer.process.pid, peer.process.uid, kMostOfPeer, kMostOfUser);
    }
  }
  return Mapping::of_peer(ask.received.fds[0].get(), reply.size,
                          reply.writable != 0 ? Mapping::Mode::kReadWrite : Mapping::Mode::kRead);
}

/// The peer's memory of that number, mapped; kAgain until the peer has answered.
Result<Peer::Memory*> SoftNic::memory_of_peer(const SoftQp& qp, Peer& peer, std::uint64_t memory_id, Rest& rest) {
  const auto with_id = [&](const auto& entry) { return entry->id == memory_id; };
  auto at = std::find_if(peer.memories.begin(), peer.memories.end(), with_id);
  if (at == peer.memories.end()) {
    at = peer.memories.insert(at, std::make_unique<Peer::Memory>());
    (*at)->id = memory_id;
  }
  Peer::Memory& memory = **at;
  if (memory.mapping) return &memory;
  const bool is_new = std::find(memory.waiting.begin(), memory.waiting.end(), &qp) == memory.waiting.end();
  if (is_new) memory.waiting.push_back(&qp);
  // An earlier refusal may no longer hold: a grant may have come since.
  if (memory.ask == nullptr || (is_new && memory.ask->is_over && refusal_of(*memory.ask))) {
    memory.ask = std::make_shared<Ask>();
    memory.ask->request.type = RequestType::kMemory;
    memory.ask->request.my_gid = gid_;
    memory.ask->request.memory_id = memory_id;
    ask(peer, memory.ask);
  }
  if (!memory.ask->is_over) return not_yet("import_window");
  const Reply reply = memory.ask->reply;
  const bool can_be_populated = reply.is_populated != 0 && reply.size <= kPopulateBytes;
  std::optional<Error> why = refusal_of(*memory.ask);
  if (!why && !memory.ask->is_whole && (peer.is_stranger() || can_be_populated)) {
    rest.unproven = memory.ask;
    return not_yet("import_window");
  }
  if (!why) {
    auto mapping = map_memory(peer, *memory.ask);
    if (!mapping) why = mapping.error();
    if (mapping) memory.mapping = std::move(*mapping);
  }
  if (why) {
    stop_asking(qp, peer);
    return std::unexpected(*why);
  }
  memory.is_whole = memory.ask->is_whole.value_or(false);
  memory.ask.reset();
  memory.waiting.clear();
  memory.writable = reply.writable != 0;
  if (memory.is_whole && can_be_populated) {
    rest.data = memory.mapping.data();
    rest.size = memory.mapping.size();
    rest.writable = memory.writable;
  }
  return &memory;
}

/// Ends the QP's waiting for memory of the peer.
void SoftNic::stop_asking(const SoftQp& qp, Peer& peer) noexcept {
  std::erase_if(peer.memories, [&](const auto& memory) {
    std::erase(memory->waiting, &qp);
    if (memory->mapping || !memory->waiting.empty()) return false;
    drop_ask(peer, *memory->ask);
    return true;
  });
}

/// One attempt; kAgain until the peer has answered, and while `rest.unproven` is set.
Result<void> SoftNic::try_import(SoftQp& qp, const Window& window, Rest& rest) {
  if (qp.path.peer == nullptr) {
    return fail(Status::kBadArgument, "import_window", EINVAL, "the queue pair is not in RTR yet: it has no peer");
  }
  Peer& peer = *qp.path.peer;
  if (peer.dead.load()) return fail(Status::kPeerLost, "import_window", 0, "the peer's process is gone");
  const std::uint32_t index = key_index(window.rkey);
  if ((window.rkey & kRemoteKeyBit) == 0 || index == 0 || index >= peer.key_entries) {
    return fail(Status::kOutOfRange, "import_window", EINVAL, "{:#x} is not a remote key of that peer", window.rkey);
  }
  Import& import = peer.imports[index];
  const auto remember = [&] {
    qp.path.imported.add(index);
    ++import.uses;
  };
  if (import.rkey.load() == window.rkey && import.live->load(std::memory_order_acquire) == import.word.load()) {
    if (!is_inside(window, import.memory_id, import.iova, import.length)) return outside_of_region();
    const auto memory = std::ranges::find(peer.memories, import.memory_id, &Peer::Memory::id);
    if (memory != peer.memories.end() && may_have_holes(peer, **memory) && is_only_read(window, import.access))
      return std::unexpected(punchable(peer));
    remember();
    return {};
  }
  const KeyEntry& shared = reinterpret_cast<const KeyEntry*>(peer.keys.data())[index];
  const std::optional<KeyCopy> key = has_entry(peer, index) ? copy_key(shared, window.rkey) : std::nullopt;
  if (!key) {
    return fail(Status::kNotFound, "import_window", 0, "the peer has revoked the window's key {:#x}", window.rkey);
  }
  if (!is_inside(window, key->memory_id, key->iova, key->length)) return outside_of_region();
  const bool is_mapped = key->memory_id != kProcessMemory;
  Peer::Memory* memory = nullptr;
  if (is_mapped) {
    VERBENA_ASSIGN(memory, memory_of_peer(qp, peer, key->memory_id, rest));
    if (const std::optional<Error> why = fault_of(peer, *memory, window, *key); why) {
      rest = {};
      if (memory->uses == 0)
        forget(peer, std::ranges::find(peer.memories, memory, &std::unique_ptr<Peer::Memory>::get));
      return std::unexpected(*why);
    }
  }
  if (!is_mapped) find_copier(peer);
  // Drops a revoked predecessor, which may have been the only user of the memory.
  if (memory != nullptr) ++memory->uses;
  if (import.rkey.load() != 0 && import.word.load() != key->word) drop_import(peer, index);
  if (import.rkey.load() == 0) {
    import.domain = key->domain;
    import.word.store(key->word, std::memory_order_relaxed);
    import.iova = key->iova;
    import.length = key->length;
    // If it is not mapped, this is no address of this process; `access` hides it from the data path.
    import.base =
        is_mapped ? memory->mapping.data() + key->memory_offset : reinterpret_cast<std::byte*>(key->memory_offset);
    import.live = &shared.live;
    import.access = is_mapped ? key->access : key->access << kOutsideShift;
    import.memory_id = key->memory_id;
    import.uses = 0;
    import.rkey.store(window.rkey, std::memory_order_release);
    if (memory != nullptr) ++memory->uses;
    ++objects_.imports;
  }
  if (memory != nullptr) --memory->uses;
  remember();
  return {};
}

Result<void> SoftNic::import_window(ibv_qp* base, const Window& window, Deadline deadline) {
  auto& qp = *static_cast<SoftQp*>(base);
  Lock lock(*this);
  for (;;) {
    Rest rest;
    const Result<void> imported = try_import(qp, window, rest);
    if (rest.unproven != nullptr) {
      const int fd = rest.unproven->received.fds[0].get();
      const std::size_t size = rest.unproven->reply.size;
      const bool is_of_stranger = qp.path.peer->is_stranger();
      if (is_poll(deadline) && is_of_stranger && size > kMostLookedAt && !is_huge(fd)) {
        stop_asking(qp, *qp.path.peer);
        return fail(
            Status::kLimit, "import_window", 0,
            "another user's memory of {} bytes of small pages: at most {} are looked at in a thread that serves "
            "others; use huge pages",
            size, kMostLookedAt);
      }
      lock.unlock();
      const bool is_proven = is_whole(fd, size, is_of_stranger);
      lock.lock();
      rest.unproven->is_whole = is_proven;
      continue;
    }
    const bool is_waiting = !imported && imported.error().status() == Status::kAgain;
    if (is_poll(deadline)) return imported;  // A thread that must not wait serves others: it faults nothing in.
    if (!is_waiting) {
      lock.release();
      // Faults it in now, not on the data path. Nobody waits for it: if another thread unmaps the memory, it fails.
      if (rest.data != nullptr) {
        ::madvise(rest.data, rest.size, rest.writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
      }
      return imported;
    }
    if (await_answer(lock, deadline)) continue;
    stop_asking(qp, *qp.path.peer);
    return no_answer(*qp.path.peer);
  }
}

/// Gives the peer a copier before its first import of memory outside of arenas. Without one its service thread copies.
void SoftNic::find_copier(Peer& peer) {
  if (std::exchange(peer.has_outside, true)) return;
  auto started = Copier::start(peer.process, peer.pidfd ? peer.pidfd.get() : -1, control_);
  if (started) peer.copier = std::move(*started);
}

/// Waits until no QP of this process is inside an access to `peer` that began before the call. A copier, which may be
/// inside for as long as the peer likes, uses nothing of the import.
void SoftNic::quiesce_own(const Peer& peer) noexcept {
  barrier_this_process();
  for (auto& [number, qp] : qps_) {
    if (qp->path.peer != &peer || qp->own == nullptr) continue;
    const std::uint64_t seen = qp->own->access.word.load(std::memory_order_acquire);
    if (seen % 2 == 0) continue;
    const auto is_copier = [&] { return peer.copier != nullptr && peer.copier->is_inside(qp->own->access.word); };
    // Bounded: an access is one copy by a thread of this process, in memory that is mapped.
    while (qp->own->access.word.load(std::memory_order_acquire) == seen && !is_copier()) std::this_thread::yield();
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
  if (at != peer.memories.end() && --(*at)->uses == 0) forget(peer, at);
}

void SoftNic::forget(Peer& peer, std::vector<std::unique_ptr<Peer::Memory>>::iterator memory) noexcept {
  free_later(gone_.ended.memories, std::move(*memory));
  peer.memories.erase(memory);
}

Result<void> SoftNic::release_window(ibv_qp* base, const Window& window) {
  auto& qp = *static_cast<SoftQp*>(base);
  const Lock lock(*this);
  const std::uint32_t index = key_index(window.rkey);
  VERBENA_TRY(take_import(qp.path.imported, index));
  Import& import = qp.path.peer->imports[index];
  if (import.uses > 0 && --import.uses == 0) drop_import(*qp.path.peer, index);
  return {};
}

void SoftNic::release_imports(SoftQp& qp) noexcept {
  for (const auto& [index, count] : qp.path.imported) {
    Import& import = qp.path.peer->imports[index];
    const std::uint32_t gone = std::min(import.uses, count);
    import.uses -= gone;
    if (gone != 0 && import.uses == 0) drop_import(*qp.path.peer, index);
  }
  qp.path.imported.clear();
}

}  // namespace verbena::nic::soft
