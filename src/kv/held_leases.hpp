// The client's end of leases: blocks of the server that its next large values go into.
#pragma once

#include "kv/wire.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace verbena::kv {

/// What a client holds, of all workers. A server that does not trust its clients gives nothing, and this stays empty.
/// \thread owner  \alloc setup (add_worker)
class HeldLeases {
 public:
  static constexpr std::size_t kMost = 16;  ///< Of one worker; more are left to the server, which takes them back.

  struct Held {
    wire::Lease lease;              ///< Of id 0: none.
    std::uint64_t until_ticks = 0;  ///< A WRITE may begin before.
  };

  [[nodiscard]] static constexpr std::size_t bytes_for_worker() noexcept { return sizeof(Worker); }
  void reserve(unsigned workers) { workers_.reserve(workers); }
  /// Workers in their order; `memory_id` is that of the worker's window, which the leases lie in.
  void add_worker(std::uint64_t memory_id) { workers_.push_back({.memory_id = memory_id, .streamed = 0, .held = {}}); }
  [[nodiscard]] std::uint64_t memory_id(unsigned worker) const noexcept { return workers_[worker].memory_id; }

  /// A reply brought a lease, to a request that was sent after `sent_ticks`.
  void keep(unsigned worker, const wire::Lease& lease, std::uint64_t sent_ticks) noexcept;
  /// Takes a lease of the class of a value of `bytes`, the one that ends next. Empty: there is none.
  [[nodiscard]] std::optional<Held> take(unsigned worker, std::uint64_t bytes, std::uint64_t now) noexcept;
  /// One that was taken and is as it was.
  void put_back(unsigned worker, const Held& held) noexcept;
  /// A value is streamed because no lease fits it: the lease that is given up for another, or 0. That is one that ended
  /// unused; or, when values are streamed and bring no lease, the one that ends next.
  [[nodiscard]] std::uint32_t give_up_one(unsigned worker, std::uint64_t now) noexcept;

 private:
  struct Worker {
    std::uint64_t memory_id = 0;
    unsigned streamed = 0;  ///< Values, since the last lease came.
    std::array<Held, kMost> held;
  };
  std::vector<Worker> workers_;
};

}  // namespace verbena::kv
