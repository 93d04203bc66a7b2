#include "host/footprint.hpp"

#include <utility>

namespace verbena::host {

const char* to_string(PoolKind kind) noexcept {
  switch (kind) {
    case PoolKind::kRegistered: return "registered";
    case PoolKind::kPrivate: return "private";
    case PoolKind::kAsUsed: return "as used";
  }
  return "unknown";
}

void Footprint::add(std::string_view name, std::uint64_t count, const Footprint& part, std::optional<unsigned> node,
                    std::string_view when) {
  for (const Pool& pool : part.pools_) {
    Pool mine = pool;
    mine.name = std::string(name).append(": ").append(pool.name);
    mine.count *= count;
    if (!mine.node && mine.kind == PoolKind::kRegistered) mine.node = node;
    if (mine.when.empty()) mine.when = when;
    pools_.push_back(std::move(mine));
  }
}

std::uint64_t Footprint::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const Pool& pool : pools_) sum += pool.bytes();
  return sum;
}

std::uint64_t Footprint::bytes(PoolKind kind) const noexcept {
  std::uint64_t sum = 0;
  for (const Pool& pool : pools_)
    if (pool.kind == kind) sum += pool.bytes();
  return sum;
}

}  // namespace verbena::host
