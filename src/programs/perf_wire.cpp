#include "programs/perf_wire.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace verbena::programs::perf_wire {
namespace {

/// Magic, version, kind and a session are in every hello.
template <class Hello>
std::expected<Hello, Status> take(std::span<const std::byte> data) noexcept {
  static_assert(std::is_trivially_copyable_v<Hello>);
  constexpr Hello kWanted;
  Hello hello;
  if (data.size() != sizeof hello) return std::unexpected(Status::kProtocol);
  std::memcpy(static_cast<void*>(&hello), data.data(), sizeof hello);
  if (hello.magic != kWanted.magic || hello.version != kWanted.version || hello.kind != kWanted.kind ||
      hello.session == 0 || hello.reserved != 0)
    return std::unexpected(Status::kProtocol);
  return hello;
}

/// The hello of one connection of `run`.
template <class Hello>
std::expected<Hello, Status> take_of(std::span<const std::byte> data, const RunHello& run) noexcept {
  auto hello = take<Hello>(data);
  if (hello && (hello->session != run.session || hello->index >= connections_of(run)))
    return std::unexpected(Status::kProtocol);
  return hello;
}

bool is_atomic(PerfTest test) noexcept {
  return test == PerfTest::kFetchAdd || test == PerfTest::kFetchAddBw || test == PerfTest::kCompareSwap ||
         test == PerfTest::kCompareSwapBw;
}

bool counts_are_in_range(const RunHello& run) noexcept {
  return run.depth >= 1 && run.depth <= kMaxDepth && run.threads >= 1 && run.threads <= kMaxThreads &&
         run.connections >= 1 && run.connections <= kMaxConnections &&
         std::uint32_t{run.depth} * run.connections <= kMaxInFlight;
}

}  // namespace

std::uint32_t channel_depth(const RunHello& run) noexcept {
  constexpr std::uint32_t kToAndFro = 64, kLeast = 4;
  return run.test == PerfTest::kMessage ? kToAndFro : std::max<std::uint32_t>(run.depth, kLeast);
}

std::uint64_t lease_bytes(const RunHello& run) noexcept {
  return std::max<std::uint64_t>(4096, up_to_lines(std::uint64_t{run.bytes} + 64) * std::max(4U, 2U * run.depth));
}

std::uint64_t memory_needed(const RunHello& run) noexcept {
  const std::uint64_t spans = std::uint64_t{2} * run.threads * run.bytes;  // An end's own, and what its peers use.
  if (run.test == PerfTest::kLargeBw) return spans + connections_of(run) * lease_bytes(run);
  if (facts_of(run.test).by != PerfBy::kChannel) return spans;
  // Receives, and sends that do not go inline.
  return spans + std::uint64_t{2} * connections_of(run) * channel_depth(run) * up_to_lines(run.bytes);
}

int window_access(const RunHello& run) noexcept {
  constexpr int kAccess = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  // Only where it is needed: not every device has atomics.
  return is_atomic(run.test) ? kAccess | IBV_ACCESS_REMOTE_ATOMIC : kAccess;
}

nic::Window window_of(const LinkHello& hello, const RunHello& run) noexcept {
  return {.address = hello.address,
          .length = run.bytes,
          .rkey = hello.rkey,
          .access = static_cast<std::uint32_t>(window_access(run)),
          .memory_id = hello.memory};
}

std::expected<RunHello, Status> decode_run(std::span<const std::byte> data) noexcept {
  const auto hello = take<RunHello>(data);
  if (!hello) return hello;
  const PerfTestFacts* facts = find_perf_test(hello->test);
  if (facts == nullptr || facts->by == PerfBy::kNothing) return std::unexpected(Status::kProtocol);
  const std::uint32_t least_bytes = facts->has_size() ? 1 : facts->bytes;
  if (hello->wait > engine::WaitPolicy::kEvent || hello->bytes < least_bytes || hello->bytes > facts->most_bytes ||
      !counts_are_in_range(*hello) || memory_needed(*hello) > kMaxMemory)
    return std::unexpected(Status::kProtocol);
  return hello;
}

std::expected<LinkHello, Status> decode_link(std::span<const std::byte> data, const RunHello& run) noexcept {
  const auto hello = take_of<LinkHello>(data, run);
  if (hello && hello->address > ~std::uint64_t{run.bytes}) return std::unexpected(Status::kProtocol);
  return hello;
}

std::expected<ChannelHello, Status> decode_channel(std::span<const std::byte> data, const RunHello& run) noexcept {
  return take_of<ChannelHello>(data, run);
}

}  // namespace verbena::programs::perf_wire
