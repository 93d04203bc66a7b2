#include "host/slab_pool.hpp"

#include "base/check.hpp"
#include "base/error.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <new>
#include <utility>

namespace verbena::host {

/// A named namespace, because SlabPool::State has members of these types.
namespace slab {

// A level has one bit for 64 of the level below: 64^10 is past the 2^58 units that 64-bit offsets can name.
constexpr unsigned kMaxLevels = 10;

/// The set of free blocks of one order: one bit per block, and levels above with one bit for every non-zero word below,
/// so that insert, erase and first touch one word per level.
struct FreeSet {
  std::array<std::uint64_t*, kMaxLevels> levels{};
  unsigned depth = 0;
};

/// Blocks and their units, with one writer and any number of readers.
struct Tally {
  std::atomic<std::uint64_t> blocks{0}, units{0};

  void add(std::uint64_t some_units) noexcept { change(1, some_units); }
  void remove(std::uint64_t some_units) noexcept { change(~std::uint64_t{0}, 0 - some_units); }

 private:
  void change(std::uint64_t more_blocks, std::uint64_t more_units) noexcept {
    blocks.store(blocks.load(std::memory_order_relaxed) + more_blocks, std::memory_order_relaxed);
    units.store(units.load(std::memory_order_relaxed) + more_units, std::memory_order_relaxed);
  }
};

}  // namespace slab

namespace {

using slab::FreeSet;
using slab::kMaxLevels;
using slab::Tally;

constexpr unsigned kUnitShift = 6;
static_assert(SlabPool::kMinBlockBytes == std::size_t{1} << kUnitShift);
constexpr std::uint64_t kUnit = SlabPool::kMinBlockBytes;

// One word has a bit for each order.
constexpr unsigned kMaxOrders = 58;
static_assert(kMaxOrders + kUnitShift == 64);

// An entry of `live`: 1 + the block's order, or kExact + its units; 0: no block.
using Code = std::uint8_t;
constexpr unsigned kExact = 64;
constexpr std::uint64_t kMaxExactUnits = 127;
static_assert(kMaxOrders < kExact && kExact + kMaxExactUnits <= 255);

constexpr Code code_of_order(unsigned order) noexcept { return static_cast<Code>(order + 1); }
constexpr std::uint64_t units_of(Code code) noexcept {
  return code < kExact ? std::uint64_t{1} << (code - 1) : code - std::uint64_t{kExact};
}
/// The order of the smallest block that holds `bytes`.
unsigned order_for(std::size_t bytes) noexcept {
  return static_cast<unsigned>(std::bit_width((bytes - 1) >> kUnitShift));
}

/// Calls visit(order, words) for each level of the sets of all orders, the lowest first. A set has one bit more than
/// there are whole blocks, because the code looks up the buddy of the last block even if it does not exist.
template <class Visit>
void for_each_level(std::uint64_t units, Visit&& visit) noexcept {
  for (unsigned order = 0; order < static_cast<unsigned>(std::bit_width(units)); ++order) {
    std::uint64_t bits = (units >> order) + 1;
    do {
      bits = (bits + 63) / 64;
      visit(order, bits);
    } while (bits > 1);
  }
}

std::size_t words_of_sets(std::uint64_t units) noexcept {
  std::size_t sum = 0;
  for_each_level(units, [&](unsigned, std::uint64_t words) { sum += words; });
  return sum;
}

/// The order of the smallest power of two that holds `units`.
unsigned class_of_units(std::uint64_t units) noexcept { return static_cast<unsigned>(std::bit_width(units - 1)); }

std::uint64_t bit(std::uint64_t index) noexcept { return std::uint64_t{1} << (index & 63); }

}  // namespace

struct SlabPool::State {
  std::byte* base = nullptr;
  std::uint64_t units = 0;
  unsigned orders = 0;          // Blocks have 2^0 to 2^(orders - 1) units.
  std::uint64_t non_empty = 0;  // Bit o: the set of order o has a block.
  std::array<FreeSet, kMaxOrders> free{};
  std::unique_ptr<std::uint64_t[]> words;  // The words of all sets.
  // For every unit the code of the live block that starts there, or 0. Only this decides whether an offset may be
  // freed, so a double free, an interior or a foreign offset does no harm.
  std::unique_ptr<Code[]> live;
  SlabStatistics statistics;
  std::array<Tally, kMaxOrders> used;
  std::array<Tally, kMaxOrders> spare;  // Free blocks, the one freed last included.
  // The block freed last, which is not in its set yet. Otherwise a caller that frees and allocates the same size in
  // turn would merge and split through every order of an idle pool (100 ns).
  Code last_code = 0;
  std::uint64_t last_unit = 0;

  [[nodiscard]] bool is_free(unsigned order, std::uint64_t block) const noexcept {
    return (free[order].levels[0][block >> 6] & bit(block)) != 0;
  }

