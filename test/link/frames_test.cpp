// Handshake frames and blobs: round trips, and everything a hostile peer can make of them.
#include "support.hpp"

#include <xxhash.h>

#include <random>

namespace verbena::link {
namespace {

using test::contains;
using test::hex_of;
using test::make_endpoint;
using test::same;
using Bytes = std::vector<std::byte>;

Bytes to_bytes(const Frame& frame) { return {frame.bytes().begin(), frame.bytes().end()}; }

/// Makes the checksum right again, so that the checks behind it are reached.
void seal(Bytes& frame) {
  const std::uint64_t sum = XXH3_64bits(frame.data(), frame.size() - kChecksumBytes);
  for (std::size_t i = 0; i < kChecksumBytes; ++i) {
    frame[frame.size() - kChecksumBytes + i] = static_cast<std::byte>(sum >> (8 * i));
  }
}

void set_u16(Bytes& frame, std::size_t offset, unsigned value) {
  frame[offset] = static_cast<std::byte>(value);
  frame[offset + 1] = static_cast<std::byte>(value >> 8);
}

/// Status and text of the decoder's error; kOk when it took the frame.
template <class Decoded>
Status status_of(const Result<Decoded>& result) {
  return result ? Status::kOk : result.error().status();
}

/// One frame of every type and of the extreme sizes.
std::vector<Bytes> samples() {
  return {to_bytes(encode_hello(make_endpoint(1))),
          to_bytes(encode_hello(make_endpoint(2, 0))),
          to_bytes(encode_hello(make_endpoint(3, kMaxPrivateBytes))),
          to_bytes(encode_reject(Status::kNotAllowed, "uid 12 is not on the list")),
          to_bytes(encode_reject(Status::kLimit, "")),
          to_bytes(encode_ready(0x1122334455667788ULL)),
          to_bytes(encode_key("a-key", {std::byte{1}})),
          to_bytes(encode_key(std::string(kMaxKeyNameBytes, 'k'), {}))};
}

/// With seals that nobody checks here.
std::vector<Bytes> sealed_samples() {
  return {to_bytes(with_room_for_seal(encode_hello(make_endpoint(3, kMaxPrivateBytes)))),
          to_bytes(with_room_for_seal(encode_ready(0x1122334455667788ULL))),
          to_bytes(with_room_for_seal(encode_challenge({std::byte{2}})))};
}

/// All decoders on the same bytes, in memory of exactly their size so that a sanitizer sees a read
/// past it. Returns how many took them.
int decoders_that_take(std::span<const std::byte> bytes) {
  const Bytes exact(bytes.begin(), bytes.end());
  int taken = 0;
  const auto needed = bytes_needed(exact);
  if (needed) {
    EXPECT_GE(*needed, kHeaderBytes);
    EXPECT_LE(*needed, kMaxFrameBytes);
  }
  if (const auto hello = decode_hello(exact)) {
    ++taken;
    // There is one encoding of each endpoint.
    EXPECT_TRUE(std::ranges::equal(encode_hello(*hello).bytes(), exact));
    EXPECT_EQ(fault_of(*hello), nullptr);
  }
  if (const auto reject = decode_reject(exact)) {
    ++taken;
    EXPECT_LE(reject->text_bytes, kMaxRejectText);
    EXPECT_NE(reject->status, Status::kOk);
    EXPECT_LE(reject->status, Status::kSystem);
  }
  if (const auto key = decode_key(exact)) {
    ++taken;
    EXPECT_TRUE(std::ranges::equal(encode_key(key->name(), key->nonce).bytes(), exact));
  }
  if (const auto nonce = decode_challenge(exact)) {
    ++taken;
    Frame again = with_room_for_seal(encode_challenge(*nonce));
    set_seal(again, seal_of(exact));
    EXPECT_TRUE(std::ranges::equal(again.bytes(), exact));
  }
  if (const auto ready = decode_ready(exact)) {
    ++taken;
    EXPECT_TRUE(std::ranges::equal(encode_ready(*ready).bytes(), exact));
  }
  EXPECT_EQ(taken > 0 && !decode_type(exact), false);
  return taken;
}

TEST(Frames, HelloRoundTrip) {
  for (const std::size_t private_bytes : {std::size_t{0}, std::size_t{1}, kMaxPrivateBytes}) {
    const Endpoint sent = make_endpoint(5, private_bytes);
    const auto received = decode_hello(encode_hello(sent).bytes());
    ASSERT_TRUE(received.has_value()) << received.error().text();
    EXPECT_EQ(received->nic, sent.nic);
    EXPECT_TRUE(std::ranges::equal(received->qp.gid.raw, sent.qp.gid.raw));
    EXPECT_EQ(received->qp.qp_num, sent.qp.qp_num);
    EXPECT_EQ(received->qp.psn, sent.qp.psn);
    EXPECT_EQ(received->qp.lid, sent.qp.lid);
    EXPECT_EQ(received->qp.mtu, sent.qp.mtu);
    EXPECT_EQ(received->qp.max_rd_atomic, sent.qp.max_rd_atomic);
    EXPECT_EQ(received->recv_depth, sent.recv_depth);
    EXPECT_EQ(received->generation, sent.generation);
    EXPECT_TRUE(std::ranges::equal(received->user_data(), sent.user_data()));
  }
}

TEST(Frames, RejectRoundTrip) {
  const auto received = decode_reject(encode_reject(Status::kStoreFull, "no room for 3 more").bytes());
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->status, Status::kStoreFull);
  EXPECT_EQ(received->reason(), "no room for 3 more");
}

TEST(Frames, RejectTextIsCutAndMadePrintable) {
  const std::string text = "a\x1b[2J\n\xff" + std::string(kMaxRejectText, 'x');
  const auto received = decode_reject(encode_reject(Status::kRejected, text).bytes());
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->reason(), "a?[2J??" + std::string(kMaxRejectText - 7, 'x'));
}

