// Chaos: faults that the soft NIC makes on purpose, so that tests of the layers above meet events that are rare on a
// wire. It decides when a work request or a completion comes to the head of its queue, and counts delays in polls,
// never in time: the same seed and the same calls repeat the same run.
#pragma once

#include "nic/nic.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace verbena::nic::soft {

/// `VERBENA_CHAOS`, as "name=value,..." with the names of ChaosOptions: kBadArgument: the text names what is wrong.
[[nodiscard]] Result<ChaosOptions> parse_chaos(std::string_view text);
/// kBadArgument when a rate is not within 0 to 1.
[[nodiscard]] Result<void> check_chaos(const ChaosOptions& options);
/// The chaos that the environment asks for: VERBENA_CHAOS, with the seed of VERBENA_CHAOS_SEED if that is set.
[[nodiscard]] Result<std::optional<ChaosOptions>> chaos_of_environment();

/// Pseudo-random numbers for decisions: splitmix64 (Steele, Lea, Flood 2014). \thread owner
class Dice {
 public:
  explicit Dice(std::uint64_t seed) noexcept : state_(seed) {}
  [[nodiscard]] std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// 0 to bound - 1. The bias of the remainder is negligible for the small bounds here.
  [[nodiscard]] std::uint32_t below(std::uint32_t bound) noexcept { return static_cast<std::uint32_t>(next() % bound); }
  [[nodiscard]] bool hits(double rate) noexcept {
    return static_cast<double>(next() >> 11) * 0x1p-53 < rate;  // 53 bits: a double in [0, 1).
  }

 private:
  std::uint64_t state_;
};

/// One READ or WRITE that is delivered in shuffled pieces of whole cache lines of the remote side.
class Pieces {
 public:
  struct Piece {
    std::uint64_t offset = 0;  ///< In the message.
    std::size_t bytes = 0;
  };
  /// Begins a transfer of `bytes` (1 and up) at the remote `address`. At most kMost pieces: those of long messages are
  /// longer.
  void begin(std::uint64_t address, std::uint64_t bytes, Dice& dice) noexcept;
  [[nodiscard]] bool done() const noexcept { return next_ == count_; }
  [[nodiscard]] Piece take() noexcept;
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }

  static constexpr std::uint32_t kMost = 256;

 private:
  std::array<std::uint16_t, kMost> order_{};
  std::uint32_t count_ = 0;
  std::uint32_t next_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t piece_bytes_ = 64;
  std::uint64_t skew_ = 0;  ///< Offset of the first byte in its cache line.
};

/// The fate of one work request under chaos.
struct Fate {
  enum class End : std::uint8_t {
    kWell,
    kRetry,      ///< Retry exceeded, before anything of it was executed.
    kRetryLate,  ///< Retry exceeded, although a READ or WRITE was executed: its acknowledgement was lost.
    kRnrRetry,   ///< RNR retry exceeded.
    kFatal,      ///< The QP has a fatal error.
    kDeath,      ///< As if the peer's process had died.
  };
  std::uint32_t polls = 0;  ///< Polls to wait before anything else.
  bool in_pieces = false;
  End end = End::kWell;
};

/// The chaos of one queue pair's send queue. \thread owner
struct QpChaos {
  QpChaos(const ChaosOptions& chaos, std::uint64_t stream) noexcept
      : options(chaos), dice(chaos.seed * 0x9e3779b97f4a7c15 + stream) {}
  ChaosOptions options;
  Dice dice;
  bool is_drawn = false;  ///< `fate` belongs to the head of the queue.
  bool has_begun = false;
  Fate fate;
  Pieces pieces;
  /// `rnr_retry` is the QP's: 7 is for ever.
  void draw(bool takes_receive, bool is_rdma, std::uint64_t bytes, unsigned rnr_retry) noexcept;
};

/// The chaos of one completion queue. \thread owner
struct CqChaos {
  CqChaos(const ChaosOptions& chaos, std::uint64_t stream) noexcept
      : rate(chaos.hold), dice(~chaos.seed * 0x9e3779b97f4a7c15 + stream) {}
  double rate;
  Dice dice;
  std::uint64_t decided = ~std::uint64_t{0};  ///< The completion that the decision is for.
  std::uint32_t polls = 0;
  /// Whether to hold back completion number `head` at this poll.
  [[nodiscard]] bool keeps_back(std::uint64_t head) noexcept;
};

/// The chaos of a NIC's control plane. Several threads take its steps, so a seed repeats the decisions but not the run.
/// \thread one at a time
struct ControlChaos {
  ControlChaos(const ChaosOptions& chaos, std::uint64_t stream) noexcept
      : late(chaos.control), cut(chaos.cut), dice((chaos.seed + 1) * 0xd1342543de82ef95 + stream) {}
  double late;
  double cut;
  Dice dice;
};

}  // namespace verbena::nic::soft
