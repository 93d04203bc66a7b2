// A connection's part of the handshake, and the places of fragments in a lease.
#include "channel/wire.hpp"
#include "input.hpp"

namespace verbena::fuzz::channel_wire {
namespace {

using namespace channel;

enum class Form : std::uint8_t { kBytes, kFields, kPlaces, kEnd };

bool is_in(std::uint64_t value, std::uint64_t least, std::uint64_t most) noexcept {
  return value >= least && value <= most;
}

void check_handshake(Bytes bytes) {
  const Tight copy(bytes);
  const auto decoded = wire::decode(copy.bytes());
  if (!decoded) {
    VERBENA_CHECK(decoded.error().status() == Status::kProtocol && *decoded.error().text() != '\0');
    return;
  }
  VERBENA_CHECK(is_in(decoded->depth, wire::kMinDepth, wire::kMaxDepth));
  VERBENA_CHECK(is_in(decoded->eager_bytes, wire::kMinEagerBytes, wire::kMaxEagerBytes));
  const nic::Window& lease = decoded->lease;
  if (lease.length != 0) {
    VERBENA_CHECK(is_in(lease.length, wire::kMinLeaseBytes, wire::kMaxLeaseBytes));
    VERBENA_CHECK(lease.address % wire::kUnit == 0 && lease.length % wire::kUnit == 0);
    VERBENA_CHECK(lease.address <= ~lease.length);
    VERBENA_CHECK(wire::units_of(lease.length) * wire::kUnit == lease.length);
  }
  VERBENA_CHECK(same_bytes(wire::encode(*decoded).bytes(), copy.bytes().first(decoded->bytes)));
}

/// Magic number and version right, and any bytes behind.
void check_fields(Bytes fields) {
  const auto whole = wire::encode({});
  Tight handshake(2 + fields.size());
  std::ranges::copy(std::span(whole.data).first(2), handshake.writable().begin());
  if (!fields.empty()) handshake.writable()[1] |= fields.front() & std::byte{0xf0};
  std::ranges::copy(fields, handshake.writable().begin() + 2);
  check_handshake(handshake.bytes());
}

/// Fragments one after another: each inside the lease, never over the end, and no units forgotten.
void check_places(Input& in) noexcept {
  constexpr std::uint32_t kMost = wire::units_of(wire::kMaxLeaseBytes);
  const std::uint32_t lease = wire::units_of(wire::kMinLeaseBytes) + in.take<std::uint32_t>() % (kMost - 63);
  std::uint32_t cursor = 0;
  for (int i = 0; i < 64 && !in.empty(); ++i) {
    const std::uint32_t units = 1 + in.take<std::uint32_t>() % lease;
    const wire::Placement place = wire::place(cursor, units, lease);
    VERBENA_CHECK(place.at <= lease - units && place.next < lease);
    VERBENA_CHECK(place.next == (place.at + units) % lease);
    VERBENA_CHECK((cursor + std::uint64_t{place.taken}) % lease == place.next);
    VERBENA_CHECK(place.at == cursor || (place.at == 0 && units > lease - cursor));
    cursor = place.next;
  }
}

void run(Input in) {
  switch (static_cast<Form>(in.take<std::uint8_t>() % static_cast<std::uint8_t>(Form::kEnd))) {
    case Form::kBytes: return check_handshake(in.rest());
    case Form::kFields: return check_fields(in.rest());
    case Form::kPlaces: return check_places(in);
    case Form::kEnd: return;
  }
}

}  // namespace
}  // namespace verbena::fuzz::channel_wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::channel_wire::run({data, size});
  return 0;
}
