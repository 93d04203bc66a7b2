#include "message/wire.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace verbena::message::wire {

namespace {

constexpr std::uint32_t kMagic = 0x474d'4256;  // "VBMG"
constexpr std::uint32_t kVersion = 1;

class Writer {
 public:
  template <class T>
  void put(T value) noexcept {
    value = little(value);
    std::memcpy(out_.data() + at_, &value, sizeof value);
    at_ += sizeof value;
  }
  [[nodiscard]] const std::array<std::byte, kHandshakeBytes>& bytes() const noexcept { return out_; }

 private:
  std::array<std::byte, kHandshakeBytes> out_{};
  std::size_t at_ = 0;
};

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
  /// Whether `encode` left the bytes from here to `end` out.
  [[nodiscard]] bool is_zero_to(std::size_t end) const noexcept {
    return std::ranges::all_of(in_.subspan(at_, end - at_), [](std::byte byte) { return byte == std::byte{0}; });
  }

 private:
  std::span<const std::byte> in_;
  std::size_t at_ = 0;
};

std::unexpected<Error> broken(const char* what) {
  return fail(Status::kProtocol, "message handshake", 0,
              "the peer's handshake has {}; both sides must run the same version of Verbena", what);
}

bool is_lease_well_formed(const nic::Window& lease) noexcept {
  if (lease.length == 0) return true;
  return lease.length >= kMinLeaseBytes && lease.length <= kMaxLeaseBytes && lease.length % kUnit == 0 &&
         lease.address % kUnit == 0 && lease.address + lease.length > lease.address &&
         (lease.access & IBV_ACCESS_REMOTE_WRITE) != 0;
}

}  // namespace

std::array<std::byte, kHandshakeBytes> encode(const Handshake& handshake) noexcept {
  Writer out;
  out.put(kMagic);
  out.put(kVersion);
  out.put(handshake.depth);
  out.put(handshake.eager_bytes);
  out.put(handshake.first_count);
  out.put(handshake.lease.rkey);
  out.put(handshake.lease.address);
  out.put(handshake.lease.length);
  out.put(handshake.lease.memory_id);
  out.put(handshake.lease.access);
  return out.bytes();
}

Result<Handshake> decode(std::span<const std::byte> data) {
  if (data.size() < kHandshakeBytes) return broken("too few bytes");
  Reader in(data);
  if (in.take<std::uint32_t>() != kMagic) return broken("no message layer in it");
  if (in.take<std::uint32_t>() != kVersion) return broken("another version of the message layer");
  Handshake handshake;
  handshake.depth = in.take<std::uint32_t>();
  handshake.eager_bytes = in.take<std::uint32_t>();
  handshake.first_count = in.take<std::uint32_t>();
  handshake.lease.rkey = in.take<std::uint32_t>();
  handshake.lease.address = in.take<std::uint64_t>();
  handshake.lease.length = in.take<std::uint64_t>();
  handshake.lease.memory_id = in.take<std::uint64_t>();
  handshake.lease.access = in.take<std::uint32_t>();
  if (!in.is_zero_to(kHandshakeBytes)) return broken("reserved bytes that are not 0");
  if (handshake.depth < kMinDepth || handshake.depth > kMaxDepth) return broken("a depth out of range");
  if (handshake.eager_bytes < kMinEagerBytes || handshake.eager_bytes > kMaxEagerBytes ||
      handshake.eager_bytes % kUnit != 0)
    return broken("an eager limit out of range");
  if (!is_lease_well_formed(handshake.lease)) return broken("a lease that is not well-formed");
  return handshake;
}

}  // namespace verbena::message::wire
