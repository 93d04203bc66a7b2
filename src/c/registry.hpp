// Registered memory of users: what a listener or a connection has registered under one protection domain, the names it
// is published under, and its physical addresses.
#pragma once

#include "nic/nic.hpp"
#include "nic/registered_arena.hpp"
#include "remote/physical.hpp"

#include <verbena/rdma.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::c {

class Conn;

/// What IBV_ACCESS_REMOTE_* an RdmaAccess is, and back. \thread any  \alloc none
[[nodiscard]] std::uint32_t verbs_access_of(std::uint32_t access) noexcept;
[[nodiscard]] std::uint32_t access_of(std::uint32_t verbs_access) noexcept;

/// A local key, and the addresses it is good for.
struct LocalKey {
  std::uint64_t begin = 0;
  std::uint64_t length = 0;
  std::uint32_t lkey = 0;
  [[nodiscard]] bool covers(std::uint64_t address, std::uint64_t bytes, std::uint32_t key) const noexcept {
    const std::uint64_t offset = address - begin;
    return key == lkey && address >= begin && offset <= length && bytes <= length - offset;
  }
};

/// Everything has an owner: a connection, whose peer may use it; or null, the listener, and all peers may. Who asks is
/// a connection: it sees its own and the listener's. \thread any  \alloc setup
class Registry {
 public:
  Registry(nic::Nic& nic, ibv_pd* pd) noexcept : nic_(nic), pd_(pd) {}
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// Allocates, zeroed, and registers with all rights that the device has. The peer is granted it by `grant`; To::
  /// kNobody: later, by Nic::grant. Valid until it is removed.
  [[nodiscard]] Result<const RdmaMemory*> allocate(const Conn* owner, std::size_t size, const nic::Grant& grant);
  /// Registers memory of the user's own, with rights of RdmaAccess.
  [[nodiscard]] Result<const RdmaMemory*> add(const Conn* owner, void* address, std::size_t length,
                                              std::uint32_t access);
  /// Takes it back, with its names and physical addresses. Errors: kBadArgument (not this owner's), kTimedOut (as
  /// Nic::dereg_mr; allocated memory is in quarantine).
  [[nodiscard]] Result<void> remove(const Conn* owner, const RdmaMemory* memory, Deadline deadline);
  /// Everything of an owner that goes.
  void remove_all(const Conn* owner) noexcept;

  /// The registration of `lkey`, as `asker` sees it; none when there is none. \alloc none
  [[nodiscard]] std::optional<LocalKey> find_local(const Conn* asker, std::uint32_t lkey) noexcept;
  /// Grows whenever something is removed or published: who keeps a LocalKey, or an unanswered name, asks again.
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

  /// Publishes memory of this owner, or takes the name back (null). Errors: kBadArgument (a name of 1 to 64 bytes; not
  /// this owner's memory), kBusy (the name is taken), kNotFound (nothing to take back).
  static constexpr std::size_t kMaxNameBytes = 64;
  [[nodiscard]] Result<void> publish(const Conn* owner, std::string_view name, const RdmaMemory* memory);
  /// What `asker`'s peer asks for.
  [[nodiscard]] std::optional<RdmaWindow> find_name(const Conn* asker, std::string_view name) noexcept;
  [[nodiscard]] std::optional<RdmaWindow> find_key(const Conn* asker, std::uint32_t rkey) noexcept;

  /// Exports memory by physical address to the asker's peer: the table to tell it. Errors: those of PageMap and
  /// remote::PhysicalExport, kBadArgument (not memory that the asker sees).
  [[nodiscard]] Result<std::vector<std::byte>> export_physical(const Conn* asker, const RdmaMemory* memory);
  /// Under which `asker` exported a byte.
  [[nodiscard]] std::optional<std::uint64_t> physical_of(const Conn* asker, const void* at) noexcept;

 private:
  struct Export {
    const Conn* by;
    remote::PhysicalExport table;
  };
  struct Region {
    const Conn* owner = nullptr;
    RdmaMemory told{};
    nic::RegisteredArena arena;  ///< Of what was allocated.
    nic::Mr own;                 ///< Of the user's own.
    std::vector<Export> exports;
    [[nodiscard]] bool is_seen_by(const Conn* asker) const noexcept { return owner == nullptr || owner == asker; }
  };
  struct Name {
    const Conn* owner;
    std::string name;
    const Region* region;
  };

  [[nodiscard]] const RdmaMemory* keep(std::unique_ptr<Region> region, const ibv_mr* mr, std::size_t length,
                                       std::uint32_t access);
  [[nodiscard]] Region* find(const Conn* owner, const RdmaMemory* memory) noexcept;
  [[nodiscard]] static RdmaWindow window_of(const Region& region) noexcept;

  nic::Nic& nic_;
  ibv_pd* const pd_;
  std::atomic<std::uint64_t> generation_{0};
  std::mutex mutex_;  ///< Of what follows.
  std::vector<std::unique_ptr<Region>> regions_;
  std::vector<Name> names_;
};

}  // namespace verbena::c
