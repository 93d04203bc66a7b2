// Footprints: the memory that an object with given options would allocate. Each layer adds the pools that it owns, by
// the functions that size them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::host {

enum class PoolKind : std::uint8_t {
  kRegistered,  ///< An arena that the NIC knows: faulted in from the start, and pinned if the NIC pins.
  kPrivate,     ///< The process's heap, written at creation.
  kAsUsed,      ///< Pages take memory once used.
};
[[nodiscard]] const char* to_string(PoolKind kind) noexcept;

struct Pool {
  std::string name;
  PoolKind kind = PoolKind::kPrivate;
  std::uint64_t count = 1;
  std::uint64_t bytes_each = 0;    ///< The requested size. An arena is rounded up to its page size.
  std::optional<unsigned> node{};  ///< Empty: wherever the kernel takes it from.
  std::string when{};              ///< When it is allocated.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return count * bytes_each; }
};

/// A value. \alloc setup
class Footprint {
 public:
  void add(Pool pool) { pools_.push_back(std::move(pool)); }
  /// Adds `count` objects with the footprint `part`: "channel" with a pool "sends" adds "channel: sends". Sets the node
  /// of its arenas to `node`, and `when` where the part has none.
  void add(std::string_view name, std::uint64_t count, const Footprint& part, std::optional<unsigned> node = {},
           std::string_view when = {});
  [[nodiscard]] const std::vector<Pool>& pools() const noexcept { return pools_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept;
  [[nodiscard]] std::uint64_t bytes(PoolKind kind) const noexcept;

 private:
  std::vector<Pool> pools_;
};

}  // namespace verbena::host
