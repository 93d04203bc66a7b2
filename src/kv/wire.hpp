// Frames of the store's protocol: fixed, little-endian, and decoded with every length and enum checked.
//
// Decoders take private memory (a peer could change shared memory while they read) and copy what they keep.
#pragma once

#include "kv/index.hpp"
#include "nic/nic.hpp"

#include <verbena/kv.hpp>

#include <infiniband/verbs.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <expected>
#include <span>

namespace verbena::kv::wire {

static_assert(std::endian::native == std::endian::little, "frames are copied without conversion");

inline constexpr std::uint32_t kMagic = 0x564b4256;  // "VBKV"
inline constexpr std::uint16_t kVersion = 5;

// --- handshake: part of the bootstrap's user data, one per channel

/// Client to server, encoded. A client opens one channel to each worker, worker 0 first, all under one id.
/// Little-endian, of exactly this length: with the message layer's 10 bytes it fills RDMA CM's private data.
///
///   offset  bytes  field                        offset  bytes  field
///        0      2  magic 'VK'                        14      6  source: address, in units of 64 bytes
///        2      2  version                           20      4  source: rkey
///        4      1  worker                            24      6  source: memory id; 0: none
///        5      1  flags
///        6      2  depth
///        8      6  client
inline constexpr std::size_t kClientHelloBytes = 30;
struct ClientHello {
  std::uint16_t version = kVersion;
  std::uint8_t worker = 0;
  std::uint64_t client = 0;  ///< Random, 1 to kMostClient.
  std::uint16_t depth = 0;   ///< Requests it will have in flight on this channel.
  std::uint8_t flags = 0;
  /// The memory that the server READs large values from, on a NIC that maps windows: the server imports it while it
  /// connects. Other NICs need the key in the request only.
  struct Source {
    std::uint64_t address = 0;  ///< The region's first; a multiple of 64.
    std::uint64_t memory_id = 0;
    std::uint32_t rkey = 0;
    friend bool operator==(const Source&, const Source&) = default;
  } source;
  friend bool operator==(const ClientHello&, const ClientHello&) = default;
};
inline constexpr std::uint64_t kMostClient = (std::uint64_t{1} << 48) - 1;
inline constexpr std::uint64_t kMostMemoryId = kMostClient;

/// ClientHello::flags.
inline constexpr std::uint8_t kReadOnly = 1;             ///< The client promises to change nothing.
inline constexpr std::uint8_t kClientFlags = kReadOnly;  ///< All defined flags; a hello with others is refused.

/// Cuts what does not fit.
[[nodiscard]] std::array<std::byte, kClientHelloBytes> encode(const ClientHello& hello) noexcept;

/// The longest grace period that a server may have.
inline constexpr std::uint64_t kMostGraceNs = 60'000'000'000;

/// ServerHello::flags.
inline constexpr std::uint32_t kByMessage = 1;  ///< The server grants and announces no window; this client must ask for
                                                ///< everything by message.
/// Some clients may write some keys only, and the bytes of their values must not pass for items of other keys. So an
/// item counts only if the index names it before and after the READ.
inline constexpr std::uint32_t kGuarded = 2;
inline constexpr std::uint32_t kHelloFlags = kByMessage | kGuarded;  ///< All defined flags; a hello with others is
                                                                     ///< refused.

/// Server to client: limits, and the worker's window for READs: its index (index.hpp) with the items behind it.
struct ServerHello {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t workers = 0;
  std::uint64_t server = 0;  ///< Random per server; all channels of a client must see the same.
  std::uint32_t depth = 0;   ///< Requests that the client may have in flight on this channel.
  std::uint32_t max_key_bytes = 0;
  std::uint64_t max_value_bytes = 0;
  std::uint64_t grace_ns = 0;
  std::uint64_t window_address = 0;
  std::uint64_t window_length = 0;
  std::uint64_t window_memory = 0;
  std::uint32_t window_rkey = 0;
  std::uint32_t window_access = 0;
  std::uint64_t hash_seed = 0;      ///< For hash_of; the same for all workers.
  std::uint64_t index_buckets = 0;  ///< At the window's start; even. Each worker has its own.
  std::uint32_t flags = 0;
  std::uint32_t marks_rkey = 0;
  std::uint64_t marks_address =
      0;  ///< The window of mark_bytes, for WRITEs of single bytes; 0: the server evicts nothing.
  std::uint64_t marks_memory = 0;
};
static_assert(sizeof(ServerHello) == 112);

/// Errors: kProtocol for anything that is not a hello of this version.
[[nodiscard]] std::expected<ClientHello, Status> decode_client_hello(std::span<const std::byte> data) noexcept;
[[nodiscard]] std::expected<ServerHello, Status> decode_server_hello(std::span<const std::byte> data) noexcept;

// --- requests

enum class Op : std::uint8_t {
  kGet = 1,         ///< Head, key.
  kPut = 2,         ///< Head, key, value of less than kEagerBytes.
  kCas = 3,         ///< Head, expected version, key, value of less than kEagerBytes.
  kErase = 4,       ///< Head, key.
  kStatistics = 5,  ///< Head, the wanted part as u64.
  kGoodbye = 6,     ///< Head. The client is leaving.
  kPutLarge = 7,    ///< Large message: head, LargeHead, key, and the value or its front.
  kMoreLarge = 8,   ///< Large message: head, and the next bytes of the value last begun with the same id.
  kCell = 9,        ///< Head, initial value, key. Opens the cell, or creates it.
  // 10 was kPutAdopt until 0.1: no other request gets it.
  kGetPart = 11,  ///< Head, an offset, key. GETs a large value from that offset on.
  kPutRead = 12,  ///< Head, ReadHead, key. The server READs the value; the client does not change it meanwhile.
  kKeys = 16,     ///< Head, prefix of 0 to kMaxKeyBytes bytes, ScanPlace. Lists some of the keys that begin with it.
  kFlush = 17,    ///< The same frame. Erases some of these keys.
  kReads = 18,    ///< Head, a number. The client has done so many gets by READs. Has no reply.
};

/// Starts every request. With the 8 bytes of the message layer, a GET with a key of up to 32 bytes is one cache line.
struct RequestHead {
  Op op = Op::kGet;
  std::uint8_t flags = 0;
  std::uint16_t key_length = 0;
  std::uint32_t id = 0;  ///< Chosen by the client; the reply repeats it.
};
static_assert(sizeof(RequestHead) == 8);

/// RequestHead::flags. For kPut, kCas, kPutLarge and kPutRead: the value's time to live in ns, 1 to
/// kMostTtlNs, follows the head as u64.
inline constexpr std::uint8_t kHasTtl = 1;
inline constexpr std::uint64_t kMostTtlNs =
    static_cast<std::uint64_t>(std::chrono::nanoseconds(kMaxTimeToLive).count());

struct LargeHead {
  std::uint64_t expected = 0;      ///< As in CAS; kAnyVersion for PUT.
  std::uint64_t value_length = 0;  ///< kEagerBytes and up.
  std::uint64_t reserved = 0;
};
static_assert(sizeof(LargeHead) == 24);

struct ReadHead {
  std::uint64_t expected = 0;      ///< As in CAS; kAnyVersion for PUT.
  std::uint64_t value_length = 0;  ///< kEagerBytes to kMostValueBytes.
  std::uint64_t address = 0;       ///< In the client's memory.
  std::uint32_t rkey = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ReadHead) == 32);