TEST(Frames, RejectStatusIsChecked) {
  for (unsigned status = 0; status < 256; ++status) {
    Bytes frame = to_bytes(encode_reject(Status::kLimit, "why"));
    frame[kHeaderBytes] = static_cast<std::byte>(status);
    seal(frame);
    const auto received = decode_reject(frame);
    ASSERT_TRUE(received.has_value());
    const bool known = status > 0 && status <= static_cast<unsigned>(Status::kSystem);
    EXPECT_EQ(received->status, known ? static_cast<Status>(status) : Status::kRejected) << status;
  }
}

TEST(Frames, ReadyRoundTrip) {
  const auto received = decode_ready(encode_ready(0xFEDCBA9876543210ULL).bytes());
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(*received, 0xFEDCBA9876543210ULL);
}

// Header, body and checksum as version 2 has them for ever.
TEST(Frames, BytesAreTheSameOnEveryMachineAndInEveryRelease) {
  EXPECT_EQ(hex_of(encode_hello(make_endpoint(1, 3)).bytes()),
            "5652424e020001002f000000"
            "01051000121103001f202122232425262728292a2b2c2d2e04020100dfbc0a0001020000f0cdab896745230101080f"
            "2fd27105afdd37ff");
  EXPECT_EQ(hex_of(encode_hello(make_endpoint(2, 0)).bytes()),
            "5652424e020001002c000000"
            "01051000131100003e3f404142434445464748494a4b4c4d05020100e0bc0a0002020000f1cdab8967452301"
            "fbb9e20ac9d35e49");
  EXPECT_EQ(hex_of(encode_reject(Status::kNotAllowed, "uid 12\n").bytes()),
            "5652424e020002000b000000"
            "1a0007007569642031320a"
            "14b0f96cedeb141d");
  EXPECT_EQ(hex_of(encode_key("ab", {std::byte{7}}).bytes()),
            "5652424e0200040023000000"
            "070000000000000000000000000000000000000000000000000000000000000002"
            "6162"
            "729e496453d0a073");
  EXPECT_EQ(hex_of(encode_ready(0x0102030405060708ULL).bytes()),
            "5652424e0200030008000000"
            "0807060504030201"
            "0645686558182ee9");
}