  void insert(unsigned order, std::uint64_t block) noexcept {
    const FreeSet& set = free[order];
    spare[order].add(std::uint64_t{1} << order);
    for (unsigned level = 0; level < set.depth; ++level, block >>= 6) {
      std::uint64_t& word = set.levels[level][block >> 6];
      const std::uint64_t before = word;
      word = before | bit(block);
      if (before != 0) return;
    }
    non_empty |= std::uint64_t{1} << order;
  }

  void erase(unsigned order, std::uint64_t block) noexcept {
    const FreeSet& set = free[order];
    spare[order].remove(std::uint64_t{1} << order);
    for (unsigned level = 0; level < set.depth; ++level, block >>= 6) {
      std::uint64_t& word = set.levels[level][block >> 6];
      word &= ~bit(block);
      if (word != 0) return;
    }
    non_empty &= ~(std::uint64_t{1} << order);
  }

  [[nodiscard]] std::uint64_t first(unsigned order) const noexcept {
    const FreeSet& set = free[order];
    std::uint64_t block = 0;
    for (unsigned level = set.depth; level-- > 0;)
      block = block << 6 | static_cast<unsigned>(std::countr_zero(set.levels[level][block]));
    return block;
  }

  void lay_out() noexcept {
    std::uint64_t* next = words.get();
    for_each_level(units, [&](unsigned order, std::uint64_t some) {
      FreeSet& set = free[order];
      VERBENA_CHECK(set.depth < kMaxLevels);
      set.levels[set.depth++] = next;
      next += some;
    });
  }

  /// Covers the range with the fewest blocks: each is the largest that its offset's alignment allows and that fits.
  void fill() noexcept {
    for (std::uint64_t at = 0; at < units;) {
      auto order = static_cast<unsigned>(std::bit_width(units - at)) - 1;
      if (at != 0) order = std::min(order, static_cast<unsigned>(std::countr_zero(at)));
      insert(order, at >> order);
      at += std::uint64_t{1} << order;
    }
  }

  /// Puts the block freed last into its set, or its parts into theirs.
  void settle() noexcept {
    if (last_code == 0) return;
    const std::uint64_t count = units_of(std::exchange(last_code, Code{0}));
    spare[class_of_units(count)].remove(count);
    give(last_unit, count);
  }

  /// Puts a range into the sets, as the fewest blocks, each merged with every free buddy.
  void give(std::uint64_t unit, std::uint64_t count) noexcept {
    for (const std::uint64_t end = unit + count; unit != end;) {
      const auto aligned = static_cast<unsigned>(std::countr_zero(unit));  // 64 for unit 0.
      unsigned order = std::min(aligned, static_cast<unsigned>(std::bit_width(end - unit)) - 1);
      std::uint64_t block = unit >> order;
      unit += std::uint64_t{1} << order;
      while (order + 1 < orders && is_free(order, block ^ 1)) {
        erase(order, block ^ 1);
        block >>= 1;
        ++order;
      }
      insert(order, block);
    }
  }

  /// Takes the block freed last if it has this code. Otherwise puts it into its set, and returns kNoOffset.
  [[nodiscard]] std::uint64_t take_last(Code code) noexcept {
    if (code == last_code) {
      last_code = 0;
      spare[class_of_units(units_of(code))].remove(units_of(code));
      return last_unit;
    }
    settle();
    return kNoOffset;
  }

  /// Takes a free block of 2^order units out of its set, and returns its first unit; kNoOffset if there is none.
  [[nodiscard]] std::uint64_t take(unsigned order) noexcept {
    // `order` is below kMaxOrders: the shift is less than a word.
    const std::uint64_t large_enough = non_empty >> order << order;
    if (large_enough == 0) return kNoOffset;
    auto found = static_cast<unsigned>(std::countr_zero(large_enough));
    std::uint64_t block = first(found);
    erase(found, block);
    for (; found > order; --found) {
      block <<= 1;
      insert(found - 1, block + 1);
    }
    return block << order;
  }

  /// Makes the block at `unit` live, and returns its offset.
  [[nodiscard]] std::uint64_t hand_out(std::uint64_t unit, Code code) noexcept {
    if (unit == kNoOffset) return kNoOffset;
    live[static_cast<std::size_t>(unit)] = code;
    used[class_of_units(units_of(code))].add(units_of(code));
    statistics.used_bytes += static_cast<std::size_t>(units_of(code) * kUnit);
    return unit * kUnit;
  }

