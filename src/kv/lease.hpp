// Leases: blocks of the item memory that one client writes its next large values into (LargePut::kAdopt).
#pragma once

#include "channel/connection.hpp"
#include "host/footprint.hpp"
#include "kv/account.hpp"
#include "kv/open_put.hpp"
#include "kv/store.hpp"
#include "kv/wire.hpp"
#include "nic/nic.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::kv {

/// Whether a client can be kept from changing a value once it is published. This needs windows of type 2. Soft-RoCE has
/// them, but a bind behind a send stops its queue pair for good (docs/adr/0011).
[[nodiscard]] constexpr bool can_adopt(const nic::Limits& limits) noexcept {
  return limits.max_mw != 0 && !limits.is_soft_roce;
}

/// Leases of one client at one worker, at most.
[[nodiscard]] constexpr unsigned leases_of(const nic::Limits& limits, const ServerOptions& options) noexcept {
  return options.large_put == LargePut::kAdopt && can_adopt(limits) ? options.client_leases : 0;
}

/// Shared by the leases of all clients of one worker. \thread the worker's
struct LeasePolicy {
  ibv_mr* memory = nullptr;      ///< The items' region, with the right to bind windows. Null: nobody gets a lease.
  unsigned most = 0;             ///< Leases per client.
  std::uint64_t most_bytes = 0;  ///< Bytes of all leases together.
  std::uint64_t longest = 0;     ///< Longest lease in bytes; a power of two.
  std::uint64_t term_ticks = 0;  ///< An unused lease is taken back after this.
  std::uint64_t term_ns = 0;     ///< The same, as clients see it.
  std::uint64_t leases = 0;      ///< Current leases.
  std::uint64_t bytes = 0;       ///< Bytes of their blocks.
  /// A PUT was refused because leases hold the memory: until this time nobody gets one, and leases that are used or end
  /// become free memory.
  std::uint64_t scarce_until_ticks = 0;

  [[nodiscard]] bool is_scarce(std::uint64_t now) const noexcept { return now < scarce_until_ticks; }
};

/// The leases of one client at one worker. Each is a block under a window of type 2, bound on that client's queue pair:
/// nobody else can write it. The client itself no longer can once the invalidation of the window is complete, which is
/// before the block becomes a value or is free again.
///
/// A window's key repeats after 256 bindings. It is valid on one queue pair only, for the lease that has it then: a
/// client that kept an old key reaches only memory that it may write anyway. Windows never change their queue pair.
/// \thread owner of the worker's loop, except creation and open (setup)  \alloc setup
class Leases {
 public:
  struct Lease {
    enum class State : std::uint8_t {
      kNone,       ///< No block.
      kGiven,      ///< The client may write it, and name it once.
      kAdopting,   ///< Named by a PUT; its window is being taken back, then it becomes the value.
      kReturning,  ///< Its window is being taken back, then it becomes free.
    };
    State state = State::kNone;
    bool is_posted = false;  ///< The invalidation is in flight.
    std::uint16_t generation = 0;
    nic::Mw window;
    Store::Block block;
    std::uint64_t bytes = 0;  ///< The block's, even if that is already a value.
    std::uint64_t given_ticks = 0;
    OpenPut put;  ///< The PUT that has named this lease.
  };

  Leases(LeasePolicy& policy, Store& store) noexcept : policy_(policy), store_(store) {}
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;
  ~Leases() { end(nullptr); }

  /// Makes the windows; without this call there are no leases. Later charges each lease to `account`, unless that is
  /// null. Errors: those of Nic::alloc_mw. \thread any  \alloc setup
  [[nodiscard]] Result<void> open(nic::Nic& nic, ibv_pd* pd, Account* account);
  /// The memory that `open` allocates for `most` leases. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, unsigned most);

  /// Leases a block for values as long as this one; send the reply with `told` afterwards. False: the client has its
  /// most leases, all leases together have their most memory, the client's quota is used up, memory is scarce, the
  /// value is too long to be written within a term, or nobody gets leases.
  [[nodiscard]] bool offer(channel::Connection& channel, std::uint64_t value_length, wire::Lease& told) noexcept;
  /// The client's own lease with that id; null: never given, used up, or taken back.
  [[nodiscard]] Lease* find(std::uint32_t id) noexcept;
  /// Starts to take the window back, for kAdopting or kReturning. False: call `post` later.
  bool revoke(channel::Connection& channel, Lease& lease, Lease::State state) noexcept;
  /// Posts the invalidations that had no room. True: none is left.
  bool post(channel::Connection& channel) noexcept;
  /// The lease whose invalidation is complete; `token` is the one in Handler::on_complete.
  [[nodiscard]] Lease& revoked(std::uint64_t token) noexcept { return leases_[token]; }
  /// Gives the revoked lease's block to the client once more, under a new key. False: the block was given back, for
  /// lack of memory or of room in the send queue.
  [[nodiscard]] bool give_again(channel::Connection& channel, Lease& lease, wire::Lease& told) noexcept;
  /// Ends a revoked lease. Its block becomes free, unless it is a value now.
  void close(Lease& lease) noexcept;
  /// Starts to take back leases that the client has not used within the term. False: call `post` later.
  bool expire(channel::Connection& channel, std::uint64_t now) noexcept;
  /// Call when the client is gone, before the channel goes: fails the channel, and frees all blocks once the client
  /// certainly has left them. Null: there is no channel.
  void end(channel::Connection* channel) noexcept;

 private:
  [[nodiscard]] std::uint32_t id_of(const Lease& lease) const noexcept {
    return static_cast<std::uint32_t>(&lease - leases_.data() + 1) | std::uint32_t{lease.generation} << 16;
  }

  LeasePolicy& policy_;
  Store& store_;
  nic::Nic* nic_ = nullptr;
  Account* account_ = nullptr;
  std::vector<Lease> leases_;
  unsigned unposted_ = 0;  ///< Invalidations that had no room.
};

}  // namespace verbena::kv
