#include "kv/wire.hpp"

#include "channel/wire.hpp"
#include "kv/access.hpp"
#include "kv/index.hpp"
#include "link/link.hpp"

#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

namespace verbena::kv::wire {
namespace {

static_assert(channel::wire::kMaxHandshakeBytes + sizeof(ServerHello) <= link::kMaxCmAnswerBytes,
              "RDMA CM cannot carry a hello of this size");

// Takes a frame off the front of `data`. False: `data` is too short.
template <class Frame>
bool take(std::span<const std::byte>& data, Frame& frame) noexcept {
  static_assert(std::is_trivially_copyable_v<Frame>);
  if (data.size() < sizeof frame) return false;
  std::memcpy(static_cast<void*>(&frame), data.data(), sizeof frame);
  data = data.subspan(sizeof frame);
  return true;
}

// Takes a frame that is all of `data`.
template <class Frame>
bool take_all(std::span<const std::byte> data, Frame& frame) noexcept {
  return take(data, frame) && data.empty();
}

/// A client's hello, laid out as the header's table says.
struct [[gnu::packed]] ClientHelloBytes {
  std::array<char, 2> magic{'V', 'K'};
  std::uint16_t version = 0;
  std::uint8_t worker = 0;
  std::uint8_t flags = 0;
  std::uint16_t depth = 0;
  std::uint64_t client : 48 = 0;
  std::uint64_t address : 48 = 0;
  std::uint32_t rkey = 0;
  std::uint64_t memory_id : 48 = 0;
};
static_assert(sizeof(ClientHelloBytes) == kClientHelloBytes);
static_assert(channel::wire::kMinHandshakeBytes + kClientHelloBytes <= link::kMaxCmRequestBytes,
              "RDMA CM cannot carry a hello of this size");
constexpr std::uint64_t kAddressUnit = 64;

bool has_no_key(Op op) noexcept { return op == Op::kStatistics || op == Op::kGoodbye || op == Op::kReads; }
bool has_word(Op op) noexcept {
  return op == Op::kCas || op == Op::kStatistics || op == Op::kCell || op == Op::kGetPart || op == Op::kReads;
}
bool has_terms(Op op) noexcept { return op == Op::kPut || op == Op::kCas || op == Op::kPutLarge || op == Op::kPutRead; }
bool has_value(Op op) noexcept { return op == Op::kPut || op == Op::kCas; }

bool is_eager(Op op) noexcept {
  return (op >= Op::kGet && op <= Op::kGoodbye) || op == Op::kCell || op == Op::kGetPart || op == Op::kPutRead ||
         (op >= Op::kKeys && op <= Op::kReads);
}

/// Checks a head's flags, and takes what they say follows it. kAgain: `body` is too short.
Status take_terms(const RequestHead& head, std::span<const std::byte>& body, std::uint64_t& ttl_ns) noexcept {
  ttl_ns = 0;
  if (head.flags == 0) [[likely]]
    return Status::kOk;
  if (head.flags != kHasTtl || !has_terms(head.op)) return Status::kProtocol;
  if (!take(body, ttl_ns)) return Status::kAgain;
  return ttl_ns - 1 < kMostTtlNs ? Status::kOk : Status::kProtocol;
}

bool take_read(std::span<const std::byte>& body, Request& request) noexcept {
  ReadHead read;
  if (!take(body, read) || read.value_length < kEagerBytes || read.value_length > kMostValueBytes ||
      read.address > ~read.value_length || read.reserved != 0)
    return false;
  request.expected = read.expected;
  request.large = {.length = read.value_length, .address = read.address, .rkey = read.rkey};
  return true;
}

Status check_key(std::size_t length) noexcept {
  return length >= 1 && length <= kMaxKeyBytes ? Status::kOk : Status::kBadKey;
}

// Checks the index, with which the window begins.
bool is_index_sound(const ServerHello& hello) noexcept {
  if ((hello.flags & kByMessage) != 0) return window_of(hello) == nic::Window{} && hello.index_buckets == 0;
  return hello.index_buckets != 0 && hello.index_buckets % 2 == 0 && hello.index_buckets <= buckets_for(kMaxItems) &&
         hello.window_length <= kMaxWindowBytes && index_bytes(hello.index_buckets) <= hello.window_length;
}

bool are_marks_sound(const ServerHello& hello) noexcept {
  if (hello.marks_address == 0) return hello.marks_rkey == 0 && hello.marks_memory == 0;
  return hello.index_buckets != 0 && hello.marks_address <= ~mark_bytes(hello.index_buckets);
}

bool is_location_sound(const Location& location) noexcept {
  return location.length >= kEagerBytes && location.address <= ~location.length && location.reserved == 0;
}

/// Whether a NIC can use the cell and would touch nothing but a cell.
bool is_cell_sound(const CellPlace& cell) noexcept {
  constexpr std::uint32_t kRights = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr std::uint64_t kBytes = sizeof(std::uint64_t);
  return cell.window_address % kBytes == 0 && cell.offset % kBytes == 0 && cell.window_address <= ~cell.window_length &&
         cell.window_length >= kBytes && cell.offset <= cell.window_length - kBytes &&
         (cell.window_access & kRights) == kRights && cell.is_new <= 1 && cell.reserved == 0;
}

/// Checks that the part has exactly the bytes it must have, so that asking for the next part comes to an end.
bool is_part_sound(const Part& part, std::size_t bytes) noexcept {
  return part.length >= kEagerBytes && part.length <= kMostValueBytes && part.offset < part.length &&
         bytes == std::min(kPartBytes, part.length - part.offset);
}

bool is_refusal_sound(const Refusal& refusal, std::size_t bytes) noexcept {
  return refusal.right <= Rights::kAdminister && refusal.quota <= static_cast<std::uint8_t>(Quota::kItems) &&
         refusal.prefix_length <= kMaxKeyBytes && refusal.is_promised <= 1 && refusal.reserved == 0 &&
         bytes == std::min<std::size_t>(kMostPrefixBytes, refusal.prefix_length);
}

/// Checks that the bytes are keys, and as many as the page says; without bytes the number counts erased keys.
bool is_page_sound(const ScanPage& page, std::span<const std::byte> keys) noexcept {
  if (page.reserved != 0 || keys.size() > KeyPage::kBytes) return false;
  if (page.next.seal == 0 && page.next != ScanPlace{}) return false;
  if (keys.empty()) return true;
  std::uint32_t count = 0;
  for (std::uint16_t length = 0; !keys.empty(); keys = keys.subspan(length), ++count)
    if (!take(keys, length) || length == 0 || length > kMaxKeyBytes || length > keys.size()) return false;
  return count == page.count;
}

bool is_expiry_sound(const Expiry& expiry) noexcept {
  return expiry.until_ns != 0 && (expiry.until_ns | expiry.clock_ns) >> 63 == 0;
}

bool has_expiry(ReplyKind kind) noexcept {
  return kind == ReplyKind::kValue || kind == ReplyKind::kLocation || kind == ReplyKind::kPart;
}

bool is_status_sound(const ReplyHead& head) noexcept {
  const bool is_refusal = head.status == Status::kDenied || head.status == Status::kOverQuota;
  return (is_refusal || head.status <= Status::kSystem) && is_refusal == (head.kind == ReplyKind::kRefusal);
}

}  // namespace

std::array<std::byte, kClientHelloBytes> encode(const ClientHello& hello) noexcept {
  ClientHelloBytes bytes;
  bytes.version = hello.version;
  bytes.worker = hello.worker;
  bytes.flags = hello.flags;
  bytes.depth = hello.depth;
  bytes.client = hello.client & kMostClient;
  bytes.address = hello.source.address / kAddressUnit & kMostClient;
  bytes.rkey = hello.source.rkey;
  bytes.memory_id = hello.source.memory_id & kMostMemoryId;
  return std::bit_cast<std::array<std::byte, kClientHelloBytes>>(bytes);
}

std::expected<ClientHello, Status> decode_client_hello(std::span<const std::byte> data) noexcept {
  constexpr ClientHelloBytes kWanted;
  ClientHelloBytes bytes;
  if (!take_all(data, bytes) || bytes.magic != kWanted.magic || bytes.version != kVersion || bytes.client == 0 ||
      bytes.depth == 0 || (bytes.flags & ~kClientFlags) != 0)
    return std::unexpected(Status::kProtocol);
  if (bytes.memory_id == 0 && (bytes.address != 0 || bytes.rkey != 0)) return std::unexpected(Status::kProtocol);
  return ClientHello{
      .version = bytes.version,
      .worker = bytes.worker,
      .client = bytes.client,
      .depth = bytes.depth,
      .flags = bytes.flags,
      .source = {.address = bytes.address * kAddressUnit, .memory_id = bytes.memory_id, .rkey = bytes.rkey}};
}

std::expected<ServerHello, Status> decode_server_hello(std::span<const std::byte> data) noexcept {
  ServerHello hello;
  if (!take_all(data, hello) || hello.magic != kMagic || hello.version != kVersion || hello.workers == 0 ||
      hello.workers > 64 || hello.depth == 0 || hello.depth > 1024 || hello.max_key_bytes != kMaxKeyBytes ||
      hello.max_value_bytes == 0 || hello.max_value_bytes > kMostValueBytes || hello.grace_ns == 0 ||
      hello.grace_ns > kMostGraceNs || hello.window_address > ~hello.window_length ||
      (hello.flags & ~kHelloFlags) != 0 || !is_index_sound(hello) || !are_marks_sound(hello))
    return std::unexpected(Status::kProtocol);
  return hello;
}

Status decode_request(std::span<const std::byte> body, Request& request) noexcept {
  request = {};
  if (!take(body, request.head)) return Status::kProtocol;
  const RequestHead& head = request.head;
  if (!is_eager(head.op) || take_terms(head, body, request.ttl_ns) != Status::kOk) return Status::kProtocol;
  if (has_word(head.op)) {
    if (!take(body, request.expected)) return Status::kProtocol;
    if (head.op == Op::kGetPart && request.expected >= kMostValueBytes) return Status::kProtocol;
    if (head.op != Op::kCell && request.expected == kAnyVersion) return Status::kProtocol;
  }
  if (has_no_key(head.op)) return head.key_length == 0 && body.empty() ? Status::kOk : Status::kProtocol;
  if (head.op == Op::kPutRead && !take_read(body, request)) return Status::kProtocol;
  if (body.size() < head.key_length) return Status::kProtocol;
  request.key = body.first(head.key_length);
  request.value = body.subspan(head.key_length);
  if (is_scan(head.op)) {
    if (!take_all(std::exchange(request.value, {}), request.scan)) return Status::kProtocol;
    return head.key_length <= kMaxKeyBytes ? Status::kOk : Status::kBadKey;
  }
  if (!has_value(head.op) && !request.value.empty()) return Status::kProtocol;
  if (request.value.size() >= kEagerBytes) return Status::kTooLong;
  return check_key(head.key_length);
}

std::size_t encode_head(RequestHead head, std::uint64_t expected, std::span<std::byte, 24> out,
                        std::uint64_t ttl_ns) noexcept {
  std::size_t bytes = sizeof head;
  if (ttl_ns != 0) {
    head.flags = kHasTtl;
    std::memcpy(out.data() + bytes, &ttl_ns, sizeof ttl_ns);
    bytes += sizeof ttl_ns;
  }
  std::memcpy(out.data(), &head, sizeof head);
  if (!has_word(head.op)) return bytes;
  std::memcpy(out.data() + bytes, &expected, sizeof expected);
  return bytes + sizeof expected;
}

Status decode_large(std::span<const std::byte> data, LargeFront& front, std::size_t& needed) noexcept {
  needed = sizeof(RequestHead);
  if (!take(data, front.head)) return Status::kAgain;
  if (front.head.op == Op::kMoreLarge)
    return front.head.key_length == 0 && front.head.flags == 0 ? Status::kOk : Status::kProtocol;
  if (front.head.op != Op::kPutLarge || check_key(front.head.key_length) != Status::kOk) return Status::kProtocol;
  if ((front.head.flags & kHasTtl) != 0) needed += sizeof front.ttl_ns;
  if (const Status terms = take_terms(front.head, data, front.ttl_ns); terms != Status::kOk) return terms;
  needed += sizeof(LargeHead) + front.head.key_length;
  if (!take(data, front.large) || data.size() < front.head.key_length) return Status::kAgain;
  if (front.large.value_length < kEagerBytes || front.large.reserved != 0) return Status::kProtocol;
  std::memcpy(front.key.data(), data.data(), front.head.key_length);
  return Status::kOk;
}

Status decode_reply(std::span<const std::byte> body, Reply& reply) noexcept {
  if (!take(body, reply.head)) return Status::kProtocol;
  if (!is_status_sound(reply.head)) return Status::kProtocol;
  const bool is_ok = reply.head.status == Status::kOk;
  reply.expiry = {};
  if (reply.head.flags != 0) [[unlikely]] {
    if (reply.head.flags != kTellsExpiry || !has_expiry(reply.head.kind)) return Status::kProtocol;
    if (!take(body, reply.expiry) || !is_expiry_sound(reply.expiry)) return Status::kProtocol;
  }
  if (reply.head.entry != 0 && (!is_ok || Entry::unpack(reply.head.entry).lines == 0)) return Status::kProtocol;
  const auto is_sound = [&] {
    switch (reply.head.kind) {
      case ReplyKind::kPlain:
      case ReplyKind::kGoodbye: return body.empty();
      case ReplyKind::kValue: reply.value = body; return is_ok && body.size() < kEagerBytes;
      case ReplyKind::kStatistics:
        reply.value = body;
        return is_ok && body.size() % 8 == 0 && body.size() <= kEagerBytes;
      case ReplyKind::kLocation: return is_ok && take_all(body, reply.location) && is_location_sound(reply.location);
      case ReplyKind::kPart:
        if (!is_ok || !take(body, reply.part)) return false;
        reply.value = body;
        return is_part_sound(reply.part, body.size());
      case ReplyKind::kRefusal:
        if (!take(body, reply.refusal)) return false;
        reply.value = body;
        return is_refusal_sound(reply.refusal, body.size());
      case ReplyKind::kScanned:
        if (!is_ok || !take(body, reply.scanned)) return false;
        reply.value = body;
        return is_page_sound(reply.scanned, body);
      case ReplyKind::kFull: return reply.head.status == Status::kStoreFull && take_all(body, reply.full);
      case ReplyKind::kCell: return is_ok && take_all(body, reply.cell) && is_cell_sound(reply.cell);
    }
    return false;
  };
  return is_sound() ? Status::kOk : Status::kProtocol;
}

}  // namespace verbena::kv::wire