TEST(Frames, WrongTypeIsRefusedByEachDecoder) {
  for (const Bytes& frame : samples()) EXPECT_EQ(decoders_that_take(frame), 1);
}

TEST(Frames, EveryTruncationIsRefused) {
  for (const Bytes& frame : samples()) {
    for (std::size_t size = 0; size < frame.size(); ++size) {
      const auto part = std::span(frame).first(size);
      EXPECT_EQ(decoders_that_take(part), 0) << size;
      const auto needed = bytes_needed(part);
      ASSERT_TRUE(needed.has_value()) << "the beginning of a frame is no error";
      EXPECT_EQ(*needed, size < kHeaderBytes ? kHeaderBytes : frame.size());
    }
    Bytes longer = frame;
    longer.push_back(std::byte{0});
    EXPECT_EQ(decoders_that_take(longer), 0);
  }
}

TEST(Frames, EverySingleByteCorruptionIsRefused) {
  for (const Bytes& frame : samples()) {
    for (std::size_t at = 0; at < frame.size(); ++at) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        Bytes bad = frame;
        bad[at] ^= static_cast<std::byte>(1U << bit);
        EXPECT_EQ(decoders_that_take(bad), 0) << at << " " << bit;
      }
    }
  }
}

TEST(Frames, CorruptionUnderARightChecksumIsRefusedOrValid) {
  for (const Bytes& frame : samples()) {
    for (std::size_t at = 0; at + kChecksumBytes < frame.size(); ++at) {
      for (unsigned value = 0; value < 256; value += at < kHeaderBytes + kHelloFixedBytes ? 1 : 51) {
        Bytes bad = frame;
        bad[at] = static_cast<std::byte>(value);
        seal(bad);
        EXPECT_LE(decoders_that_take(bad), 1);
      }
    }
  }
}

TEST(Frames, RandomGarbage) {
  std::mt19937 random(20240607);
  const auto valid = samples();
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes(random() % (kMaxFrameBytes + 40));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    // Half of them are given the beginning and the checksum of a real frame, to get past the first
    // checks.
    if (i % 2 == 0 && bytes.size() >= kHeaderBytes + kChecksumBytes) {
      std::ranges::copy(std::span(valid[random() % valid.size()]).first(8), bytes.begin());
      set_u16(bytes, 8, static_cast<unsigned>(bytes.size() - kHeaderBytes - kChecksumBytes));
      set_u16(bytes, 10, 0);
      seal(bytes);
    }
    EXPECT_LE(decoders_that_take(bytes), 1);
  }
}

// A seal is where it is due, and nowhere else; what is not sealed never is, and the other way round.
TEST(Frames, ASealIsDueOrNot) {
  for (const Bytes& sealed : sealed_samples()) {
    EXPECT_EQ(decoders_that_take(sealed), sealed[6] == std::byte{5} ? 1 : 0);
    EXPECT_EQ(decode_hello(sealed, Cover::kSealed).has_value(), sealed[6] == std::byte{1});
    EXPECT_EQ(decode_ready(sealed, Cover::kSealed).has_value(), sealed[6] == std::byte{3});
    EXPECT_EQ(decode_challenge(sealed).has_value(), sealed[6] == std::byte{5});
    for (const unsigned cover : {0U, 2U, 255U}) {
      Bytes other = sealed;
      other[7] = static_cast<std::byte>(cover);
      seal(other);
      EXPECT_FALSE(decode_hello(other, Cover::kSealed));
      EXPECT_FALSE(decode_ready(other, Cover::kSealed));
      EXPECT_FALSE(decode_challenge(other));
    }
  }
  for (Bytes open : samples()) {
    EXPECT_FALSE(decode_hello(open, Cover::kSealed));
    EXPECT_FALSE(decode_ready(open, Cover::kSealed));
    open[7] = std::byte{1};
    seal(open);
    EXPECT_EQ(decoders_that_take(open), 0);
    const bool can_be = open[6] == std::byte{1} || open[6] == std::byte{3};
    EXPECT_EQ(bytes_needed(open).has_value(), can_be && open.size() >= kHeaderBytes + kSealBytes + kChecksumBytes);
  }
}

