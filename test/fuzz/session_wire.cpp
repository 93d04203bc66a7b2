// What a session takes from its peer: its part of the handshake, windows that were asked for, and the inbox's records.
#include "input.hpp"
#include "session/inbox.hpp"
#include "session/wire.hpp"

namespace verbena::fuzz::session_wire {
namespace {

namespace wire = session::wire;

enum class Form : std::uint8_t { kBytes, kFields, kFound, kInbox, kEnd };

void check_hello(Bytes bytes) {
  const Tight copy(bytes);
  const auto decoded = wire::decode(copy.bytes());
  if (!decoded) {
    VERBENA_CHECK(decoded.error().status() == Status::kProtocol && *decoded.error().text() != '\0');
    return;
  }
  VERBENA_CHECK(decoded->inbox_bytes >= wire::kMinInboxBytes && decoded->inbox_bytes <= wire::kMaxInboxBytes);
  const nic::Window& window = decoded->window;
  VERBENA_CHECK(window.length <= wire::kMaxWindowBytes && window.length % wire::kWindowUnit == 0);
  VERBENA_CHECK(window.address <= ~window.length);
  VERBENA_CHECK(same_bytes(wire::encode(*decoded), copy.bytes()));
}

/// Magic number and version right, and any bytes behind.
void check_fields(Bytes fields) {
  const auto whole = wire::encode({});
  Tight hello(whole.size());
  std::ranges::copy(whole, hello.writable().begin());
  std::ranges::copy(fields.first(std::min(fields.size(), whole.size() - 2)), hello.writable().begin() + 2);
  check_hello(hello.bytes());
}

void check_found(Bytes bytes) {
  const Tight copy(bytes);
  const auto found = wire::decode_found(copy.bytes());
  if (!found) return;
  VERBENA_CHECK(found->length != 0 && found->address <= ~found->length);
  VERBENA_CHECK(same_bytes(wire::encode_found(*found), copy.bytes()));
}

/// Records in and out: what comes out is what went in, and no more goes in than there is room.
void check_inbox(Input& in) {
  constexpr std::size_t kCapacity = 1024;
  session::Inbox inbox(kCapacity);
  std::size_t used = 0;
  std::uint64_t next_in = 0;
  std::uint64_t next_out = 0;
  const auto pop = [&] {
    Tight piece(inbox.length());
    VERBENA_CHECK(inbox.head().offset == next_out);
    inbox.copy(piece.writable().data());
    for (const std::byte byte : piece.bytes()) VERBENA_CHECK(byte == static_cast<std::byte>(next_out));
    used -= session::Inbox::bytes_of(inbox.length());
    inbox.pop();
    ++next_out;
  };
  while (!in.empty()) {
    const auto length = in.take<std::uint16_t>();
    if (length % 3 == 0) {
      if (!inbox.empty()) pop();
      continue;
    }
    const Tight piece = [&] {
      Tight made(length % kCapacity);
      std::ranges::fill(made.writable(), static_cast<std::byte>(next_in));
      return made;
    }();
    const bool fits = session::Inbox::bytes_of(piece.bytes().size()) <= kCapacity - used;
    VERBENA_CHECK(inbox.push({.offset = next_in}, piece.bytes()) == fits);
    if (!fits) continue;
    used += session::Inbox::bytes_of(piece.bytes().size());
    ++next_in;
  }
  while (!inbox.empty()) pop();
  VERBENA_CHECK(used == 0 && next_in == next_out);
}

void run(Input in) {
  switch (static_cast<Form>(in.take<std::uint8_t>() % static_cast<std::uint8_t>(Form::kEnd))) {
    case Form::kBytes: return check_hello(in.rest());
    case Form::kFields: return check_fields(in.rest());
    case Form::kFound: return check_found(in.rest());
    case Form::kInbox: return check_inbox(in);
    case Form::kEnd: return;
  }
}

}  // namespace
}  // namespace verbena::fuzz::session_wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::session_wire::run({data, size});
  return 0;
}
