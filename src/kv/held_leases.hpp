// The client's end of leases: blocks of the server for its next large values.
#pragma once

#include "kv/wire.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace verbena::kv {

/// The leases that a client holds, of all workers. A server that does not trust its clients gives none, and this stays
/// empty.
/// \thread owner  \alloc setup (add_worker)
class HeldLeases {
 public:
  static constexpr std::size_t kMost = 16;  ///< Per worker. Further ones are ignored; the server takes them back.

  struct Held {
    wire::Lease lease;              ///< Id 0: none.
    std::uint64_t until_ticks = 0;  ///< A WRITE must begin before this.
  };

  [[nodiscard]] static constexpr std::size_t bytes_for_worker() noexcept { return sizeof(Worker); }
  void reserve(unsigned workers) { workers_.reserve(workers); }
  /// Adds the workers in order; `memory_id` is that of the worker's window, which holds the leases.
  void add_worker(std::uint64_t memory_id) { workers_.push_back({.memory_id = memory_id, .streamed = 0, .held = {}}); }
  [[nodiscard]] std::uint64_t memory_id(unsigned worker) const noexcept { return workers_[worker].memory_id; }

  /// Keeps a lease from the reply to a request that was sent after `sent_ticks`.
  void keep(unsigned worker, const wire::Lease& lease, std::uint64_t sent_ticks) noexcept;
  /// Takes a lease of the right class for `bytes`, the one that ends next. Empty: there is none.
  [[nodiscard]] std::optional<Held> take(unsigned worker, std::uint64_t bytes, std::uint64_t now) noexcept;
  /// Puts back a lease that was taken and not used.
  void put_back(unsigned worker, const Held& held) noexcept;
  /// Call when a value is streamed because no lease fits it. Returns the lease to give up for another one, or 0: a
  /// lease that ended unused or, if values are streamed and bring no lease, the one that ends next.
  [[nodiscard]] std::uint32_t give_up_one(unsigned worker, std::uint64_t now) noexcept;

 private:
  struct Worker {
    std::uint64_t memory_id = 0;
    unsigned streamed = 0;  ///< Values streamed since the last lease came.
    std::array<Held, kMost> held;
  };
  std::vector<Worker> workers_;
};

}  // namespace verbena::kv
