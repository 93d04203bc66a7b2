// Helpers that both APIs use for sessions: places in the peer's memory, owners of memory, and failures in words.
#pragma once

#include "base/failure.hpp"
#include "session/session.hpp"

namespace verbena::api {

[[nodiscard]] constexpr session::Place key_place(std::uint64_t address, std::uint32_t rkey,
                                                 std::uint64_t length) noexcept {
  return {.space = session::TransferCall::Space::kKey, .span = {address, length, rkey}};
}
[[nodiscard]] constexpr session::Place physical_place(std::uint64_t address, std::uint64_t length) noexcept {
  return {.space = session::TransferCall::Space::kPhysical, .span = {address, length, 0}};
}
[[nodiscard]] constexpr session::Change swap_of(std::uint64_t expected, std::uint64_t desired) noexcept {
  return {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired};
}

/// The peer's default window; its length is 0 if the peer has none.
[[nodiscard]] rdma::Window peer_window_of(const session::Session& session) noexcept;
/// Whether the calling thread is the one that makes callbacks.
[[nodiscard]] bool is_in_callback(const session::Session& session) noexcept;

// One name for calls on owners of registered memory: sessions, listeners and nodes name them differently.
[[nodiscard]] inline Result<void> remove_from(session::Session& owner, const session::RegisteredMemory* memory,
                                              Deadline deadline) {
  return owner.home().registrations().remove(&owner, memory, deadline);
}
template <class Owner>
[[nodiscard]] Result<void> remove_from(Owner& owner, const session::RegisteredMemory* memory, Deadline deadline) {
  return owner.remove(memory, deadline);
}
[[nodiscard]] inline Result<const session::RegisteredMemory*> add_to(session::Session& owner,
                                                                     std::span<std::byte> memory, rdma::Access access) {
  return owner.home().registrations().add(&owner, memory, access);
}
template <class Owner>
[[nodiscard]] Result<const session::RegisteredMemory*> add_to(Owner& owner, std::span<std::byte> memory,
                                                              rdma::Access access) {
  return owner.add(memory, access);
}

/// An API's own names in the sentences of `note_transfer`.
struct Terms {
  const char* address;             ///< The place's address.
  const char* length_prefix = "";  ///< Text around its length.
  const char* length_suffix = "";
  const char* find;  ///< The calls that help.
  const char* export_physical;
  const char* complete;
};

/// Remembers the outcome of a transfer; returns `status`. \thread any
Status note_transfer(const session::Session& session, const char* call, Status status, const session::Place& place,
                     const Terms& terms) noexcept;
/// The same for a failure that no argument explains.
Status note_general(const session::Session& session, const char* call, Status status) noexcept;

}  // namespace verbena::api
