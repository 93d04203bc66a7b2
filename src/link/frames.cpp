#include "link/frames.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::link {

namespace {

constexpr std::array<std::byte, 4> kMagic{std::byte{'V'}, std::byte{'R'}, std::byte{'B'}, std::byte{'N'}};
constexpr std::size_t kVersionOffset = 4;
constexpr std::size_t kTypeOffset = 6;
constexpr std::size_t kCoverOffset = 7;
constexpr std::size_t kLengthOffset = 8;
constexpr std::uint32_t kMax24 = (1U << 24) - 1;

using Bytes = std::span<const std::byte>;

/// Fills a frame from its header to its checksum.
class Writer {
 public:
  explicit Writer(FrameType type) noexcept {
    put_bytes(kMagic);
    put(kProtocolVersion);
    put(static_cast<std::uint8_t>(type));
    put(static_cast<std::uint8_t>(Cover::kOpen));
    put(std::uint32_t{0});  // The length, which is set at the end.
  }

  template <std::unsigned_integral T>
  void put(T value) noexcept {
    store(frame_.size, value);
    frame_.size += sizeof(T);
  }
  void put_bytes(Bytes bytes) noexcept {
    VERBENA_CHECK(bytes.size() <= kMaxFrameBytes - kChecksumBytes - frame_.size);
    std::ranges::copy(bytes, frame_.data.begin() + static_cast<std::ptrdiff_t>(frame_.size));
    frame_.size += bytes.size();
  }
  [[nodiscard]] Frame finish() noexcept {
    store(kLengthOffset, static_cast<std::uint32_t>(frame_.size - kHeaderBytes));
    put(hash64(std::span(frame_.data).first(frame_.size)));
    return frame_;
  }

 private:
  template <std::unsigned_integral T>
  void store(std::size_t offset, T value) noexcept {
    VERBENA_CHECK(offset + sizeof(T) <= kMaxFrameBytes);
    link::store(frame_.data, offset, value);
  }
  Frame frame_;
};

/// Takes fields from the front of a body whose length was checked before.
class Reader {
 public:
  explicit Reader(Bytes body) noexcept : body_(body) {}
  template <std::unsigned_integral T>
  [[nodiscard]] T take() noexcept {
    VERBENA_CHECK(body_.size() >= sizeof(T));
    const T value = load<T>(body_, 0);
    body_ = body_.subspan(sizeof(T));
    return value;
  }
  [[nodiscard]] Bytes take_bytes(std::size_t count) noexcept {
    VERBENA_CHECK(body_.size() >= count);
    const Bytes taken = body_.first(count);
    body_ = body_.subspan(count);
    return taken;
  }
  [[nodiscard]] std::size_t left() const noexcept { return body_.size(); }

 private:
  Bytes body_;
};

bool known_type(std::uint8_t type) noexcept {
  return type >= static_cast<std::uint8_t>(FrameType::kHello) &&
         type <= static_cast<std::uint8_t>(FrameType::kChallenge);
}

/// Whether a frame of a known type may have this value of `cover`.
bool can_be(FrameType type, std::uint8_t cover) noexcept {
  const bool is_never_sealed = type == FrameType::kReject || type == FrameType::kKey;
  if (cover == static_cast<std::uint8_t>(Cover::kSealed)) return !is_never_sealed;
  return cover == static_cast<std::uint8_t>(Cover::kOpen) && type != FrameType::kChallenge;
}

std::size_t checksum_at(Bytes frame) noexcept { return frame.size() - kChecksumBytes; }
std::size_t seal_at(Bytes frame) noexcept { return checksum_at(frame) - kSealBytes; }

void set_length_and_checksum(Frame& frame) noexcept {
  store(frame.data, kLengthOffset, static_cast<std::uint32_t>(frame.size - kHeaderBytes - kChecksumBytes));
  const std::size_t at = checksum_at(frame.bytes());
  store(frame.data, at, hash64(std::span(frame.data).first(at)));
}

/// The body, without the seal, of a frame that must have the type `wanted` and the given cover.
Result<Bytes> decode_body(Bytes frame, FrameType wanted, Cover cover) noexcept {
  VERBENA_ASSIGN(const FrameType type, decode_type(frame));
  if (type != wanted) {
    return broken("a handshake frame of type {} came where type {} was due", static_cast<unsigned>(type),
                  static_cast<unsigned>(wanted));
  }
  if (load<std::uint8_t>(frame, kCoverOffset) != static_cast<std::uint8_t>(cover)) {
    return broken("a handshake frame has {}",
                  cover == Cover::kSealed ? "no seal where one is due" : "a seal where none is due");
  }
  return frame.first(cover == Cover::kSealed ? seal_at(frame) : checksum_at(frame)).subspan(kHeaderBytes);
}

}  // namespace

