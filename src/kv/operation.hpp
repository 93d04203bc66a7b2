// A client's request, the operation that it becomes, and the call of somebody who awaits it without a thread in the
// client: he lends its memory, and is told of its end.
#pragma once

#include "channel/options.hpp"
#include "engine/call.hpp"
#include "kv/reader.hpp"
#include "kv/wire.hpp"

#include <verbena/kv.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace verbena::kv {

class Requests;
struct AwaitedCall;
struct Operation;

/// The call's name as users write it.
[[nodiscard]] constexpr const char* call_of(wire::Op op) noexcept {
  switch (op) {
    case wire::Op::kPut: return "kv::Client::put";
    case wire::Op::kGet: return "kv::Client::get";
    case wire::Op::kCas: return "kv::Client::cas";
    case wire::Op::kErase: return "kv::Client::erase";
    case wire::Op::kStatistics: return "kv::Client::server_statistics";
    case wire::Op::kKeys: return "kv::Client::keys";
    case wire::Op::kFlush: return "kv::Client::flush";
    default: return "kv::Client::open_cell";
  }
}

/// A client call's request, before it has a slot.
struct Ask {
  wire::Op op = wire::Op::kGet;
  std::uint64_t expected = wire::kAnyVersion;
  Key key;
  std::span<const std::byte> value;  ///< put, cas
  std::span<std::byte> out;          ///< get
  std::uint64_t ttl_ns = 0;          ///< put, cas; 0: the value does not expire.
  bool skips_reads = false;          ///< get: READs were tried and did not settle it.
  std::uint32_t worker = 0;          ///< scans
};

/// Turns a put into what `options` say. kBadArgument: its time to live is out of range.
[[nodiscard]] Status take_options(const PutOptions& options, Ask& ask) noexcept;

/// Whether the request is about one key.
[[nodiscard]] constexpr bool has_key(wire::Op op) noexcept { return op != wire::Op::kStatistics && !wire::is_scan(op); }

/// Values that the connection copies are READ in pieces of this size.
inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

/// One operation from start to completion. Its slot is reused only when nothing more of it can arrive: after a time-out
/// it stays taken until the reply is here.
struct Operation {
  enum class Stage : std::uint8_t {
    kFree,
    kSending,   ///< Large value: the channel still reads it; the reply may already arrive.
    kAwaiting,  ///< The request is out.
    kLent,      ///< Large value: the request is out, and the server READs the value until it has replied.
    kLooking,   ///< Get: READs of the two buckets of the index are in flight.
    kFetching,  ///< Get: the READ of an item is in flight.
    kChecking,  ///< Get: the value is in place; the READ that tells whether its item is still live is in flight.
    kReading,   ///< Get: READs are in flight.
    kOnWord,    ///< An atomic on a cell, or a READ of it, is in flight.
    kDone,      ///< The outcome is set and not yet taken.
  };
  /// How a get finds its item.
  enum class Way : std::uint8_t { kMessage, kLocation, kIndex };
  Stage stage = Stage::kFree;
  wire::Op op = wire::Op::kGet;
  bool is_bounced = false;  ///< Get: `out` is not registered, so the connection copies.
  bool has_reply = false;
  bool is_late = false;         ///< Get: a piece came too late to be trusted.
  std::uint8_t mismatches = 0;  ///< Get: whole values that did not match their checksum.
  std::uint16_t key_length = 0;
  std::uint16_t worker = 0;
  std::uint32_t id = 0;     ///< Its name in replies: the slot, above that a generation.
  std::uint64_t hash = 0;   ///< The key's.
  std::uint64_t entry = 0;  ///< Get: the entry of the item that is READ.
  /// Ends an operation whose outcome is set, in the name of whoever waits for it. Null: its caller looks himself, as
  /// a blocked or pipelined call does.
  using Tell = void (*)(Requests& requests, Operation& operation) noexcept;
  Tell tell = nullptr;
  Outcome* result = nullptr;       ///< For a batch: its outcome goes there.
  AwaitedCall* awaited = nullptr;  ///< For somebody who awaits it.
  std::uint64_t cookie = 0;        ///< For a pipelined operation.
  std::uint64_t sent_ticks = 0;    ///< Taken before the request went out.
  std::uint64_t started_ticks = 0;
  std::span<std::byte> out;
  /// Get: where the value is, and how it was found; outcome.length is its length.
  struct Source {
    std::uint64_t address = 0;
    std::uint64_t checksum = 0;  ///< 0 if the server keeps none.
    std::uint32_t rkey = 0;
    Way way = Way::kMessage;
    std::uint8_t lookups = 0;    ///< Lookups through the index so far.
    std::uint8_t candidate = 0;  ///< The next entry to look at, in the order of both buckets.
  } source;
  /// Progress of the value.
  struct Transfer {
    std::uint64_t posted = 0;  ///< Bytes. Get: READs for them are posted. Put of a staged value: all of it.
    std::uint64_t copied = 0;  ///< How many of them. Get: in place. Put: on their way.
    std::uint32_t pieces = 0;  ///< READs or large messages in flight.
    std::uint32_t burst = 0;   ///< Get: READs in flight, at most.
    [[nodiscard]] bool is_idle() const noexcept { return pieces == 0 && posted == copied; }
  } transfer;
  Outcome outcome;
  std::array<std::byte, kMaxKeyBytes> key;  ///< For asking again, when a READ came too late.