/// Whether a request goes over many keys of a worker.
[[nodiscard]] constexpr bool is_scan(Op op) noexcept { return op == Op::kKeys || op == Op::kFlush; }

/// Where a scan goes on in a worker's index.
struct ScanPlace {
  std::uint64_t place = 0;  ///< As Store::ScanPlace.
  std::uint64_t moves = 0;
  std::uint64_t seal = 0;  ///< The server's mark on both, on the worker and on the prefix. 0, with both 0: the start.
  friend bool operator==(const ScanPlace&, const ScanPlace&) = default;
};
static_assert(sizeof(ScanPlace) == 24);

/// Depth of the message channels that carry `depth` requests, or their replies. A channel reports credits late, when
/// half of its depth is used up, so it needs twice the requests; the goodbye comes on top.
[[nodiscard]] constexpr std::uint32_t channel_depth(std::uint32_t depth) noexcept { return 2 * (depth + 2); }

inline constexpr std::uint64_t kAnyVersion = ~std::uint64_t{0};
/// Limit of any server's max_value_bytes: none has more memory.
inline constexpr std::uint64_t kMostValueBytes = std::uint64_t{1} << 40;
inline constexpr std::size_t kMaxLargeHeadBytes = sizeof(RequestHead) + 8 + sizeof(LargeHead) + kMaxKeyBytes;
/// The longest request that fits one message: CAS with a time to live.
inline constexpr std::size_t kMaxEagerBody = sizeof(RequestHead) + 16 + kMaxKeyBytes + kEagerBytes - 1;

