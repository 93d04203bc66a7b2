// Operations that somebody awaits without a thread in the client: he lends the memory of each, and is told of its end.
#pragma once

#include "channel/options.hpp"
#include "engine/call.hpp"
#include "kv/wire.hpp"

#include <verbena/kv.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace verbena::kv {

struct Operation;

/// A client call's request, before it has a slot.
struct Ask {
  wire::Op op = wire::Op::kGet;
  std::uint64_t expected = wire::kAnyVersion;
  Key key;
  std::span<const std::byte> value;  ///< put, cas
  std::span<std::byte> out;          ///< get
  std::uint64_t ttl_ns = 0;          ///< put, cas; 0: the value does not expire.
  Outcome* result = nullptr;         ///< For a batch: where the outcome goes.
  bool skips_reads = false;          ///< get: READs were tried and did not settle it.
  std::uint32_t worker = 0;          ///< scans
};

/// Turns a put into what `options` say. kBadArgument: its time to live is out of range.
[[nodiscard]] Status take_options(const PutOptions& options, Ask& ask) noexcept;

/// One awaited operation. The client has it from `begin` until it tells, or `withdraw` has returned; so it has the
/// memory that `ask` names.
struct AwaitedCall : engine::Call {
  enum class Place : std::uint8_t { kNowhere, kQueued, kResting, kUnderWay };
  enum class Word : std::uint8_t { kNone, kChange, kRead };
  Ask ask;
  Cell cell{};               ///< With kChange and kRead.
  channel::Change change{};  ///< With kChange.
  std::uint64_t old = 0;     ///< The cell's value: before the change, or as it was read.
  Outcome outcome{};         ///< Withdrawn in kResting: kStoreFull.
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

/// Polls the client for those who await its operations: of a room below, in memory of the client's.
class Poller {
 public:
  virtual ~Poller() = default;
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  /// The client ends, and has told everybody.
  virtual void settle() noexcept = 0;

 protected:
  Poller() noexcept = default;
};
inline constexpr std::size_t kPollerBytes = 64;
inline constexpr std::size_t kPollerAlignment = 8;

}  // namespace verbena::kv
