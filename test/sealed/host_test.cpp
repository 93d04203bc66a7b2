// Pools of the host's memory, sealed.
#include "../host/range.hpp"
#include "host/slab_pool.hpp"
#include "result.hpp"
#include "sealed.hpp"

#include <array>
#include <atomic>

namespace verbena::host {
namespace {

using namespace verbena::test;

constexpr std::size_t kBytes = std::size_t{4} << 20;

/// Blocks of every class, more than caches hold, taken and given back.
template <class Pool>
[[nodiscard]] bool churn(Pool& pool) {
  std::array<std::uint64_t, 200> blocks;
  for (const std::size_t bytes : {64U, 300U, 1024U, 8192U, 16384U}) {
    for (auto& block : blocks)
      if ((block = pool.allocate(bytes)) == Pool::kNoOffset) return false;
    for (const auto block : blocks)
      if (pool.free(block) != Status::kOk) return false;
  }
  return pool.allocate(2 * kBytes) == Pool::kNoOffset;
}

TEST(SealedPools, SlabPool) {
  VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
  Range range(kBytes);
  auto pool = SlabPool::create(range.span());
  ASSERT_OK(pool);
  expect_sealed("of the owner", 50, [&] { return churn(*pool); });
}

}  // namespace
}  // namespace verbena::host
