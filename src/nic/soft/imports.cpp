// Windows of peers: mapped, checked once, and counted; released when the last QP that uses them releases them.
#include "nic/soft/path.hpp"

#include <sys/mman.h>

namespace verbena::nic::soft {

namespace {

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

/// The peer's memory of that number, mapped; kAgain until the peer has answered.
Result<Peer::Memory*> SoftNic::memory_of_peer(const SoftQp& qp, Peer& peer, std::uint64_t memory_id, Fresh& fresh) {
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
  const bool writable = reply.writable != 0;
  std::optional<Error> why = refusal_of(*memory.ask);
  if (!why) {
    auto mapping = Mapping::of_peer(memory.ask->received.fds[0].get(), reply.size,
                                    writable ? Mapping::Mode::kReadWrite : Mapping::Mode::kRead);
    if (!mapping) why = mapping.error();
    if (mapping) memory.mapping = std::move(*mapping);
  }
  if (why) {
    stop_asking(qp, peer);
    return std::unexpected(*why);
  }
  memory.ask.reset();
  memory.waiting.clear();
  memory.writable = writable;
  if (reply.is_populated != 0) fresh = {memory.mapping.data(), memory.mapping.size(), writable};
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

/// One attempt; kAgain until the peer has answered. Sets `fresh` to what it has mapped.
Result<void> SoftNic::try_import(SoftQp& qp, const Window& window, Fresh& fresh) {
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
    remember();
    return {};
  }
  const KeyEntry& shared = reinterpret_cast<const KeyEntry*>(peer.keys.data())[index];
  const std::optional<KeyCopy> key = copy_key(shared, window.rkey);
  if (!key) {
    return fail(Status::kNotFound, "import_window", 0, "the peer has revoked the window's key {:#x}", window.rkey);
  }
  if (!is_inside(window, key->memory_id, key->iova, key->length)) return outside_of_region();
  const bool is_mapped = key->memory_id != kProcessMemory;
  Peer::Memory* memory = nullptr;
  if (is_mapped) {
    VERBENA_ASSIGN(memory, memory_of_peer(qp, peer, key->memory_id, fresh));
    const std::size_t size = memory->mapping.size();
    if (key->memory_offset > size || key->length > size - key->memory_offset ||
        (!memory->writable && (key->access & kRemoteWriters) != 0)) {
      fresh = {};
      if (memory->uses == 0) std::erase_if(peer.memories, [&](const auto& entry) { return entry.get() == memory; });
      return fail(Status::kProtocol, "import_window", 0,
                  "the peer's key names bytes outside of the memory that it handed over");
    }
  }
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
  std::unique_lock lock(mutex_);
  for (;;) {
    Fresh fresh;
    const Result<void> imported = try_import(qp, window, fresh);
    const bool is_waiting = !imported && imported.error().status() == Status::kAgain;
    if (!is_waiting) {
      lock.unlock();
      // Faults it in now, not on the data path. Beyond this size the time to connect would grow noticeably, and shared
      // memory faults in 64 KiB around each first touch anyway. Nobody waits for it: if another thread unmaps the
      // memory, it fails.
      constexpr std::size_t kPopulateBytes = std::size_t{256} << 20;
      if (fresh.data != nullptr && fresh.size <= kPopulateBytes) {
        ::madvise(fresh.data, fresh.size, fresh.writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
      }
    }
    if (!is_waiting || is_poll(deadline)) return imported;
    if (await_answer(lock, deadline)) continue;
    stop_asking(qp, *qp.path.peer);
    return no_answer(*qp.path.peer);
  }
}

/// Waits until no QP of this process is inside an access to `peer` that began before the call.
void SoftNic::quiesce_own(const Peer& peer) noexcept {
  barrier_this_process();
  for (auto& [number, qp] : qps_) {
    if (qp->path.peer != &peer || qp->own == nullptr) continue;
    const std::uint64_t seen = qp->own->access.word.load(std::memory_order_acquire);
    if (seen % 2 == 0) continue;
    // Bounded: an access is one copy by a thread of this process.
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