  [[nodiscard]] Code code_at(std::uint64_t offset) const noexcept {
    if (offset % kUnit != 0 || offset / kUnit >= units) return 0;
    return live[static_cast<std::size_t>(offset / kUnit)];
  }
};

std::size_t SlabPool::bookkeeping_bytes(std::size_t range_bytes) noexcept {
  const std::uint64_t units = range_bytes / kUnit;
  return sizeof(State) + words_of_sets(units) * sizeof(std::uint64_t) + static_cast<std::size_t>(units);
}

SlabPool::SlabPool(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
SlabPool::SlabPool(SlabPool&&) noexcept = default;
SlabPool& SlabPool::operator=(SlabPool&&) noexcept = default;
SlabPool::~SlabPool() = default;

Result<SlabPool> SlabPool::create(std::span<std::byte> range) {
  if (range.size() < kMinBlockBytes || reinterpret_cast<std::uintptr_t>(range.data()) % kMinBlockBytes != 0) {
    return fail(Status::kBadArgument, "SlabPool::create", 0,
                "a slab pool needs at least {} bytes that start on a {}-byte boundary, and got {} bytes",
                kMinBlockBytes, kMinBlockBytes, range.size());
  }
  std::unique_ptr<State> state(new (std::nothrow) State);
  if (state != nullptr) {
    state->base = range.data();
    state->units = range.size() / kUnit;
    state->orders = static_cast<unsigned>(std::bit_width(state->units));
    // Zeroes it here, so that none of its pages faults later. About 1.25 bytes per unit, 2 % of the range.
    state->words.reset(new (std::nothrow) std::uint64_t[words_of_sets(state->units)]());
    state->live.reset(new (std::nothrow) Code[static_cast<std::size_t>(state->units)]());
  }
  if (state == nullptr || state->words == nullptr || state->live == nullptr) {
    return fail(Status::kNoMemory, "SlabPool::create", ENOMEM,
                "no memory for the bookkeeping of a slab pool over {} bytes, which takes 2 % of them; free memory, or "
                "ask for less",
                range.size());
  }
  state->lay_out();
  state->fill();
  state->statistics.capacity_bytes = static_cast<std::size_t>(state->units * kUnit);
  return SlabPool(std::move(state));
}

std::uint64_t SlabPool::allocate(std::size_t bytes) noexcept {
  State& state = *state_;
  const unsigned order = order_for(bytes);
  if (bytes == 0 || order >= kMaxOrders) return kNoOffset;
  const Code code = code_of_order(order);
  std::uint64_t unit = state.take_last(code);
  if (unit == kNoOffset) unit = state.take(order);
  return state.hand_out(unit, code);
}

std::uint64_t SlabPool::allocate_exact(std::size_t bytes) noexcept {
  const std::uint64_t units = (bytes + kUnit - 1) / kUnit;
  if (units == 0 || units > kMaxExactUnits || std::has_single_bit(units)) return allocate(bytes);
  State& state = *state_;
  const auto code = static_cast<Code>(kExact + units);
  std::uint64_t unit = state.take_last(code);
  if (unit == kNoOffset) {
    const unsigned order = order_for(bytes);
    unit = state.take(order);
    if (unit != kNoOffset) state.give(unit + units, (std::uint64_t{1} << order) - units);
  }
  return state.hand_out(unit, code);
}

Status SlabPool::free(std::uint64_t offset) noexcept {
  State& state = *state_;
  const Code code = state.code_at(offset);
  if (code == 0) return Status::kBadArgument;
  state.live[static_cast<std::size_t>(offset / kUnit)] = 0;
  state.statistics.used_bytes -= static_cast<std::size_t>(units_of(code) * kUnit);
  state.settle();
  state.last_code = code;
  state.last_unit = offset / kUnit;
  state.used[class_of_units(units_of(code))].remove(units_of(code));
  state.spare[class_of_units(units_of(code))].add(units_of(code));
  return Status::kOk;
}

std::size_t SlabPool::block_bytes(std::uint64_t offset) const noexcept {
  const Code code = state_->code_at(offset);
  return code == 0 ? 0 : static_cast<std::size_t>(units_of(code) * kUnit);
}

std::byte* SlabPool::at(std::uint64_t offset) const noexcept {
  VERBENA_DCHECK(offset < state_->statistics.capacity_bytes);
  return state_->base + offset;
}

std::uint64_t SlabPool::offset_of(const void* address) const noexcept {
  const auto distance = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(state_->base);
  return distance < state_->statistics.capacity_bytes ? distance : kNoOffset;
}

SlabStatistics SlabPool::statistics() const noexcept { return state_->statistics; }

unsigned SlabPool::classes() const noexcept { return state_->orders; }

SlabClass SlabPool::class_of(unsigned index) const noexcept {
  VERBENA_DCHECK(index < state_->orders);
  const auto get = [](const std::atomic<std::uint64_t>& count) { return count.load(std::memory_order_relaxed); };
  const Tally& used = state_->used[index];
  const Tally& spare = state_->spare[index];
  return {.block_bytes = kMinBlockBytes << index,
          .used = get(used.blocks),
          .used_bytes = get(used.units) * kUnit,
          .free = get(spare.blocks),
          .free_bytes = get(spare.units) * kUnit};
}

}  // namespace verbena::host