TEST(Frames, ANameOfAKeyIsChecked) {
  for (const std::string& name : {std::string(), std::string("a b"), std::string("nu\0l", 4), std::string("\x80")})
    EXPECT_FALSE(decode_key(encode_key(name, {}).bytes())) << name;
  Bytes frame = to_bytes(encode_key("name", {}));
  for (const unsigned length : {3U, 5U, 33U, 255U}) {
    frame[kHeaderBytes + kNonceBytes] = static_cast<std::byte>(length);
    seal(frame);
    EXPECT_FALSE(decode_key(frame)) << length;
  }
}

TEST(Frames, OtherMagicIsKnownFromTheFirstByte) {
  for (const std::string_view text : {"H", "HTTP/1.1 200 OK", "VRBX", "\x16\x03\x01"}) {
    const auto needed = bytes_needed(std::as_bytes(std::span(text)));
    ASSERT_FALSE(needed.has_value()) << text;
    EXPECT_EQ(needed.error().status(), Status::kProtocol);
    EXPECT_TRUE(contains(needed.error(), "not a Verbena handshake"));
    EXPECT_FALSE(version_of(std::as_bytes(std::span(text))).has_value());
  }
}

TEST(Frames, OtherVersionNamesBoth) {
  Bytes frame = to_bytes(encode_hello(make_endpoint(1)));
  set_u16(frame, 4, 258);
  seal(frame);
  const auto refused = decode_hello(frame);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().status(), Status::kProtocol);
  EXPECT_TRUE(contains(refused.error(), "version 258")) << refused.error().text();
  EXPECT_TRUE(contains(refused.error(), fmt::format("version {}:", kProtocolVersion))) << refused.error().text();
  // Known from the six bytes that no version moves, whatever another version does with the rest.
  EXPECT_FALSE(bytes_needed(std::span(frame).first(6)).has_value());
  EXPECT_EQ(version_of(std::span(frame).first(6)), 258);
}

TEST(Frames, TooLongIsKnownFromTheHeader) {
  Bytes frame = to_bytes(encode_hello(make_endpoint(1)));
  for (const unsigned length : {unsigned{kMaxBodyBytes} + 1, 65535U}) {
    set_u16(frame, 8, length);
    const auto needed = bytes_needed(std::span(frame).first(kHeaderBytes));
    ASSERT_FALSE(needed.has_value());
    EXPECT_EQ(needed.error().status(), Status::kProtocol);
  }
  set_u16(frame, 8, 0);
  set_u16(frame, 10, 0xFFFF);
  EXPECT_FALSE(bytes_needed(std::span(frame).first(kHeaderBytes)).has_value());
}

TEST(Frames, FieldsOfHelloAreChecked) {
  const auto refused = [](std::size_t offset, unsigned value) {
    Bytes frame = to_bytes(encode_hello(make_endpoint(1)));
    frame[kHeaderBytes + offset] = static_cast<std::byte>(value);
    seal(frame);
    return status_of(decode_hello(frame)) == Status::kProtocol;
  };
  EXPECT_TRUE(refused(0, 0));  // NIC kind
  EXPECT_TRUE(refused(0, 3));
  EXPECT_TRUE(refused(0, 2));  // An RDMA device, and yet no network.
  EXPECT_TRUE(refused(1, 0));  // MTU
  EXPECT_TRUE(refused(1, 6));
  EXPECT_FALSE(refused(1, 1));
  EXPECT_TRUE(refused(3, 1));   // network, which the soft NIC has none of
  EXPECT_TRUE(refused(6, 36));  // private bytes, 37 are there
  EXPECT_TRUE(refused(6, 38));
  EXPECT_TRUE(refused(7, 2));   // private bytes past the maximum
  EXPECT_TRUE(refused(31, 1));  // psn of 25 bits
}

