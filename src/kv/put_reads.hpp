// PUTs whose value the server READs out of the client's memory: the queue of one client, and the place for a value that
// is to go over the old one.
#pragma once

#include "channel/options.hpp"
#include "kv/store.hpp"
#include "kv/wire.hpp"
#include "nic/buffer_pool.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace verbena::kv {

/// Where a worker READs a value that there is no memory for beside the old one: only a whole value may replace it. One
/// PUT has it at a time. \thread the worker's, except open (setup)
class SparePlace {
 public:
  /// Longer values need memory beside the old one.
  static constexpr std::uint64_t kBytes = std::uint64_t{256} << 10;

  /// Errors: those of BufferPool::acquire.
  [[nodiscard]] Result<void> open(nic::BufferPool& pool, std::optional<unsigned> node) {
    VERBENA_ASSIGN(memory_, pool.acquire(kBytes, node));
    return {};
  }
  /// False: the value is too long, or another PUT has the place.
  [[nodiscard]] bool take(std::uint64_t bytes) noexcept {
    if (is_taken_ || bytes > kBytes) return false;
    return is_taken_ = true;
  }
  void give_back() noexcept { is_taken_ = false; }
  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  [[nodiscard]] std::uint32_t lkey() const noexcept { return memory_.lkey(); }

 private:
  nic::Buffer memory_;
  bool is_taken_ = false;
};

/// One client's PUTs of this kind, in the order of their arrival. Only the first has READs in flight.
/// \thread the worker's, except creation
class PutReads {
 public:
  /// The parts of a request that are kept until the value's bytes are here.
  struct Put {
    std::uint32_t id = 0;  ///< The request's.
    std::uint16_t key_length = 0;
    std::uint64_t length = 0;  ///< The value's.
    std::uint64_t expected = 0;
    std::uint64_t ttl_ns = 0;
    std::uint64_t began_ticks = 0;
    std::array<std::byte, kMaxKeyBytes> key_bytes;
    std::uint32_t rkey = 0;
    std::uint64_t address = 0;  ///< The value's, in the client's memory.

    [[nodiscard]] Key key() const noexcept { return {key_bytes.data(), key_length}; }
  };
  /// READs are this long, and so many of the first PUT are in flight, at most.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{256} << 10;
  static constexpr unsigned kMostPieces = 2;

  /// For at most `most` PUTs.
  PutReads(unsigned most, SparePlace& spare) : spare_(spare), puts_(most) {}

  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// Adds the request at the end. False: there are `most`.
  [[nodiscard]] bool add(const wire::Request& request, std::uint64_t now) noexcept;
  [[nodiscard]] const Put& first() const noexcept { return puts_[first_]; }
  /// Where the first PUT's value goes. Abandon it only after `stop`.
  Store::Pending pending;
  /// Takes the spare place for the first PUT. False: it is taken, or too short.
  [[nodiscard]] bool take_spare() noexcept { return is_in_spare_ = spare_.take(first().length); }
  [[nodiscard]] bool is_in_spare() const noexcept { return is_in_spare_; }
  /// The first PUT's value, in the spare place.
  [[nodiscard]] std::span<const std::byte> in_spare() const noexcept {
    return {spare_.data(), static_cast<std::size_t>(first().length)};
  }

  /// The next READ of the first PUT.
  struct Piece {
    channel::LocalSpan to;
    channel::RemoteSpan from;
  };
  /// Null: all are in flight that may be. `lkey` is that of `pending`.
  [[nodiscard]] std::optional<Piece> next(std::uint32_t lkey) const noexcept;
  void posted(const Piece& piece) noexcept { posted_ += piece.to.length; }
  /// The oldest READ is complete. True: the value is here.
  [[nodiscard]] bool arrived() noexcept;
  /// The first PUT is over.
  void pop() noexcept;
  /// Call when no READ is in flight any more: forgets all PUTs. Abandon `pending` yourself.
  void stop() noexcept;

 private:
  void reset() noexcept;

  SparePlace& spare_;
  std::vector<Put> puts_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::uint64_t posted_ = 0;   ///< Bytes of the first PUT that READs were posted for,
  std::uint64_t arrived_ = 0;  ///< and that are here.
  bool is_in_spare_ = false;
};

}  // namespace verbena::kv