const char* fault_of(const Endpoint& endpoint) noexcept {
  if (endpoint.nic != nic::Kind::kSoft && endpoint.nic != nic::Kind::kVerbs) return "an unknown kind of NIC";
  if (endpoint.qp.mtu < IBV_MTU_256 || endpoint.qp.mtu > IBV_MTU_4096) return "an MTU that verbs does not have";
  if (endpoint.qp.psn > kMax24) return "a packet sequence number of more than 24 bits";
  // The soft NIC's QP numbers may be of any size; a device's wire format has 24 bits.
  if (endpoint.nic == nic::Kind::kVerbs && endpoint.qp.qp_num > kMax24) return "a QP number of more than 24 bits";
  const bool is_soft = endpoint.nic == nic::Kind::kSoft;
  if (endpoint.qp.network > nic::Network::kRoceV2Ipv6 || (endpoint.qp.network == nic::Network::kNone) != is_soft)
    return "a network that its NIC does not have";
  if (endpoint.private_bytes > kMaxPrivateBytes) return "more private data than a handshake carries";
  return nullptr;
}

Result<void> check_user_data(const Endpoint& endpoint, std::size_t most, const char* call) noexcept {
  if (endpoint.private_bytes <= most) return {};
  return fail(
      Status::kTooLong, call, 0,
      "the handshake has {} bytes of user data and carries {} in this mode: connect in socket mode, or send the "
      "rest as a message",
      endpoint.private_bytes, most);
}

Result<void> check_local(const Endpoint& local, std::size_t most, const char* call) noexcept {
  const char* fault = fault_of(local);
  if (fault == nullptr) return check_user_data(local, most, call);
  return fail(Status::kBadArgument, call, 0, "the local endpoint has {}: make it with describe", fault);
}

Reject make_reject(std::uint8_t status, Bytes text) noexcept {
  Reject reject;
  const bool known =
      status > static_cast<std::uint8_t>(Status::kOk) && status <= static_cast<std::uint8_t>(Status::kSystem);
  reject.status = known ? static_cast<Status>(status) : Status::kRejected;
  for (const std::byte byte : text.first(std::min(text.size(), kMaxRejectText))) {
    const auto character = static_cast<char>(byte);
    reject.text[reject.text_bytes++] = character >= ' ' && character <= '~' ? character : '?';
  }
  return reject;
}

Frame encode_hello(const Endpoint& endpoint) noexcept {
  const auto private_bytes = std::min<std::uint16_t>(endpoint.private_bytes, kMaxPrivateBytes);
  Writer writer(FrameType::kHello);
  writer.put(static_cast<std::uint8_t>(endpoint.nic));
  writer.put(endpoint.qp.mtu);
  writer.put(endpoint.qp.max_rd_atomic);
  writer.put(static_cast<std::uint8_t>(endpoint.qp.network));
  writer.put(endpoint.qp.lid);
  writer.put(private_bytes);
  writer.put_bytes(std::as_bytes(std::span(endpoint.qp.gid.raw)));
  writer.put(endpoint.qp.qp_num);
  writer.put(endpoint.qp.psn);
  writer.put(endpoint.recv_depth);
  writer.put(endpoint.generation);
  writer.put_bytes(std::span(endpoint.private_data).first(private_bytes));
  return writer.finish();
}

Frame encode_reject(Status status, std::string_view text) noexcept {
  text = text.substr(0, kMaxRejectText);
  Writer writer(FrameType::kReject);
  writer.put(static_cast<std::uint8_t>(status));
  writer.put(std::uint8_t{0});
  writer.put(static_cast<std::uint16_t>(text.size()));
  writer.put_bytes(bytes_of_text(text));
  return writer.finish();
}

