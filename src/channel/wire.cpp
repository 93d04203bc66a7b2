#include "channel/wire.hpp"

#include "base/error.hpp"

namespace verbena::channel::wire {

namespace {

constexpr std::uint8_t kMagic = 'M';
constexpr std::uint8_t kVersion = 2;
constexpr std::uint8_t kVersionMask = 0x0f;
// Flags: the parts that follow the fixed one.
constexpr std::uint8_t kHasLease = 0x10;
constexpr std::uint8_t kHasMemoryId = 0x20;

// The parts, laid out as the header's table says.
struct [[gnu::packed]] Front {
  std::uint8_t magic = kMagic;
  std::uint8_t version_and_parts = kVersion;
  std::uint16_t depth = 0;
  std::uint16_t eager_units = 0;
  std::uint32_t first_count = 0;
};
struct [[gnu::packed]] Lease {
  std::uint64_t address = 0;
  std::uint32_t units = 0;
  std::uint32_t rkey = 0;
};
static_assert(sizeof(Front) == kMinHandshakeBytes);
static_assert(sizeof(Front) + sizeof(Lease) + sizeof(nic::Window::memory_id) == kMaxHandshakeBytes);

std::unexpected<Error> broken(const char* what) {
  return fail(Status::kProtocol, "message handshake", 0,
              "the peer's handshake has {}; both sides must run the same version of Verbena", what);
}

bool is_lease_well_formed(const nic::Window& lease) noexcept {
  return lease.length >= kMinLeaseBytes && lease.length <= kMaxLeaseBytes && lease.address % kUnit == 0 &&
         lease.address + lease.length > lease.address;
}

}  // namespace

EncodedHandshake encode(const Handshake& handshake) noexcept {
  const nic::Window& lease = handshake.lease;
  const bool has_lease = lease.length != 0;
  const bool has_memory_id = has_lease && lease.memory_id != 0;
  EncodedHandshake out;
  const auto put = [&out](const auto& part) {
    std::memcpy(out.data.data() + out.size, &part, sizeof part);
    out.size += sizeof part;
  };
  put(Front{.version_and_parts =
                static_cast<std::uint8_t>(kVersion | (has_lease ? kHasLease : 0) | (has_memory_id ? kHasMemoryId : 0)),
            .depth = static_cast<std::uint16_t>(handshake.depth),
            .eager_units = static_cast<std::uint16_t>(units_of(handshake.eager_bytes)),
            .first_count = handshake.first_count});
  if (has_lease) put(Lease{.address = lease.address, .units = units_of(lease.length), .rkey = lease.rkey});
  if (has_memory_id) put(lease.memory_id);
  return out;
}

Result<Handshake> decode(std::span<const std::byte> data) {
  if (data.size() < kMinHandshakeBytes) return broken("too few bytes");
  Handshake handshake;
  const auto take = [&](auto& part) {
    std::memcpy(static_cast<void*>(&part), data.data() + handshake.bytes, sizeof part);
    handshake.bytes += sizeof part;
  };
  Front front;
  take(front);
  if (front.magic != kMagic) return broken("no message layer in it");
  const std::uint8_t parts = front.version_and_parts;
  if ((parts & kVersionMask) != kVersion) return broken("another version of the message layer");
  const bool has_lease = (parts & kHasLease) != 0;
  const bool has_memory_id = (parts & kHasMemoryId) != 0;
  if ((parts & ~(kVersionMask | kHasLease | kHasMemoryId)) != 0 || (has_memory_id && !has_lease))
    return broken("parts that no version has");
  if (data.size() <
      sizeof front + (has_lease ? sizeof(Lease) : 0) + (has_memory_id ? sizeof handshake.lease.memory_id : 0))
    return broken("too few bytes");
  handshake.depth = front.depth;
  handshake.eager_bytes = front.eager_units * static_cast<std::uint32_t>(kUnit);
  handshake.first_count = front.first_count;
  if (handshake.depth < kMinDepth || handshake.depth > kMaxDepth) return broken("a depth out of range");
  if (handshake.eager_bytes < kMinEagerBytes || handshake.eager_bytes > kMaxEagerBytes)
    return broken("an eager limit out of range");
  if (has_lease) {
    Lease lease;
    take(lease);
    handshake.lease = {
        .address = lease.address, .length = lease.units * kUnit, .rkey = lease.rkey, .access = IBV_ACCESS_REMOTE_WRITE};
    if (!is_lease_well_formed(handshake.lease)) return broken("a lease that is not well-formed");
  }
  if (has_memory_id) {
    take(handshake.lease.memory_id);
    if (handshake.lease.memory_id == 0) return broken("a memory id of 0");
  }
  return handshake;
}

}  // namespace verbena::channel::wire
