#include "programs/perf_wire.hpp"

#include <cstring>
#include <type_traits>

namespace verbena::programs {

const char* to_string(PerfTest test) noexcept {
  switch (test) {
    case PerfTest::kRead: return "read";
    case PerfTest::kWrite: return "write";
    case PerfTest::kPingPong: return "pingpong";
    case PerfTest::kMessage: return "message";
    case PerfTest::kWriteBw: return "write-bw";
  }
  return "unknown";
}

namespace perf_wire {
namespace {

/// Magic, version and kind are where every hello has them.
template <class Hello>
std::expected<Hello, Status> take(std::span<const std::byte> data) noexcept {
  static_assert(std::is_trivially_copyable_v<Hello>);
  constexpr Hello kWanted;
  Hello hello;
  if (data.size() != sizeof hello) return std::unexpected(Status::kProtocol);
  std::memcpy(static_cast<void*>(&hello), data.data(), sizeof hello);
  if (hello.magic != kWanted.magic || hello.version != kWanted.version || hello.kind != kWanted.kind ||
      hello.session == 0)
    return std::unexpected(Status::kProtocol);
  return hello;
}

}  // namespace

std::expected<RunHello, Status> decode_run(std::span<const std::byte> data) noexcept {
  const auto hello = take<RunHello>(data);
  if (!hello) return hello;
  const bool is_test = hello->test >= PerfTest::kRead && hello->test <= PerfTest::kWriteBw;
  if (!is_test || hello->reserved != 0 || hello->bytes == 0 || hello->bytes > most_bytes(hello->test) ||
      hello->rounds == 0 || hello->rounds > kMaxRounds || hello->in_flight == 0 || hello->in_flight > kMaxInFlight)
    return std::unexpected(Status::kProtocol);
  return hello;
}

std::expected<LinkHello, Status> decode_link(std::span<const std::byte> data, const RunHello& run) noexcept {
  const auto hello = take<LinkHello>(data);
  if (!hello) return hello;
  if (hello->session != run.session || hello->length != run.bytes || hello->address > ~std::uint64_t{hello->length})
    return std::unexpected(Status::kProtocol);
  return hello;
}

}  // namespace perf_wire
}  // namespace verbena::programs
