#include "programs/perf_wire.hpp"

#include "remote/physical_table.hpp"

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

/// Messages that a channel has room for: more than are in flight, where they go to and fro, so that telling the peer of
/// the room is not a part of each.
std::uint32_t channel_depth(const RunHello& run) noexcept {
  constexpr std::uint32_t kToAndFro = 64, kLeast = 4;
  return run.test == PerfTest::kMessage ? kToAndFro : std::max<std::uint32_t>(run.depth, kLeast);
}

/// A message's bytes in whole lines, as the channel has them.
constexpr std::uint64_t up_to_lines(std::uint64_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

/// What a server's lease of one channel holds of large messages: a header goes in front of each, and there is room for
/// twice what is in flight, so that it comes back in time.
std::uint64_t lease_bytes(const RunHello& run) noexcept {
  return std::max<std::uint64_t>(4096, up_to_lines(std::uint64_t{run.bytes} + 64) * std::max(4U, 2U * run.depth));
}

bool counts_are_in_range(const RunHello& run) noexcept {
  return run.depth >= 1 && run.depth <= kMaxDepth && run.threads >= 1 && run.threads <= kMaxThreads &&
         run.connections >= 1 && run.connections <= kMaxConnections &&
         std::uint32_t{run.depth} * run.connections <= kMaxInFlight;
}

}  // namespace

message::Options channel_options(const RunHello& run, PerfRole role) noexcept {
  if (run.test != PerfTest::kLargeBw)
    return {.depth = channel_depth(run), .eager_bytes = static_cast<std::uint32_t>(up_to_lines(run.bytes))};
  message::Options options{.eager_bytes = 64};
  // A header goes in front; a fragment is at most a quarter of the lease.
  options.fragment_bytes = std::max<std::uint64_t>(up_to_lines(std::uint64_t{run.bytes} + 64), 1024);
  options.max_operations = run.depth;
  if (role == PerfRole::kServer) options.lease_bytes = lease_bytes(run);
  return options;
}

remote::LinkOptions link_options(const RunHello& run) noexcept {
  const bool has_immediates = run.test == PerfTest::kWriteImm || run.test == PerfTest::kWriteImmBw;
  return {.bounce_bytes = facts_of(run.test).by == PerfBy::kPhysical ? 4096U : 64U,  // A table comes through it.
          .max_operations = run.depth,
          .max_reads = run.depth,
          .receives = has_immediates ? std::max<std::uint32_t>(run.depth, 4) : 0};
}

engine::LoopOptions loop_options(const RunHello& run, engine::WaitPolicy wait) noexcept {
  const std::uint32_t each = facts_of(run.test).by == PerfBy::kChannel
                                 ? message::completions_needed(channel_options(run, PerfRole::kServer))
                                 : remote::completions_needed(link_options(run));
  return {
      .max_connections = run.connections, .cqe = std::max<std::uint32_t>(4096, each * run.connections), .wait = wait};
}

std::uint64_t shared_bytes(const RunHello& run) noexcept {
  if (facts_of(run.test).by != PerfBy::kPhysical) return run.bytes;
  // A row of the table for each small page at worst, and the table's own pages have rows too: less than one in 160.
  constexpr std::uint64_t kPage = 4096, kRow = remote::PhysicalTable::kRunBytes + 1;
  return table_offset(run) + (run.bytes / kPage + 1) * kRow + kPage;
}

std::uint64_t memory_needed(const RunHello& run) {
  // Nothing inline is the most: what goes inline is not staged.
  constexpr nic::Kind kKind = nic::Kind::kSoft;
  constexpr nic::Limits kLimits{.max_message = std::uint32_t{1} << 30};
  const bool is_channel = facts_of(run.test).by == PerfBy::kChannel;
  const host::Footprint connection = is_channel
                                         ? message::footprint(kKind, kLimits, channel_options(run, PerfRole::kServer))
                                         : remote::Link::footprint(kKind, kLimits, link_options(run));
  // A queue pair has memory for what is sent, which what is one-sided does not touch.
  const std::uint64_t untouched = is_channel ? 0 : connection.bytes(host::PoolKind::kAsUsed);
  const std::uint64_t loop =
      engine::CompletionLoop::footprint(kKind, loop_options(run, engine::WaitPolicy::kSpin)).bytes();
  // An end's own, and what its peers use.
  const std::uint64_t spans = run.bytes + (is_channel ? 0 : shared_bytes(run));
  return run.threads * (spans + loop + run.connections * (connection.bytes() - untouched));
}

int window_access(const RunHello& run) noexcept {
  constexpr int kAccess = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  // Only where it is needed: not every device has atomics.
  return is_atomic(run.test) ? kAccess | IBV_ACCESS_REMOTE_ATOMIC : kAccess;
}

nic::Window window_of(const LinkHello& hello, const RunHello& run) noexcept {
  return {.address = hello.address,
          .length = shared_bytes(run),
          .rkey = hello.rkey,
          .access = static_cast<std::uint32_t>(window_access(run)),
          .memory_id = hello.memory};
}

std::expected<RunHello, Status> decode_run(std::span<const std::byte> data) {
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
  if (hello && hello->address > ~shared_bytes(run)) return std::unexpected(Status::kProtocol);
  return hello;
}

std::expected<ChannelHello, Status> decode_channel(std::span<const std::byte> data, const RunHello& run) noexcept {
  return take_of<ChannelHello>(data, run);
}

}  // namespace verbena::programs::perf_wire