Frame encode_ready(std::uint64_t generation) noexcept {
  Writer writer(FrameType::kReady);
  writer.put(generation);
  return writer.finish();
}

Frame encode_key(std::string_view name, const Nonce& nonce) noexcept {
  name = name.substr(0, kMaxKeyNameBytes);
  Writer writer(FrameType::kKey);
  writer.put_bytes(nonce);
  writer.put(static_cast<std::uint8_t>(name.size()));
  writer.put_bytes(bytes_of_text(name));
  return writer.finish();
}

Frame encode_challenge(const Nonce& nonce) noexcept {
  Writer writer(FrameType::kChallenge);
  writer.put_bytes(nonce);
  return writer.finish();
}

Frame with_room_for_seal(const Frame& open) noexcept {
  VERBENA_CHECK(open.size <= kMaxFrameBytes - kSealBytes);
  Frame sealed = open;
  sealed.size += kSealBytes;
  store(sealed.data, kCoverOffset, static_cast<std::uint8_t>(Cover::kSealed));
  set_length_and_checksum(sealed);
  return sealed;
}

Bytes covered_by_seal(Bytes sealed) noexcept { return sealed.first(seal_at(sealed)); }

void set_seal(Frame& sealed, const Mac& seal) noexcept {
  std::ranges::copy(seal, sealed.data.begin() + static_cast<std::ptrdiff_t>(seal_at(sealed.bytes())));
  set_length_and_checksum(sealed);
}

Mac seal_of(Bytes sealed) noexcept {
  Mac seal;
  std::ranges::copy(sealed.subspan(seal_at(sealed), kSealBytes), seal.begin());
  return seal;
}

Result<std::size_t> bytes_needed(Bytes have) noexcept {
  // Checks each byte as it comes, so that a peer that sends one wrong byte and stops is detected at once.
  const std::size_t magic_bytes = std::min(have.size(), kMagic.size());
  if (!std::ranges::equal(have.first(magic_bytes), std::span(kMagic).first(magic_bytes))) {
    return broken("this is not a Verbena handshake: it begins with another magic number");
  }
  if (const auto version = version_of(have); version && *version != kProtocolVersion) {
    return broken(
        "the other side speaks version {} of Verbena's handshake and this side version {}: "
        "run the same release on both",
        *version, kProtocolVersion);
  }
  if (have.size() < kHeaderBytes) return kHeaderBytes;
  const auto type = load<std::uint8_t>(have, kTypeOffset);
  if (!known_type(type)) return broken("a handshake frame has the unknown type {}", type);
  const auto cover = load<std::uint8_t>(have, kCoverOffset);
  if (!can_be(static_cast<FrameType>(type), cover)) {
    return broken("a handshake frame of type {} has the impossible seal flag {}", type, cover);
  }
  const auto length = load<std::uint32_t>(have, kLengthOffset);
  if (cover == static_cast<std::uint8_t>(Cover::kSealed) && length < kSealBytes) {
    return broken("a sealed handshake frame says it has {} bytes, which is less than its seal", length);
  }
  if (length > kMaxBodyBytes) {
    return broken("a handshake frame says it has {} bytes, and the limit is {}", length, kMaxBodyBytes);
  }
  return kHeaderBytes + length + kChecksumBytes;
}

std::optional<std::uint16_t> version_of(Bytes have) noexcept {
  if (have.size() < kVersionOffset + sizeof(std::uint16_t)) return std::nullopt;
  if (!std::ranges::equal(have.first(kMagic.size()), kMagic)) return std::nullopt;
  return load<std::uint16_t>(have, kVersionOffset);
}

Result<FrameType> decode_type(Bytes frame) noexcept {
  VERBENA_ASSIGN(const std::size_t needed, bytes_needed(frame));
  // A header alone fails here too, because the whole frame includes the checksum.
  if (frame.size() != needed) {
    return broken("a handshake frame has {} bytes and should have {}", frame.size(), needed);
  }
  const Bytes checked = frame.first(needed - kChecksumBytes);
  if (hash64(checked) != load<std::uint64_t>(frame, checked.size())) {
    return broken("the checksum of a handshake frame is wrong");
  }
  return static_cast<FrameType>(load<std::uint8_t>(frame, kTypeOffset));
}

