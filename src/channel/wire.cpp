#include "channel/wire.hpp"

#include "base/error.hpp"

namespace verbena::channel::wire {

namespace {

constexpr std::uint8_t kMagic = 'M';
constexpr std::uint8_t kVersion = 2;
constexpr std::uint8_t kVersionMask = 0x0f;
// What follows the fixed part.
constexpr std::uint8_t kHasLease = 0x10;
constexpr std::uint8_t kHasMemoryId = 0x20;
constexpr std::size_t kLeaseBytes = 16;
constexpr std::size_t kMemoryIdBytes = 8;
static_assert(kMinHandshakeBytes + kLeaseBytes + kMemoryIdBytes == kMaxHandshakeBytes);

class Writer {
 public:
  template <class T>
  void put(T value) noexcept {
    value = little(value);
    std::memcpy(out_.data.data() + out_.size, &value, sizeof value);
    out_.size += sizeof value;
  }
  [[nodiscard]] const EncodedHandshake& written() const noexcept { return out_; }

 private:
  EncodedHandshake out_;
};

/// Takes fields from the front of data whose length was checked before.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) noexcept : in_(in) {}
  template <class T>
  [[nodiscard]] T take() noexcept {
    T value{};
    std::memcpy(&value, in_.data() + at_, sizeof value);
    at_ += sizeof value;
    return little(value);
  }
  [[nodiscard]] std::size_t taken() const noexcept { return at_; }

 private:
  std::span<const std::byte> in_;
  std::size_t at_ = 0;
};

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
  Writer out;
  out.put(kMagic);
  out.put(static_cast<std::uint8_t>(kVersion | (has_lease ? kHasLease : 0) | (has_memory_id ? kHasMemoryId : 0)));
  out.put(static_cast<std::uint16_t>(handshake.depth));
  out.put(static_cast<std::uint16_t>(units_of(handshake.eager_bytes)));
  out.put(handshake.first_count);
  if (has_lease) {
    out.put(lease.address);
    out.put(units_of(lease.length));
    out.put(lease.rkey);
  }
  if (has_memory_id) out.put(lease.memory_id);
  return out.written();
}

Result<Handshake> decode(std::span<const std::byte> data) {
  if (data.size() < kMinHandshakeBytes) return broken("too few bytes");
  Reader in(data);
  if (in.take<std::uint8_t>() != kMagic) return broken("no message layer in it");
  const auto parts = in.take<std::uint8_t>();
  if ((parts & kVersionMask) != kVersion) return broken("another version of the message layer");
  const bool has_lease = (parts & kHasLease) != 0;
  const bool has_memory_id = (parts & kHasMemoryId) != 0;
  if ((parts & ~(kVersionMask | kHasLease | kHasMemoryId)) != 0 || (has_memory_id && !has_lease))
    return broken("parts that no version has");
  if (data.size() < kMinHandshakeBytes + (has_lease ? kLeaseBytes : 0) + (has_memory_id ? kMemoryIdBytes : 0))
    return broken("too few bytes");
  Handshake handshake;
  handshake.depth = in.take<std::uint16_t>();
  handshake.eager_bytes = in.take<std::uint16_t>() * static_cast<std::uint32_t>(kUnit);
  handshake.first_count = in.take<std::uint32_t>();
  if (handshake.depth < kMinDepth || handshake.depth > kMaxDepth) return broken("a depth out of range");
  if (handshake.eager_bytes < kMinEagerBytes || handshake.eager_bytes > kMaxEagerBytes)
    return broken("an eager limit out of range");
  if (has_lease) {
    handshake.lease.address = in.take<std::uint64_t>();
    handshake.lease.length = in.take<std::uint32_t>() * kUnit;
    handshake.lease.rkey = in.take<std::uint32_t>();
    handshake.lease.access = IBV_ACCESS_REMOTE_WRITE;
    if (!is_lease_well_formed(handshake.lease)) return broken("a lease that is not well-formed");
  }
  if (has_memory_id) {
    handshake.lease.memory_id = in.take<std::uint64_t>();
    if (handshake.lease.memory_id == 0) return broken("a memory id of 0");
  }
  handshake.bytes = in.taken();
  return handshake;
}

}  // namespace verbena::channel::wire
