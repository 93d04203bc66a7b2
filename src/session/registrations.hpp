// Registered memory of users: memory registered under one protection domain, its published names and its physical
// addresses.
#pragma once

#include "base/threads.hpp"
#include "nic/nic.hpp"
#include "nic/registered_arena.hpp"
#include "session/physical_export.hpp"

#include <verbena/rdma_types.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::session {

/// Converts rights to IBV_ACCESS_REMOTE_*, and back. \thread any  \alloc none
[[nodiscard]] std::uint32_t verbs_access_of(rdma::Access access) noexcept;
[[nodiscard]] rdma::Access access_of(std::uint32_t verbs_access) noexcept;

/// Memory of this side. It belongs to its owner until it is removed.
struct RegisteredMemory {
  std::byte* address = nullptr;
  std::size_t length = 0;
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;
  rdma::Access access = rdma::Access::kLocal;
  std::uint64_t memory_id = 0;

  [[nodiscard]] bool holds(const void* at, std::uint64_t bytes) const noexcept {
    // Wraps around for addresses before it: no memory is that long.
    const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(address);
    return offset <= length && bytes <= length - offset;
  }
  [[nodiscard]] rdma::Window window() const noexcept {
    return {.address = reinterpret_cast<std::uintptr_t>(address),
            .length = length,
            .memory_id = memory_id,
            .rkey = rkey,
            .access = access};
  }
};

/// Memory, a part of it, or none.
struct Part {
  const RegisteredMemory* memory = nullptr;
  std::size_t offset = 0;
  std::size_t length = rdma::kRest;
};

/// The owner of memory: a session, a listener or a node, by its address. Never dereferenced.
using Owner = const void*;
/// The owners whose memory a session uses and offers to its peer: itself, its listener, its node; null: none.
struct Scope {
  Owner self = nullptr;
  Owner listener = nullptr;
  Owner node = nullptr;
  [[nodiscard]] bool sees(Owner owner) const noexcept { return owner == self || owner == listener || owner == node; }
};

/// \thread any  \alloc setup
class Registrations {
 public:
  Registrations(nic::Nic& nic, ibv_pd* pd) noexcept : nic_(nic), pd_(pd) {}
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

  /// Allocates zeroed memory and registers it with all rights that the device has. `grant` says which peer gets access;
  /// To::kNobody: grant it later by Nic::grant.
  [[nodiscard]] Result<const RegisteredMemory*> allocate(Owner owner, std::size_t size, const nic::Grant& grant,
                                                         host::Populate populate = host::Populate::kAll);
  /// Registers memory of the user's own.
  [[nodiscard]] Result<const RegisteredMemory*> add(Owner owner, std::span<std::byte> memory, rdma::Access access);
  /// Takes memory back, with its names and physical addresses. Errors: kBadArgument (not this owner's), kTimedOut (as
  /// Nic::dereg_mr; allocated memory is then in quarantine).
  [[nodiscard]] Result<void> remove(Owner owner, const RegisteredMemory* memory, Deadline deadline);
  /// Removes everything of an owner that is ending.
  void remove_all(Owner owner) noexcept;

  /// The registration of `lkey` that `scope` sees. \alloc none
  [[nodiscard]] std::optional<RegisteredMemory> find_local(const Scope& scope, std::uint32_t lkey) noexcept;
  /// Memory with these rights in which all of `bytes` lies. \alloc none
  [[nodiscard]] std::optional<RegisteredMemory> find_around(const Scope& scope, std::span<const std::byte> bytes,
                                                            rdma::Access rights) noexcept;
  /// Grows whenever something is removed or published: if it has changed, ask again for anything found, or unanswered,
  /// before.
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

  /// Publishes a part of this owner's memory, or takes the name back (none). Errors: kBadArgument (a name of 1 to 64
  /// bytes; not this owner's memory), kOutOfRange, kBusy (the name is taken), kNotFound (nothing to take back).
  static constexpr std::size_t kMaxNameBytes = 64;
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 40;
  [[nodiscard]] Result<void> publish(Owner owner, std::string_view name, const Part& part);
  /// Answers the peer of a session with this scope: the window under a name, or with a key.
  [[nodiscard]] std::optional<rdma::Window> find_name(const Scope& scope, std::string_view name) noexcept;
  [[nodiscard]] std::optional<rdma::Window> find_key(const Scope& scope, std::uint32_t rkey) noexcept;

  /// Exports memory by physical address to the peer of `scope.self`, and returns the table to send. Errors: those of
  /// PageMap and PhysicalExport, kBadArgument (not memory that the scope sees).
  [[nodiscard]] Result<std::vector<std::byte>> export_physical(const Scope& scope, const RegisteredMemory* memory);
  /// The physical address under which `self` exported a byte.
  [[nodiscard]] std::optional<std::uint64_t> physical_of(Owner self, const void* at) noexcept;

 private:
  struct Export {
    Owner by;
    PhysicalExport table;
  };
  struct Region {
    Owner owner = nullptr;
    RegisteredMemory told{};
    nic::RegisteredArena arena;  ///< Allocated memory.
    nic::Mr own;                 ///< Registration of the user's own memory.
    std::vector<Export> exports;
  };
  struct Name {
    Owner owner;
    std::string name;
    const Region* region;
    rdma::Window window;
  };

  [[nodiscard]] const RegisteredMemory* keep(std::unique_ptr<Region> region, const ibv_mr* mr, std::size_t length,
                                             rdma::Access access);
  template <class Fits>
  [[nodiscard]] Region* find(Fits&& fits) noexcept;
  /// The same for a caller without the lock.
  template <class Fits>
  [[nodiscard]] std::optional<RegisteredMemory> find_told(Fits&& fits) noexcept;

  nic::Nic& nic_;
  ibv_pd* const pd_;
  std::atomic<std::uint64_t> generation_{0};
  Mutex mutex_;  ///< Guards the members below.
  std::vector<std::unique_ptr<Region>> regions_;
  std::vector<Name> names_;
};

}  // namespace verbena::session
