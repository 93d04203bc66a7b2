// Random programs of work requests. A program names memory, keys and windows by symbols, so that it runs alike on
// every NIC; and it does nothing whose result the specification leaves open, but for what `forgives` names.
#pragma once

#include "world.hpp"

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::sim {

/// Each pair of queue pairs has a share of both sides' memory to itself, in zones by use.
inline constexpr std::size_t kZone = 65536;
inline constexpr std::size_t kShare = 4 * kZone;
enum class Zone : std::uint8_t { kSource, kResults, kTarget, kReceives };

struct Range {
  std::size_t offset = 0;  ///< In the side's memory.
  std::size_t length = 0;
  [[nodiscard]] bool overlaps(const Range& other) const noexcept {
    return length != 0 && other.length != 0 && offset < other.offset + other.length && other.offset < offset + length;
  }
};

enum class LocalKey : std::uint8_t { kGood, kUnknown, kOtherDomain, kReadOnly };
enum class RemoteKey : std::uint8_t { kGood, kUnknown, kOtherDomain, kReadOnly, kLocal, kWindow };

struct Operation {
  std::uint32_t pair = 0;
  std::uint32_t side = 0;  ///< Which end of the pair posts it.
  ibv_wr_opcode opcode = IBV_WR_SEND;
  std::uint64_t wr_id = 0;
  std::vector<Range> local;
  LocalKey local_key = LocalKey::kGood;
  std::size_t remote = 0;
  RemoteKey remote_key = RemoteKey::kGood;
  std::uint32_t variant = 0;  ///< Of the peer's window, or of the own one that is bound or invalidated.
  unsigned flags = 0;
  std::uint32_t immediate = 0;
  std::uint64_t operand = 0;
  std::uint64_t swap = 0;
  Range bound;
  unsigned access = 0;
};

struct PostedReceive {
  std::uint32_t pair = 0;
  std::uint32_t side = 0;
  std::uint64_t wr_id = 0;
  std::vector<Range> local;
  LocalKey local_key = LocalKey::kGood;
};

/// Receives first, then requests; on each pair of one side only. Then nothing more, until all has settled.
struct Phase {
  std::vector<PostedReceive> receives;
  std::vector<Operation> operations;
};

struct PairPlan {
  ibv_qp_type type = IBV_QPT_RC;
  std::uint32_t access[2] = {0, 0};
  std::uint8_t rnr_retry = 7;
  bool signal_all = false;
  bool is_shared = false;  ///< Its receives on side 1 are those of the shared queue.
};

struct Program {
  std::uint64_t seed = 0;
  std::vector<PairPlan> pairs;
  std::vector<Phase> phases;
};

[[nodiscard]] Program make_program(std::uint64_t seed);
[[nodiscard]] bool takes_receive(ibv_wr_opcode opcode) noexcept;

}  // namespace verbena::sim
