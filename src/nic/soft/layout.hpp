// Memory that processes share: the key table, a QP's control page, and the rendezvous messages. Every shared word has
// one writer, its owner; peers map it read-only. The only exception is the ready set, which peers of the same user
// write.
#pragma once

#include "base/peer_memory.hpp"
#include "nic/nic.hpp"
#include "nic/soft/ring.hpp"

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace verbena::nic::soft {

inline constexpr std::uint32_t kLayoutVersion = 4;
inline constexpr std::uint32_t kMagic = 0x4e425256;  // "VRBN"

/// One memory region or bound window as peers see it. `live` is 0 while revoked. The owner writes the rest before it
/// (release), and does not change the rest until the entry is revoked and reused. An importer reads the rest by acquire
/// loads and `live` once more, so that it notices reuse.
struct alignas(64) KeyEntry {
  /// The key, and above it how often the entry has been used, so that an old import stays stale when the key comes
  /// again.
  PeerWord<std::uint64_t> live;
  PeerWord<std::uint32_t> domain;  ///< The QPs that may use it: a protection domain, or `window_domain` of one QP.
  PeerWord<std::uint32_t> access;
  PeerWord<std::uint64_t> iova;
  PeerWord<std::uint64_t> length;
  PeerWord<std::uint64_t> memory_id;
  PeerWord<std::uint64_t> memory_offset;
};
static_assert(sizeof(KeyEntry) == 64);

// Keys: index << 8 | generation. The generation grows each time an index is reused, so that a stale key stays stale for
// 256 uses of its index; indices are reused in turn, oldest first. A remote key has the top bit set, a local key has
// not: using one as the other is refused.
inline constexpr std::uint32_t kRemoteKeyBit = 0x80000000U;
inline constexpr std::uint32_t kMaxKeyIndex = 1U << 22;
[[nodiscard]] constexpr std::uint32_t key_index(std::uint32_t key) noexcept { return (key & ~kRemoteKeyBit) >> 8; }

/// The domain of windows of type 2 that are bound on a QP. It differs from all protection domains, whose numbers are
/// small.
[[nodiscard]] constexpr std::uint32_t window_domain(std::uint32_t qp_num) noexcept { return 0x80000000U | qp_num; }

/// State of a QP that it publishes to its peer.
enum class Readiness : std::uint32_t {
  kNotReady = 0,  ///< Below RTR: the peer's requests wait and retry.
  kReady = 1,     ///< RTR or RTS.
  kGone = 2,      ///< In error, reset or destroyed: it answers no more requests.
};

/// Bits of QpControl::wake: events for which the owner wants a wake-up, because it does not look by itself.
struct Wake {
  static constexpr std::uint32_t kMessage = 1;    ///< Ring my bells when you publish a message.
  static constexpr std::uint32_t kSolicited = 2;  ///< Only for a solicited one.
  static constexpr std::uint32_t kCredit = 4;     ///< Ring them when you post receives or consume messages.
  static constexpr std::uint32_t kParked = 8;     ///< Set my bit in the ready set when you publish a message.
};

/// Bit in the length of a posted receive whose local keys are invalid: messages to it fail on both sides.
inline constexpr std::uint32_t kBadReceive = 0x80000000U;

/// Head of a QP's shared memory. The lengths of posted receives, the slots and the data ring follow.
struct QpControl {
  // The peer reads it at each operation, and it rarely changes: the cache line stays shared in both caches.
  struct alignas(64) {
    PeerWord<Readiness> readiness;
    PeerWord<std::uint32_t> wake;
    PeerWord<std::uint32_t> min_receive;  ///< Every receive posted so far is at least this long.
  } rare;
  struct alignas(64) {
    PeerWord<std::uint64_t> consumed;  ///< Messages copied out of the peer's ring.
  } consumer;
  struct alignas(64) {
    PeerWord<std::uint64_t> posted;   ///< Receives posted so far; with a shared queue, those given to this QP so far.
    PeerWord<std::uint64_t> refused;  ///< The last `demand.ask` of the peer that found the shared queue empty.
  } receives;
  struct alignas(64) {
    PeerWord<std::uint64_t> word;  ///< Odd while this QP reads or writes a peer's memory.
  } access;
  // Sender's side, for a peer with a shared receive queue.
  struct alignas(64) {
    PeerWord<std::uint64_t> wanted;  ///< Receives that this QP's messages have taken or wait for, since the start.
    PeerWord<std::uint64_t> ask;     ///< Grows with each change of `wanted`, before it.
  } demand;
};
static_assert(sizeof(QpControl) == 320);

/// Bytes of one request to a peer's service thread: longer transfers take several.
inline constexpr std::size_t kServiceBytes = 65536;
enum class ServiceOp : std::uint32_t { kRead = 1, kWrite = 2, kCompareSwap = 3, kFetchAdd = 4 };
enum class ServiceAnswer : std::uint32_t { kDone = 0, kRefused = 1 };

/// One request of a QP to the peer's service thread: a private copy.
struct ServiceTask {
  ServiceOp op = ServiceOp::kRead;
  std::uint32_t rkey = 0;
  std::uint64_t address = 0;
  std::uint64_t length = 0;  ///< To kServiceBytes.
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
};

/// At the end of a QP's shared memory: its requests to the peer's service thread, and this side's answers to the peer's
/// requests. A request or an answer is written before its number; the request whose number was answered last is
/// complete.
struct ServiceBlock {
  struct alignas(64) Ask {
    PeerWord<std::uint64_t> number;
    PeerWord<ServiceOp> op;
    PeerWord<std::uint32_t> rkey;
    PeerWord<std::uint64_t> address;
    PeerWord<std::uint64_t> length;
    PeerWord<std::uint64_t> compare_add;
    PeerWord<std::uint64_t> swap;

    /// A private copy. `number` orders the loads. Not inline, so that test/house/peer_memory.py finds it in the
    /// archive.
    [[nodiscard]] ServiceTask read() const noexcept;
    void write(const ServiceTask& task) noexcept {
      constexpr auto kRelaxed = std::memory_order_relaxed;
      op.store(task.op, kRelaxed);
      rkey.store(task.rkey, kRelaxed);
      address.store(task.address, kRelaxed);
      length.store(task.length, kRelaxed);
      compare_add.store(task.compare_add, kRelaxed);
      swap.store(task.swap, kRelaxed);
    }
  } ask;
  struct alignas(64) Answer {
    PeerWord<std::uint64_t> number;
    PeerWord<ServiceAnswer> answer;
    PeerWord<std::uint64_t> old;  ///< The value before an atomic.
  } answer;
  alignas(64) std::byte written[kServiceBytes];  ///< Bytes of `ask`.
  std::byte read[kServiceBytes];                 ///< Bytes of `answer`.
};

/// The largest data ring.
inline constexpr std::uint32_t kMostDataBytes = 16U << 20;

/// Geometry of a QP's shared memory, as its owner gives it in the offer. Checked against the file's size.
struct QpGeometry {
  std::uint32_t receive_entries = 0;  ///< Power of two: the ring of lengths of posted receives.
  std::uint32_t slots = 0;            ///< Power of two.
  std::uint32_t data_bytes = 0;       ///< Power of two, at least 4 segments.
  std::uint32_t reserved = 0;
  std::uint64_t start = 0;  ///< First index of the ring.

  [[nodiscard]] std::size_t lengths_offset() const noexcept { return sizeof(QpControl); }
  [[nodiscard]] std::size_t slots_offset() const noexcept {
    return (lengths_offset() + std::size_t{receive_entries} * 4 + alignof(Slot) - 1) & ~(alignof(Slot) - 1);
  }
  [[nodiscard]] std::size_t data_offset() const noexcept { return slots_offset() + std::size_t{slots} * sizeof(Slot); }
  [[nodiscard]] std::size_t service_offset() const noexcept {
    return (data_offset() + data_bytes + 4095) & ~std::size_t{4095};
  }
  [[nodiscard]] std::size_t total_bytes() const noexcept {
    return (service_offset() + sizeof(ServiceBlock) + 4095) & ~std::size_t{4095};
  }
  [[nodiscard]] bool valid() const noexcept {
    const auto power = [](std::uint32_t n, std::uint32_t least, std::uint32_t most) {
      return n >= least && n <= most && (n & (n - 1)) == 0;
    };
    return power(receive_entries, 1, 1U << 16) && power(slots, 2, 1U << 17) &&
           power(data_bytes, 4 * kSegmentBytes, kMostDataBytes) && start % slots == 0;
  }
};

// --- rendezvous: one request and one reply at a time over a SOCK_SEQPACKET Unix socket, fixed size, host-endian (both
// ends are on one host by construction) ------------------------------------------------------------------------------

enum class RequestType : std::uint32_t {
  kHello = 1,    ///< First. The reply carries the key table's descriptor, and the ready set's for the same user.
  kOffer = 2,    ///< My QP wants yours. Carries the descriptors of its shared memory and of its bells.
  kMemory = 3,   ///< Asks for the descriptor of one of your arenas.
  kWake = 4,     ///< Your QP asked for a wake-up, and neither of us writes to another user's descriptor.
                 ///< Has no reply.
  kServe = 5,    ///< My QP has a request for your service thread (ServiceBlock). The answer is there; no reply.
  kTake = 6,     ///< My QP's ring to yours is full: receive it, because its owner does not poll. Has no reply.
  kConfirm = 7,  ///< Has your process sent the bytes behind this request? kUnknown if it attests no such bytes.
};

/// Most completion channels of one QP: its receive queue's and its send queue's.
inline constexpr std::uint32_t kMaxBells = 2;

/// KeyEntry::memory_id of memory in no arena: then `memory_offset` is the address in its process.
inline constexpr std::uint64_t kProcessMemory = 0;

struct Request {
  std::uint32_t magic = kMagic;
  std::uint32_t version = kLayoutVersion;
  RequestType type = RequestType::kHello;
  std::uint32_t my_qp = 0;
  ibv_gid my_gid{};
  std::uint32_t your_qp = 0;
  std::uint32_t pd = 0;         ///< Protection domain of my QP.
  std::uint32_t access = 0;     ///< qp_access_flags of my QP.
  std::uint32_t ready_bit = 0;  ///< Bit of my QP in my ready set, kNoReadyBit without.
  std::uint32_t min_rnr_timer = 0;
  std::uint32_t bell_count = 0;  ///< Eventfds after the first descriptor: one for each channel of my QP.
  std::uint64_t memory_id = 0;
  QpGeometry geometry;
  std::uint32_t has_srq = 0;  ///< 1: my QP's receives come from a shared queue.
  std::uint32_t qp_type = IBV_QPT_RC;
  std::uint32_t bells[kMaxBells] = {};  ///< Their numbers: the same for each QP on the channel, and never reused.
  std::uint32_t attested_bytes = 0;     ///< Confirm: bytes after the request. Otherwise 0, and there are none.
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Request) == 112);
/// The longest message: a request, and the attested bytes.
inline constexpr std::size_t kMaxRequestBytes = sizeof(Request) + Nic::kMaxAttestedBytes;
inline constexpr std::uint32_t kNoReadyBit = ~0U;

enum class Answer : std::uint32_t { kOk = 0, kNotAllowed = 1, kVersion = 2, kUnknown = 3, kNotGranted = 4, kBad = 5 };

struct Reply {
  std::uint32_t magic = kMagic;
  std::uint32_t version = kLayoutVersion;
  Answer answer = Answer::kOk;
  std::uint32_t key_entries = 0;   ///< Hello.
  ibv_gid gid{};                   ///< Hello: who answers.
  std::uint64_t size = 0;          ///< Memory: bytes. Hello: bytes of the ready set, 0 without.
  std::uint32_t writable = 0;      ///< Memory: 1 when the peer may map it read-write.
  std::uint32_t is_populated = 0;  ///< Memory: 1 if all its pages exist: fault them in when you map it.
};
static_assert(sizeof(Reply) == 48);

}  // namespace verbena::nic::soft
