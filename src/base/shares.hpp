// Shares of the time of a thread that serves many: the control thread of the software NIC, and the one that makes
// connections. Each request of a peer takes from everybody else that thread, locks and a processor: a peer that has
// used up its share waits.
#pragma once

#include "base/ticks.hpp"

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace verbena {

/// Whom a share belongs to: a process of this user, or all processes of another user, who could start more of them.
struct Asker {
  uid_t uid = static_cast<uid_t>(-1);
  pid_t pid = 0;  // 0: all processes of the user.
  friend bool operator==(const Asker&, const Asker&) = default;
};

/// A leaky bucket of ticks for each asker. It allocates nothing: the emptiest bucket makes room for a new asker, and an
/// empty one is as good as none. \thread one at a time
class Shares {
 public:
  /// An asker that was quiet may use so much at once. Little, because a neighbour may wait for the processor meanwhile.
  static constexpr std::chrono::milliseconds kBurst{2};
  /// An asker may use one tick in `parts` for good, and `burst` at once.
  explicit constexpr Shares(std::uint64_t parts, std::chrono::milliseconds burst = kBurst) noexcept
      : parts_(parts), burst_(burst) {}

  /// Time until an asker that has used up its share is looked at again.
  static constexpr std::chrono::milliseconds kPause{1};
  /// A request in vain costs its asker so many times what it takes: who needs the thread has its share of it, and who
  /// only keeps it busy has a percent or two.
  static constexpr std::uint64_t kVain = 16;
  struct Use {
    std::uint64_t ticks = 0;    // In all.
    std::uint64_t put_off = 0;  // How often it had to wait.
  };

  /// `used` is the processor's time, so that nobody pays for a thread that has lost its processor.
  void charge(const Asker& asker, std::uint64_t used, std::uint64_t now, bool is_vain = false) noexcept {
    Bucket& bucket = bucket_of(asker, now);
    bucket.level = level_at(bucket, now) + used * (is_vain ? kVain : 1);
    bucket.at = now;
    bucket.use.ticks += used;
  }
  /// Whether the asker has to wait.
  [[nodiscard]] bool is_used_up(const Asker& asker, std::uint64_t now) noexcept {
    auto* const found = std::ranges::find(buckets_, asker, &Bucket::asker);
    if (found == buckets_.end()) return false;
    Bucket& bucket = *found;
    const bool is_over = level_at(bucket, now) > ticks_in(burst_);
    bucket.use.put_off += is_over ? 1 : 0;
    return is_over;
  }
  [[nodiscard]] Use use_of(const Asker& asker) const noexcept {
    const auto* const found = std::ranges::find(buckets_, asker, &Bucket::asker);
    return found != buckets_.end() ? found->use : Use{};
  }

 private:
  struct Bucket {
    Asker asker;
    std::uint64_t level = 0;
    std::uint64_t at = 0;  // Ticks at which `level` was right.
    Use use;
  };

  [[nodiscard]] std::uint64_t level_at(const Bucket& bucket, std::uint64_t now) const noexcept {
    return bucket.level - std::min(bucket.level, (now - bucket.at) / parts_);
  }

  [[nodiscard]] Bucket& bucket_of(const Asker& asker, std::uint64_t now) noexcept {
    auto* found = std::ranges::find(buckets_, asker, &Bucket::asker);
    if (found == buckets_.end()) {
      found = std::ranges::min_element(
          buckets_, {}, [&](const Bucket& bucket) { return std::pair(level_at(bucket, now), bucket.at); });
      *found = {.asker = asker, .at = now};
    }
    return *found;
  }

  static constexpr std::size_t kMost = 64;
  std::uint64_t parts_;
  std::chrono::milliseconds burst_;
  std::array<Bucket, kMost> buckets_{};
};

}  // namespace verbena