/// A request decoded from one message. Key and value are spans of the body.
struct Request {
  RequestHead head;
  /// For kPutRead.
  struct Large {
    std::uint64_t length = 0;
    std::uint64_t address = 0;  ///< The value's, under `rkey`.
    std::uint32_t rkey = 0;
  } large;
  std::uint64_t ttl_ns = 0;              ///< 0: the value does not expire.
  std::uint64_t expected = kAnyVersion;  ///< CAS: the expected version. Statistics: the part. Cell: the initial value.
                                         ///< kGetPart: the offset. kReads: the number.
  Key key;                               ///< A scan has the prefix here.
  ScanPlace scan;                        ///< For kKeys and kFlush.
  std::span<const std::byte> value;
};
/// Errors: kBadKey and kTooLong reject this request only (the head is set, so that the reply can name it). kProtocol:
/// the body is malformed; end the connection.
[[nodiscard]] Status decode_request(std::span<const std::byte> body, Request& request) noexcept;

/// Writes the front of a request: the head, the time to live unless that is 0 and, for CAS, statistics and cells, the
/// word behind it. Returns the bytes written.
[[nodiscard]] std::size_t encode_head(RequestHead head, std::uint64_t expected, std::span<std::byte, 24> out,
                                      std::uint64_t ttl_ns = 0) noexcept;
/// The same with a frame behind it. `out` has room for it.
template <class Frame>
[[nodiscard]] std::size_t encode_front(RequestHead head, std::uint64_t ttl_ns, const Frame& frame,
                                       std::span<std::byte> out) noexcept {
  std::array<std::byte, 24> front;
  const std::size_t bytes = encode_head(head, 0, front, ttl_ns);
  std::memcpy(out.data(), front.data(), bytes);
  std::memcpy(out.data() + bytes, &frame, sizeof frame);
  return bytes + sizeof frame;
}

/// Front of a large message, complete once `data` holds all of it; `needed` says how many bytes of the message that is.
/// kAgain: more bytes are needed, at least that many.
struct LargeFront {
  RequestHead head;
  std::uint64_t ttl_ns = 0;
  LargeHead large;
  std::array<std::byte, kMaxKeyBytes> key;
};
[[nodiscard]] Status decode_large(std::span<const std::byte> data, LargeFront& front, std::size_t& needed) noexcept;

// --- replies

enum class ReplyKind : std::uint8_t {
  kPlain = 1,       ///< Head.
  kValue = 2,       ///< Head, value of less than kEagerBytes.
  kLocation = 3,    ///< Head, Location.
  kStatistics = 4,  ///< Head, words of the requested part: see kv/statistics.hpp.
  kGoodbye = 5,     ///< Head. The server is stopping.
  kCell = 6,        ///< Head, CellPlace.
  // 7 was kLease until 0.1: no other reply gets it.
  kPart = 8,      ///< Head, Part, bytes of a large value: kPartBytes, or the rest of it.
  kRefusal = 9,   ///< Head, Refusal, the first bytes of a prefix. With status kDenied or kOverQuota only.
  kScanned = 16,  ///< Head, ScanPage; after kKeys the keys, each behind its length as u16.
  kFull = 17,     ///< Head, Fullness. With status kStoreFull only, which also comes as kPlain.
};

struct ReplyHead {
  Status status = Status::kOk;
  ReplyKind kind = ReplyKind::kPlain;
  std::uint16_t flags = 0;
  std::uint32_t id = 0;
  std::uint64_t version = 0;
  /// The index entry (index.hpp) of the item that a GET found, or that a PUT or CAS created. 0: none.
  std::uint64_t entry = 0;
};
static_assert(sizeof(ReplyHead) == 24);

/// ReplyHead::flags. An Expiry follows the head. For kValue, kLocation and kPart.
inline constexpr std::uint16_t kTellsExpiry = 1;
struct Expiry {
  std::uint64_t clock_ns = 0;  ///< The server's clock, read after the request came. It begins with the server.
  std::uint64_t until_ns = 0;  ///< When the item expires, by that clock. Not 0.
};
static_assert(sizeof(Expiry) == 16);

/// Where a large value is in the worker's window. Valid for the grace period, counted from when the client sent the
/// request.
struct Location {
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint32_t rkey = 0;
  std::uint32_t reserved = 0;
  std::uint64_t checksum = 0;  ///< checksum_of_value; 0: the server keeps no checksums.
};
static_assert(sizeof(Location) == 32);

