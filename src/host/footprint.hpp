// What a thing of given options allocates, told before it is made: each layer adds the pools that it owns, by the
// functions that size them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::host {

enum class PoolKind : std::uint8_t {
  kRegistered,  ///< An arena that the NIC knows: there from the start, and pinned where the NIC pins.
  kPrivate,     ///< The process's heap, written when it is made.
  kAsUsed,      ///< Pages of it are there once they are used.
};
[[nodiscard]] const char* to_string(PoolKind kind) noexcept;

struct Pool {
  std::string name;
  PoolKind kind = PoolKind::kPrivate;
  std::uint64_t count = 1;
  std::uint64_t bytes_each = 0;    ///< As asked for. An arena is rounded up to its page size.
  std::optional<unsigned> node{};  ///< Empty: wherever the kernel takes it from.
  std::string when{};              ///< It is allocated then.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return count * bytes_each; }
};

/// A value. \alloc setup
class Footprint {
 public:
  void add(Pool pool) { pools_.push_back(std::move(pool)); }
  /// `count` of what `part` is the footprint of: "channel" with a pool "sends" adds "channel: sends". Its arenas are on
  /// `node`; `when` holds for what does not say it.
  void add(std::string_view name, std::uint64_t count, const Footprint& part, std::optional<unsigned> node = {},
           std::string_view when = {});
  [[nodiscard]] const std::vector<Pool>& pools() const noexcept { return pools_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept;
  [[nodiscard]] std::uint64_t bytes(PoolKind kind) const noexcept;

 private:
  std::vector<Pool> pools_;
};

}  // namespace verbena::host
