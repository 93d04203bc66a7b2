// Handshake frames, the socket's inbox and blobs.
#include "base/hash.hpp"
#include "input.hpp"
#include "link/frames.hpp"
#include "link/socket.hpp"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <chrono>
#include <string_view>

namespace verbena::fuzz::link_frames {
namespace {

using namespace link;

/// How the rest of the input is meant.
enum class Form : std::uint8_t { kBytes, kSealed, kStream, kSealedStream, kBlob, kSealedBlob, kEnd };

/// A frame around type, reserved byte and body, with everything else right.
Frame seal(Input& in) noexcept {
  Frame frame = encode_ready(0);
  frame.data[6] = in.take<std::byte>();
  frame.data[7] = in.take<std::byte>();
  const Bytes body = in.take_bytes(kMaxBodyBytes);
  const auto length = static_cast<std::uint32_t>(body.size());
  std::memcpy(frame.data.data() + 8, &length, sizeof length);
  std::ranges::copy(body, frame.data.begin() + kHeaderBytes);
  frame.size = kHeaderBytes + body.size();
  const std::uint64_t checksum = hash64(frame.bytes());
  std::memcpy(frame.data.data() + frame.size, &checksum, sizeof checksum);
  frame.size += sizeof checksum;
  return frame;
}

template <class T>
void check_error(const Result<T>& result) noexcept {
  if (result) return;
  VERBENA_CHECK(result.error().status() == Status::kProtocol);
  VERBENA_CHECK(*result.error().text() != '\0');
}

void check_hello(const Endpoint& hello, Bytes frame) noexcept {
  VERBENA_CHECK(fault_of(hello) == nullptr);
  VERBENA_CHECK(hello.user_data().size() <= kMaxPrivateBytes);
  VERBENA_CHECK(same_bytes(encode_hello(hello).bytes(), frame));
  const auto back = import_blob(export_blob(hello));
  VERBENA_CHECK(back && same_bytes(encode_hello(*back).bytes(), frame));
}

/// What comes of a REJECT goes to terminals and into logs. Another release's status and unprintable text are taken, so
/// only the second encoding is the first again.
void check_reject(const Reject& reject) noexcept {
  VERBENA_CHECK(reject.status > Status::kOk && reject.status <= Status::kSystem);
  VERBENA_CHECK(reject.text_bytes <= kMaxRejectText);
  VERBENA_CHECK(std::ranges::all_of(reject.reason(), [](char c) { return c >= ' ' && c <= '~'; }));
  const auto again = decode_reject(encode_reject(reject.status, reject.reason()).bytes());
  VERBENA_CHECK(again && again->status == reject.status && again->reason() == reject.reason());
}

/// The length is known as soon as the header is there and does not change; what can be no frame stays none.
void check_needed(Bytes frame) {
  bool failed = false;
  std::size_t known = kHeaderBytes;
  for (std::size_t have = 0; have <= std::min(frame.size(), kHeaderBytes + 1); ++have) {
    const auto needed = bytes_needed(Tight(frame.first(have)).bytes());
    check_error(needed);
    VERBENA_CHECK(!failed || !needed);
    failed = !needed;
    if (failed) continue;
    VERBENA_CHECK(*needed >= kHeaderBytes && *needed <= kMaxFrameBytes);
    VERBENA_CHECK(have < kHeaderBytes ? *needed == kHeaderBytes : have == kHeaderBytes || *needed == known);
    known = *needed;
  }
  const auto whole = bytes_needed(frame);
  VERBENA_CHECK(whole.has_value() == !failed);
  if (whole) VERBENA_CHECK(*whole == known);
}

/// A frame of ours, with the seal of that one.
Frame with_seal_of(Bytes frame, const Frame& open) noexcept {
  Frame sealed = with_room_for_seal(open);
  set_seal(sealed, seal_of(frame));
  return sealed;
}

/// A frame is never taken both with a seal and without, and there is one encoding of each.
void check_sealed(Bytes frame) noexcept {
  const auto hello = decode_hello(frame, Cover::kSealed);
  const auto ready = decode_ready(frame, Cover::kSealed);
  check_error(hello);
  check_error(ready);
  if (hello)
    VERBENA_CHECK(same_bytes(with_seal_of(frame, encode_hello(*hello)).bytes(), frame) && !decode_hello(frame));
  if (ready)
    VERBENA_CHECK(same_bytes(with_seal_of(frame, encode_ready(*ready)).bytes(), frame) && !decode_ready(frame));
}

void check_frame(Bytes bytes) {
  const Tight copy(bytes);
  const Bytes frame = copy.bytes();
  check_needed(frame);
  const auto version = version_of(frame);
  const auto type = decode_type(frame);
  const auto hello = decode_hello(frame);
  const auto reject = decode_reject(frame);
  const auto ready = decode_ready(frame);
  check_error(type);
  check_error(hello);
  check_error(reject);
  check_error(ready);
  const auto key = decode_key(frame);
  const auto challenge = decode_challenge(frame);
  check_error(key);
  check_error(challenge);
  check_sealed(frame);
  if (type) VERBENA_CHECK(version == kProtocolVersion && *bytes_needed(frame) == frame.size());
  VERBENA_CHECK(!hello || (type && *type == FrameType::kHello));
  VERBENA_CHECK(!reject || (type && *type == FrameType::kReject));
  VERBENA_CHECK(!ready || (type && *type == FrameType::kReady));
  VERBENA_CHECK(!key || (type && *type == FrameType::kKey));
  VERBENA_CHECK(!challenge || (type && *type == FrameType::kChallenge));
  if (key) VERBENA_CHECK(is_key_name(key->name()) && same_bytes(encode_key(key->name(), key->nonce).bytes(), frame));
  if (challenge) VERBENA_CHECK(same_bytes(with_seal_of(frame, encode_challenge(*challenge)).bytes(), frame));
  if (hello) check_hello(*hello, frame);
  if (reject) check_reject(*reject);
  if (ready) VERBENA_CHECK(same_bytes(encode_ready(*ready).bytes(), frame));
}

std::size_t unread(int fd) noexcept {
  int count = 0;
  VERBENA_CHECK(ioctl(fd, FIONREAD, &count) == 0);
  return static_cast<std::size_t>(count);
}

/// The stream comes in pieces of `piece` bytes, then ends.
void check_stream(Bytes stream, std::size_t piece) {
  int ends[2];
  VERBENA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const Fd peer(ends[0]);
  const Fd mine(ends[1]);
  stream = stream.first(std::min(stream.size(), 2 * kMaxFrameBytes));
  Inbox inbox;
  std::size_t sent = 0;
  bool failed = false;
  bool whole = false;
  while (sent < stream.size() && !failed && !whole) {
    const Bytes next = stream.subspan(sent, std::min(piece, stream.size() - sent));
    VERBENA_CHECK(send(peer.get(), next.data(), next.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(next.size()));
    sent += next.size();
    const auto arrival = take_arrived(mine.get(), inbox);
    check_error(arrival);
    failed = !arrival;
    whole = arrival && *arrival == Arrival::kWhole;
    VERBENA_CHECK(!arrival || *arrival != Arrival::kEnd);
    VERBENA_CHECK(inbox.need <= kMaxFrameBytes && inbox.have <= inbox.need);
    VERBENA_CHECK(whole == (!failed && inbox.have == inbox.need));
    // Never more than this frame, and nothing lost.
    VERBENA_CHECK(inbox.have + unread(mine.get()) == sent);
    VERBENA_CHECK(same_bytes(inbox.bytes(), stream.first(inbox.have)));
  }
  if (failed) return;
  // The end is there, so that nothing waits.
  VERBENA_CHECK(shutdown(peer.get(), SHUT_WR) == 0);
  const auto received =
      receive_frame(mine.get(), inbox, {.peer = "peer", .awaited = "frame"}, Deadline::after(std::chrono::seconds(60)));
  if (!whole) {
    VERBENA_CHECK(!received && received.error().status() == Status::kPeerLost);
    return;
  }
  const auto type = decode_type(inbox.bytes());
  VERBENA_CHECK(received.has_value() == (type && *type != FrameType::kReject));
  if (received) return;
  const auto reject = decode_reject(inbox.bytes());
  VERBENA_CHECK(received.error().status() == (reject ? reject->status : Status::kProtocol));
}

void check_blob(Bytes bytes) {
  const Tight copy(bytes);
  const auto endpoint = import_blob(copy.bytes());
  check_error(endpoint);
  if (endpoint) VERBENA_CHECK(same_bytes(export_blob(*endpoint), copy.bytes()));
}

/// A blob around a frame, its padding beginning with `padding`.
Tight padded(Bytes frame, Bytes padding) {
  Tight blob(kBlobBytes);
  const auto rest = std::ranges::copy(frame, blob.writable().begin()).out;
  std::ranges::copy(padding.first(std::min(padding.size(), kBlobBytes - frame.size())), rest);
  return blob;
}

void run(Input in) {
  switch (static_cast<Form>(in.take<std::uint8_t>() % static_cast<std::uint8_t>(Form::kEnd))) {
    case Form::kBytes: return check_frame(in.rest());
    case Form::kSealed: return check_frame(seal(in).bytes());
    case Form::kStream: {
      const auto piece = std::size_t{1} + in.take<std::uint8_t>();
      return check_stream(in.rest(), piece);
    }
    case Form::kSealedStream: {
      const auto piece = std::size_t{1} + in.take<std::uint8_t>();
      return check_stream(seal(in).bytes(), piece);
    }
    case Form::kBlob: return check_blob(in.rest());
    case Form::kSealedBlob: {
      const Bytes padding = in.take_bytes(4);
      return check_blob(padded(seal(in).bytes(), padding).bytes());
    }
    case Form::kEnd: return;
  }
}

}  // namespace
}  // namespace verbena::fuzz::link_frames

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::link_frames::run({data, size});
  return 0;
}