/// Where a cell is: in the window of the worker's cells, the same in all its replies. Valid as long as the server runs.
struct CellPlace {
  std::uint64_t window_address = 0;
  std::uint64_t window_length = 0;
  std::uint64_t window_memory = 0;
  std::uint32_t window_rkey = 0;
  std::uint32_t window_access = 0;  ///< At least READ and atomic.
  std::uint64_t offset = 0;         ///< Offset of the word from the start of the window, a multiple of 8.
  std::uint32_t is_new = 0;         ///< 1: this request created it.
  std::uint32_t reserved = 0;
};
static_assert(sizeof(CellPlace) == 48);

/// Bytes per part: large values go in parts to clients that may not READ the memory.
inline constexpr std::uint64_t kPartBytes = 63 * 64;
struct Part {
  std::uint64_t length = 0;  ///< Length of the whole value, kEagerBytes and up.
  std::uint64_t offset = 0;  ///< Where the bytes behind this start.
};
static_assert(sizeof(Part) == 16 && sizeof(Part) + kPartBytes <= kEagerBytes);

/// Why a request is refused. The client composes the message from it.
struct Refusal {
  std::uint32_t uid = 0;
  Rights right = Rights::kNone;     ///< kDenied: the missing right.
  std::uint8_t quota = 0;           ///< kOverQuota: kv::Quota.
  std::uint16_t prefixes = 0;       ///< kDenied: how many prefixes the right is granted for.
  std::uint16_t prefix_length = 0;  ///< Length of the first of them; its front follows, at most kMostPrefixBytes.
  std::uint16_t is_promised = 0;    ///< 1: because of the client's own promise.
  std::uint32_t reserved = 0;
  std::uint64_t used = 0;  ///< kOverQuota: bytes or items in use,
  std::uint64_t most = 0;  ///< and the quota.
};
static_assert(sizeof(Refusal) == 32);
inline constexpr std::size_t kMostPrefixBytes = 64;

/// What fills the worker that has no room for a value. The client composes the message from it.
struct Fullness {
  std::uint64_t needed = 0;    ///< The value's bytes.
  std::uint64_t capacity = 0;  ///< Bytes of item memory, of which:
  std::uint64_t used = 0;      ///< those of keys and values,
  std::uint64_t resting = 0;   ///< of values that wait out their grace period.
  std::uint64_t reserved = 0;
  std::uint64_t cells = 0;        ///< Number of cells, each an item too.
  std::uint64_t class_block = 0;  ///< The largest block of the class that has the most bytes in use,
  std::uint64_t class_used = 0;   ///< and how many it has.
};
static_assert(sizeof(Fullness) == 64);

/// One step of a scan.
struct ScanPage {
  ScanPlace next;           ///< Where the scan goes on; seal 0: it is over at this worker.
  std::uint32_t count = 0;  ///< Keys that follow, or that were erased.
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ScanPage) == 32);
static_assert(sizeof(ScanPage) + KeyPage::kBytes == kEagerBytes);

struct Reply {
  ReplyHead head;
  Expiry expiry;  ///< until_ns 0: it does not expire.
  std::span<const std::byte>
      value;  ///< A value; or whole words of statistics, kEagerBytes at most; or bytes of a part
              ///< or of a prefix; or keys behind their lengths, ScanPage::count if there are any.
  ScanPage scanned;
  Fullness full;
  Part part;
  Refusal refusal;
  Location location;
  CellPlace cell;
};
/// Returns kOk or kProtocol.
[[nodiscard]] Status decode_reply(std::span<const std::byte> body, Reply& reply) noexcept;

/// The window that a ServerHello or a CellPlace describes.
template <class Frame>
[[nodiscard]] nic::Window window_of(const Frame& frame) noexcept {
  return {.address = frame.window_address,
          .length = frame.window_length,
          .rkey = frame.window_rkey,
          .access = frame.window_access,
          .memory_id = frame.window_memory};
}

/// The window of the marks; empty if there are none.
[[nodiscard]] inline nic::Window marks_of(const ServerHello& hello) noexcept {
  if (hello.marks_address == 0) return {};
  return {.address = hello.marks_address,
          .length = mark_bytes(hello.index_buckets),
          .rkey = hello.marks_rkey,
          .access = IBV_ACCESS_REMOTE_WRITE,
          .memory_id = hello.marks_memory};
}

template <class Frame>
[[nodiscard]] std::span<const std::byte> bytes_of(const Frame& frame) noexcept {
  return std::as_bytes(std::span(&frame, 1));
}

}  // namespace verbena::kv::wire
