// Leases: blocks of the item memory that one client writes its next large values into (LargePut::kAdopt).
#pragma once

#include "channel/connection.hpp"
#include "host/footprint.hpp"
#include "kv/account.hpp"
#include "kv/store.hpp"
#include "kv/wire.hpp"
#include "nic/nic.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::kv {

/// Whether clients can be kept from a value once it is published. Not without windows of type 2; and Soft-RoCE, which
/// has them, stops a queue pair for good where one is bound behind a send (docs/adr/0011).
[[nodiscard]] constexpr bool can_adopt(const nic::Limits& limits) noexcept {
  return limits.max_mw != 0 && !limits.is_soft_roce;
}

/// Of one client at one worker.
[[nodiscard]] constexpr unsigned leases_of(const nic::Limits& limits, const ServerOptions& options) noexcept {
  return options.large_put == LargePut::kAdopt && can_adopt(limits) ? options.client_leases : 0;
}

/// What the leases of all clients of one worker share. Of the worker's thread.
struct LeasePolicy {
  ibv_mr* memory = nullptr;      ///< The items' region, with the right to bind windows. Null: nobody gets a lease.
  unsigned most = 0;             ///< Leases of one client.
  std::uint64_t most_bytes = 0;  ///< Of all leases together.
  std::uint64_t longest = 0;     ///< A lease, in bytes. A power of two.
  std::uint64_t term_ticks = 0;  ///< An unused lease is taken back after this.
  std::uint64_t term_ns = 0;     ///< The same, as clients are told.
  std::uint64_t leases = 0;      ///< There are now.
  std::uint64_t bytes = 0;       ///< Of their blocks.
  /// A PUT has been refused for want of the memory that leases have: until then nobody gets one, and those that are
  /// used or end are memory again.
  std::uint64_t scarce_until_ticks = 0;

  [[nodiscard]] bool is_scarce(std::uint64_t now) const noexcept { return now < scarce_until_ticks; }
};

/// The leases of one client at one worker. Each is a block under a window of type 2, bound on that client's queue pair:
/// nobody else can write it, and that client not any more once the invalidation of the window is complete, which is
/// before the block becomes a value or is free again.
///
/// A key of a window comes again after 256 bindings. It is valid on the one queue pair only, for the lease that has it
/// then: a client that kept an old one reaches nothing with it but what it may write anyway. Windows never change their
/// queue pair.
/// \thread owner of the worker's loop, except creation and open (setup)  \alloc setup
class Leases {
 public:
  struct Lease {
    enum class State : std::uint8_t {
      kNone,       ///< No block.
      kGiven,      ///< The client may write it, and name it once.
      kAdopting,   ///< Named by a PUT; its window is being taken back, and then it is the value.
      kReturning,  ///< Its window is being taken back, and then it is free.
    };
    State state = State::kNone;
    bool is_posted = false;  ///< The invalidation is on its way.
    std::uint16_t generation = 0;
    nic::Mw window;
    Store::Block block;
    std::uint64_t bytes = 0;  ///< Of the block, also when it is a value already.
    std::uint64_t given_ticks = 0;
    // Of the PUT that named it.
    std::uint64_t began_ticks = 0;
    std::uint64_t expected = 0;
    std::uint64_t value_length = 0;
    std::uint32_t request = 0;
    std::uint16_t key_length = 0;
    std::array<std::byte, kMaxKeyBytes> key;

    [[nodiscard]] Key key_of_put() const noexcept { return {key.data(), key_length}; }
  };

  Leases(LeasePolicy& policy, Store& store) noexcept : policy_(policy), store_(store) {}
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;
  ~Leases() { end(nullptr); }

  /// Makes the windows; without this there are no leases. Each is charged to `account`, unless that is null. Errors:
  /// those of Nic::alloc_mw. \thread any  \alloc setup
  [[nodiscard]] Result<void> open(nic::Nic& nic, ibv_pd* pd, Account* account);
  /// What `open` allocates, of so many leases. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, unsigned most);

  /// A block for values as long as this one; the reply that tells of it is sent behind. False: the client has as many
  /// leases as it may, or all have as much memory as they may, or its quota is used up, or memory is scarce, or the
  /// value is too long to be written within a term, or nobody gets any.
  [[nodiscard]] bool offer(channel::Connection& channel, std::uint64_t value_length, wire::Lease& told) noexcept;
  /// The client's own lease of that id, or null: never given, used up, or taken back.
  [[nodiscard]] Lease* find(std::uint32_t id) noexcept;
  /// Begins to take the window back, for kAdopting or kReturning. False: `post` has to be called again.
  bool revoke(channel::Connection& channel, Lease& lease, Lease::State state) noexcept;
  /// Posts the invalidations for which there was no room. True when none is left.
  bool post(channel::Connection& channel) noexcept;
  /// The lease whose invalidation is complete: `token` is that of Handler::on_complete.
  [[nodiscard]] Lease& revoked(std::uint64_t token) noexcept { return leases_[token]; }
  /// The revoked lease's block for the client once more, under a new key. False: it was given back, for the want of
  /// memory or of room in the send queue.
  [[nodiscard]] bool give_again(channel::Connection& channel, Lease& lease, wire::Lease& told) noexcept;
  /// Ends a revoked lease. Its block, unless it is a value now, is free.
  void close(Lease& lease) noexcept;
  /// Begins to take back what the client has not used within the term. False: `post` has to be called again.
  bool expire(channel::Connection& channel, std::uint64_t now) noexcept;
  /// The client is gone: all blocks are free once it surely is out of them. Fails the channel, and is called before
  /// that goes. Null: there is none.
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
  unsigned unposted_ = 0;  ///< Invalidations for which there was no room.
};

}  // namespace verbena::kv
