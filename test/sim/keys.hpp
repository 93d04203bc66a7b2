// The key table of a simulated NIC: regions and windows, and the one place that says who may touch which bytes.
#pragma once

#include "process.hpp"

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace verbena::sim {

/// A region, or a window of type 2 with what it is bound to.
struct KeyEntry {
  std::uint32_t key = 0;  ///< Without the bit of remote keys. While a window is free: the last key that was bound.
  const ibv_pd* pd = nullptr;
  std::uint64_t iova = 0;
  std::uint64_t length = 0;
  std::byte* base = nullptr;
  std::uint32_t access = 0;
  bool is_window = false;
  bool is_bound = false;      ///< Of a window.
  std::uint32_t qp_num = 0;   ///< Of a bound window: the queue pair that it serves.
  std::uint32_t region = 0;   ///< Of a bound window: the index of its region.
  std::uint32_t windows = 0;  ///< Bound on a region.
};

class KeyTable {
 public:
  explicit KeyTable(const Network& network) noexcept : network_(network) {}

  /// The two keys of a region differ in one bit, so that a mix-up of the two is found.
  static constexpr std::uint32_t kRemoteBit = 0x80000000;
  /// The part of a window's key that each binding changes (IBTA 10.6.7.2.4).
  static constexpr std::uint32_t kVariant = 0xFF;
  [[nodiscard]] static constexpr std::uint32_t index_of(std::uint32_t key) noexcept { return (key & ~kRemoteBit) >> 8; }

  /// An index that was never used before, with the variant that its first key has. Returns the key.
  std::uint32_t add(const KeyEntry& entry, std::uint8_t variant);
  void remove(std::uint32_t index) { entries_.erase(index); }
  [[nodiscard]] KeyEntry& at(std::uint32_t index) { return entries_.at(index); }

  /// Where the segment is, or null when its key does not hold, or lacks the right that is needed.
  [[nodiscard]] std::byte* local(const ibv_pd* pd, const ibv_sge& sge, std::uint32_t needed) const noexcept;
  /// Where `length` bytes at a peer's `address` are, or null: IBTA 9.7.4.1.5 and, for windows, 10.6.7.
  [[nodiscard]] std::byte* remote(const ibv_qp& qp, std::uint64_t address, std::uint32_t rkey, std::uint64_t length,
                                  std::uint32_t needed) const noexcept;

  /// IBV_WR_BIND_MW, on `qp`.
  [[nodiscard]] bool bind(const ibv_qp& qp, ibv_mw& mw, std::uint32_t rkey, const ibv_mw_bind_info& info);
  /// IBV_WR_LOCAL_INV and a peer's SEND_WITH_INV: only what is bound on this queue pair under this very key.
  [[nodiscard]] bool may_invalidate(const ibv_qp& qp, std::uint32_t rkey) const noexcept;
  void invalidate(std::uint32_t index);
  /// Windows end with the queue pair that they are bound on.
  void invalidate_all(const ibv_qp& qp);

 private:
  const Network& network_;
  std::uint32_t next_ = 1;  // No key is 0.
  std::map<std::uint32_t, KeyEntry> entries_;
};

}  // namespace verbena::sim