Result<Endpoint> decode_hello(Bytes frame, Cover cover) noexcept {
  VERBENA_ASSIGN(const Bytes body, decode_body(frame, FrameType::kHello, cover));
  if (body.size() < kHelloFixedBytes) return broken("a HELLO of {} bytes is too short", body.size());
  Reader reader(body);
  Endpoint endpoint;
  endpoint.nic = static_cast<nic::Kind>(reader.take<std::uint8_t>());
  endpoint.qp.mtu = reader.take<std::uint8_t>();
  endpoint.qp.max_rd_atomic = reader.take<std::uint8_t>();
  endpoint.qp.network = static_cast<nic::Network>(reader.take<std::uint8_t>());
  endpoint.qp.lid = reader.take<std::uint16_t>();
  endpoint.private_bytes = reader.take<std::uint16_t>();
  std::memcpy(endpoint.qp.gid.raw, reader.take_bytes(sizeof endpoint.qp.gid.raw).data(), sizeof endpoint.qp.gid.raw);
  endpoint.qp.qp_num = reader.take<std::uint32_t>();
  endpoint.qp.psn = reader.take<std::uint32_t>();
  endpoint.recv_depth = reader.take<std::uint32_t>();
  endpoint.generation = reader.take<std::uint64_t>();
  if (const char* fault = fault_of(endpoint)) return broken("a HELLO has {}", fault);
  if (reader.left() != endpoint.private_bytes) {
    return broken("a HELLO says it has {} bytes of private data and has {}", endpoint.private_bytes, reader.left());
  }
  std::ranges::copy(reader.take_bytes(endpoint.private_bytes), endpoint.private_data.begin());
  return endpoint;
}

Result<Reject> decode_reject(Bytes frame) noexcept {
  VERBENA_ASSIGN(const Bytes body, decode_body(frame, FrameType::kReject, Cover::kOpen));
  if (body.size() < kRejectFixedBytes) return broken("a REJECT of {} bytes is too short", body.size());
  Reader reader(body);
  const auto status = reader.take<std::uint8_t>();
  if (reader.take<std::uint8_t>() != 0) return broken("a reserved byte of a REJECT is not 0");
  const std::size_t text_bytes = reader.take<std::uint16_t>();
  if (text_bytes != reader.left() || text_bytes > kMaxRejectText) {
    return broken("a REJECT says it has {} bytes of text and has {}", text_bytes, reader.left());
  }
  return make_reject(status, reader.take_bytes(text_bytes));
}

Result<std::uint64_t> decode_ready(Bytes frame, Cover cover) noexcept {
  VERBENA_ASSIGN(const Bytes body, decode_body(frame, FrameType::kReady, cover));
  if (body.size() != kReadyBytes) return broken("a READY has {} bytes and should have {}", body.size(), kReadyBytes);
  return load<std::uint64_t>(body, 0);
}

Result<KeyClaim> decode_key(Bytes frame) noexcept {
  VERBENA_ASSIGN(const Bytes body, decode_body(frame, FrameType::kKey, Cover::kOpen));
  if (body.size() < kKeyFixedBytes) return broken("a KEY of {} bytes is too short", body.size());
  Reader reader(body);
  KeyClaim claim;
  std::ranges::copy(reader.take_bytes(kNonceBytes), claim.nonce.begin());
  claim.text_bytes = reader.take<std::uint8_t>();
  if (claim.text_bytes != reader.left() || claim.text_bytes > kMaxKeyNameBytes) {
    return broken("a KEY says its name has {} bytes and has {}", claim.text_bytes, reader.left());
  }
  std::ranges::transform(reader.take_bytes(claim.text_bytes), claim.text.begin(),
                         [](std::byte byte) { return static_cast<char>(byte); });
  if (!is_key_name(claim.name())) return broken("a KEY has no name of a key");
  return claim;
}

Result<Nonce> decode_challenge(Bytes frame) noexcept {
  VERBENA_ASSIGN(const Bytes body, decode_body(frame, FrameType::kChallenge, Cover::kSealed));
  if (body.size() != kNonceBytes) {
    return broken("a CHALLENGE has {} bytes and should have {}", body.size(), kNonceBytes);
  }
  Nonce nonce;
  std::ranges::copy(body, nonce.begin());
  return nonce;
}

}  // namespace verbena::link