  [[nodiscard]] bool is_running() const noexcept { return stage != Stage::kFree && stage != Stage::kDone; }
  [[nodiscard]] std::uint32_t slot() const noexcept { return id & 0xffff; }
  [[nodiscard]] std::span<const std::byte> key_bytes() const noexcept { return std::span(key).first(key_length); }
  [[nodiscard]] std::size_t piece_bytes() const noexcept { return is_bounced ? kChunkBytes : kPieceBytes; }
};
static_assert(sizeof(Operation) == 176 + kMaxKeyBytes, "every operation touches three cache lines before its key");

/// Purpose of a channel's completion. A token holds this kind, a staging chunk and the operation.
enum class Piece : std::uint8_t { kBodyChunk = 1, kRead = 2, kLookup = 3, kWord = 4, kMark = 5 };

[[nodiscard]] constexpr Piece piece_of(std::uint64_t token) noexcept { return static_cast<Piece>(token >> 56); }
[[nodiscard]] constexpr unsigned chunk_of(std::uint64_t token) noexcept {
  return static_cast<unsigned>(token >> 48) & 0xff;
}
[[nodiscard]] constexpr std::uint64_t token_of(Piece piece, const Operation& operation, unsigned chunk = 0) noexcept {
  return static_cast<std::uint64_t>(piece) << 56 | std::uint64_t{chunk} << 48 | operation.id;
}

/// One awaited operation. The client has it from `begin` until it tells, or `withdraw` has returned; so it has the
/// memory that `ask` names.
struct AwaitedCall : engine::Call {
  enum class Place : std::uint8_t { kNowhere, kQueued, kResting, kUnderWay };
  enum class Word : std::uint8_t { kNone, kChange, kRead };
  Ask ask;
  Cell cell{};                     ///< With kChange and kRead.
  channel::Change change{};        ///< With kChange.
  std::uint64_t old = 0;           ///< The cell's value: before the change, or as it was read.
  Outcome outcome{};               ///< Withdrawn in kResting: kStoreFull.
  Operation* operation = nullptr;  ///< With kUnderWay.
  AwaitedCall* next = nullptr;     ///< In the list of its place.
  AwaitedCall* previous = nullptr;
  std::uint64_t rests_until = 0;  ///< Ticks, with kResting.
  Place place = Place::kNowhere;
  Word word = Word::kNone;
};

/// Awaited operations in the order they came.
struct AwaitedCalls {
  AwaitedCall* first = nullptr;
  AwaitedCall* last = nullptr;

  void push_back(AwaitedCall& call) noexcept {
    call.next = nullptr;
    call.previous = std::exchange(last, &call);
    (call.previous == nullptr ? first : call.previous->next) = &call;
  }
  void push_front(AwaitedCall& call) noexcept {
    call.previous = nullptr;
    call.next = std::exchange(first, &call);
    (call.next == nullptr ? last : call.next->previous) = &call;
  }
  void remove(AwaitedCall& call) noexcept {
    (call.previous == nullptr ? first : call.previous->next) = call.next;
    (call.next == nullptr ? last : call.next->previous) = call.previous;
  }
};

}  // namespace verbena::kv