TEST(Endpoint, UserDataHasALimit) {
  Endpoint endpoint = make_endpoint(1);
  const Bytes data(kMaxPrivateBytes + 1);
  EXPECT_EQ(endpoint.set_user_data(data), Status::kTooLong);
  EXPECT_EQ(endpoint.user_data().size(), 37U);
  EXPECT_EQ(endpoint.set_user_data(std::span(data).first(kMaxPrivateBytes)), Status::kOk);
  EXPECT_EQ(endpoint.user_data().size(), kMaxPrivateBytes);
}

TEST(Endpoint, FaultNamesWhatIsWrong) {
  EXPECT_EQ(fault_of(make_endpoint(1)), nullptr);
  Endpoint device = make_endpoint(1);
  device.nic = nic::Kind::kVerbs;
  EXPECT_NE(fault_of(device), nullptr);
  device.qp.network = nic::Network::kRoceV2Ipv6;
  EXPECT_EQ(fault_of(device), nullptr);
  device.qp.network = static_cast<nic::Network>(5);
  EXPECT_NE(fault_of(device), nullptr);
  device.qp.network = nic::Network::kInfiniBand;
  device.qp.qp_num = 1U << 24;
  EXPECT_NE(fault_of(device), nullptr);
  Endpoint overfull = make_endpoint(1);
  overfull.private_bytes = kMaxPrivateBytes + 1;
  EXPECT_NE(fault_of(overfull), nullptr);
  EXPECT_LE(encode_hello(overfull).size, kMaxFrameBytes);
  EXPECT_NE(fault_of(Endpoint{}), nullptr);
}

TEST(Blob, RoundTrip) {
  for (const std::size_t private_bytes : {std::size_t{0}, std::size_t{100}, kMaxPrivateBytes}) {
    const Endpoint sent = make_endpoint(9, private_bytes);
    const auto received = import_blob(export_blob(sent));
    ASSERT_TRUE(received.has_value()) << received.error().text();
    EXPECT_TRUE(same(*received, sent));
  }
}

TEST(Blob, EveryOtherSizeIsRefused) {
  const Blob blob = export_blob(make_endpoint(9));
  for (std::size_t size = 0; size < kBlobBytes; ++size) {
    EXPECT_EQ(status_of(import_blob(Bytes(blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(size)))),
              Status::kProtocol);
  }
  Bytes longer(blob.begin(), blob.end());
  longer.push_back(std::byte{0});
  const auto refused = import_blob(longer);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(contains(refused.error(), "641")) << refused.error().text();
}

TEST(Blob, EverySingleByteCorruptionIsRefused) {
  const Blob blob = export_blob(make_endpoint(9));
  for (std::size_t at = 0; at < kBlobBytes; ++at) {
    Blob bad = blob;
    bad[at] ^= std::byte{0x40};
    EXPECT_EQ(status_of(import_blob(bad)), Status::kProtocol) << at;
  }
}

TEST(Blob, OtherFramesAndGarbageAreRefused) {
  Blob blob{};
  EXPECT_EQ(status_of(import_blob(blob)), Status::kProtocol);
  std::ranges::copy(encode_ready(1).bytes(), blob.begin());
  EXPECT_EQ(status_of(import_blob(blob)), Status::kProtocol);
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    for (std::byte& byte : blob) byte = static_cast<std::byte>(random());
    EXPECT_EQ(status_of(import_blob(blob)), Status::kProtocol);
  }
}

}  // namespace
}  // namespace verbena::link
