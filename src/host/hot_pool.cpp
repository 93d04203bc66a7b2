#include "host/hot_pool.hpp"

#include "base/check.hpp"
#include "base/limit.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

namespace verbena::host {

namespace {

constexpr std::uint64_t kUnit = HotPool::kMinBlockBytes;
constexpr unsigned kUnitShift = std::countr_zero(kUnit);
constexpr std::uint32_t kMaxThreads = 1024;
constexpr std::uint32_t kMinCacheBytes = 2 * HotPool::kMinBlockBytes;
constexpr std::uint32_t kMaxCacheBytes = 1 << 20;

/// Blocks of one class in one cache, and half of that in a batch.
constexpr std::uint32_t kCacheBlocks = 64;
constexpr std::uint32_t kBatchBlocks = kCacheBlocks / 2;
constexpr unsigned kMaxClasses = 14;
static_assert(kUnit << (kMaxClasses - 1) == kMaxCacheBytes / 2);
/// Batches of a class in the centre, for each cache: what one thread frees and another allocates waits there.
constexpr std::uint32_t kBatchesPerCache = 2;

// A byte for every unit, of the block that starts there: 1 + its order while a cache or a batch has it or it is live;
// 0 while no block starts there, or the slab pool has it.
constexpr std::uint8_t kLive = 0x80;
constexpr std::uint8_t kPoisoned = 0x40;  // With guards: filled when it was freed.
constexpr std::uint8_t kOrderMask = 0x3f;
constexpr unsigned kMaxOrder = std::countr_zero(HotPool::kMaxRangeBytes) - kUnitShift;
static_assert(kMaxOrder + 1 <= kOrderMask);

// Guards. The pattern is no pointer, no small number and no text.
constexpr std::size_t kMinGuardBytes = 16;
constexpr std::size_t kMaxFillBytes = 256;
constexpr std::byte kGuardByte{0xe7};
constexpr std::byte kPoisonByte{0xdb};

/// The class of blocks for `bytes`; for none, and for absurd sizes, one that no pool has.
[[nodiscard]] unsigned order_of(std::size_t bytes) noexcept {
  return static_cast<unsigned>(std::bit_width((bytes - 1) >> kUnitShift));
}

/// Blocks of 2^order units that one cache holds at most. Even: half of it is a batch.
[[nodiscard]] std::uint32_t blocks_cached(std::uint32_t cache_bytes, unsigned order) noexcept {
  return std::min(kCacheBlocks, cache_bytes >> (kUnitShift + order)) & ~1U;
}

[[nodiscard]] unsigned classes_cached(std::uint32_t cache_bytes) noexcept {
  unsigned classes = 0;
  while (classes < kMaxClasses && blocks_cached(cache_bytes, classes) != 0) ++classes;
  return classes;
}

// One writer: no locked instruction is needed.
void add_one(std::atomic<std::uint64_t>& count) noexcept {
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

/// Of one thread, or of none. The owner's, except `count` and the statistics, which anyone may read.
struct alignas(64) Cache {
  struct Stack {
    std::atomic<std::uint32_t> count{0};
    std::array<std::uint32_t, kCacheBlocks> units;  // Freed last on top.
  };
  static_assert(sizeof(Stack) == 260);
  std::atomic<std::uint64_t> allocations{0};
  std::atomic<std::uint64_t> frees{0};
  std::atomic<std::uint64_t> batches{0};
  bool is_taken = false;  // Under the lock.
  std::array<Stack, kMaxClasses> stacks;
};

using Batch = std::array<std::uint32_t, kBatchBlocks>;
static_assert(sizeof(Batch) == 128);

/// A cache that this thread has. Pools have numbers that never come again, so that what is left of one that is gone
/// matches nothing.
struct Known {
  std::uint64_t pool = 0;
  Cache* cache = nullptr;
};
constexpr std::size_t kPoolsPerThread = 8;

// Trivial, so that no guard is looked at on the hot path, and no destructor is registered, which would allocate.
struct Here {
  Known last;
  std::array<Known, kPoolsPerThread> all;
  std::uint32_t next_victim;
};
constinit thread_local Here here{};

[[noreturn]] void guard_failed(const char* what, std::uint64_t offset, std::size_t block_bytes) noexcept {
  std::fprintf(stderr, "verbena: hot pool: %s, at offset %llu (block of %zu bytes)\n", what,
               static_cast<unsigned long long>(offset), block_bytes);
  std::abort();
}

[[nodiscard]] bool is_all(std::span<const std::byte> bytes, std::byte value) noexcept {
  return std::ranges::all_of(bytes, [value](std::byte byte) { return byte == value; });
}

[[nodiscard]] constexpr unsigned order_in(std::uint8_t mark) noexcept { return (mark & kOrderMask) - 1U; }

}  // namespace

class HotPoolCentre {
 public:
  static constexpr std::uint64_t kNoOffset = HotPool::kNoOffset;

  [[nodiscard]] static Result<std::unique_ptr<HotPoolCentre>> create(std::span<std::byte> range,
                                                                     const HotPoolOptions& options);
  explicit HotPoolCentre(SlabPool pool) noexcept : pool_(std::move(pool)) {}
  ~HotPoolCentre();
  HotPoolCentre(const HotPoolCentre&) = delete;
  HotPoolCentre& operator=(const HotPoolCentre&) = delete;

  [[nodiscard]] std::uint64_t allocate(std::size_t bytes) noexcept;
  [[nodiscard]] Status free(std::uint64_t offset) noexcept;
  [[nodiscard]] std::size_t block_bytes(std::uint64_t offset) const noexcept;
  [[nodiscard]] HotPoolStatistics statistics() const noexcept;
  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t capacity() const noexcept { return units_ * kUnit; }

 private:
  [[nodiscard]] Status set_up(std::span<std::byte> range, const HotPoolOptions& options) noexcept;

  // Threads.
  [[nodiscard]] Cache* cache_here() noexcept {
    if (here.last.pool == id_) [[likely]]
      return here.last.cache;
    return find_cache();
  }
  [[nodiscard]] Cache* find_cache() noexcept;
  [[nodiscard]] Cache* join() noexcept;
  void leave(Cache& cache) noexcept;
  static void part_from(const Known& known) noexcept;
  static void end_of_thread(void*) noexcept;

  // What takes the lock.
  [[nodiscard]] std::uint64_t take_alone(unsigned order, Cache* own) noexcept;
  void give_alone(std::uint64_t offset) noexcept;
  [[nodiscard]] std::uint32_t refill(Cache& cache, unsigned order) noexcept;
  void flush(Cache& cache, unsigned order) noexcept;

  // Under the lock.
  [[nodiscard]] std::uint64_t take_from_pool(unsigned order) noexcept;
  void give_to_pool(std::uint64_t unit) noexcept;
  [[nodiscard]] bool merge(Cache* own) noexcept;
  [[nodiscard]] bool merge_batches() noexcept;
  [[nodiscard]] bool empty(Cache& cache) noexcept;

  [[nodiscard]] std::uint8_t mark_of(std::uint64_t offset) const noexcept {
    if (offset % kUnit != 0 || offset / kUnit >= units_) return 0;
    return marks_[offset / kUnit].load(std::memory_order_relaxed);
  }

  // Guards.
  [[nodiscard]] std::span<std::byte> poison_of(std::uint64_t offset, unsigned order) const noexcept {
    return {base_ + offset, std::min<std::size_t>(kUnit << order, kMaxFillBytes)};
  }
  [[nodiscard]] std::span<std::byte> guard_of(std::uint64_t offset, unsigned order) const noexcept {
    const std::uint64_t used = asked_[offset / kUnit];
    return {base_ + offset + used, std::min<std::size_t>((kUnit << order) - used, kMaxFillBytes)};
  }
  void check_unused(std::uint64_t unit) const noexcept;
  void check_used(std::uint64_t offset, unsigned order) noexcept;
  [[noreturn]] void refuse(std::uint64_t offset, std::uint8_t mark) const noexcept;

  // Constant after construction.
  std::uint64_t id_ = 0;
  std::byte* base_ = nullptr;
  std::uint64_t units_ = 0;
  unsigned classes_ = 0;
  bool has_guards_ = false;
  std::uint32_t max_threads_ = 0;
  std::uint32_t max_batches_ = 0;
  std::array<std::uint32_t, kMaxClasses> limits_{};
  std::unique_ptr<std::atomic<std::uint8_t>[]> marks_;
  std::unique_ptr<std::uint64_t[]> asked_;  // With guards: bytes asked for of the live block at the unit.
  std::unique_ptr<Cache[]> caches_;

  alignas(64) mutable std::mutex mutex_;
  SlabPool pool_;
  std::unique_ptr<Batch[]> batches_;  // max_batches_ for each class.
  std::array<std::uint32_t, kMaxClasses> batch_counts_{};
  std::atomic<std::uint32_t> free_caches_{0};  // Written under the lock.
  HotPoolStatistics alone_;                    // Of operations without a cache.

  HotPoolCentre* next_ = nullptr;  // In the registry, under its lock.
};

namespace {

/// Pools that are there, for threads that end. The key's destructor runs in each thread that has used one: unlike a
/// thread_local object's, it is known of without an allocation.
struct Registry {
  std::mutex mutex;
  HotPoolCentre* first = nullptr;
  std::uint64_t last_id = 0;
  bool has_key = false;
  pthread_key_t key{};
};
constinit Registry registry;

// ---- Setup

[[nodiscard]] std::size_t cached_by_one(const HotPoolOptions& options) noexcept {
  std::size_t sum = 0;
  for (unsigned order = 0; order < classes_cached(options.cache_bytes); ++order)
    sum += blocks_cached(options.cache_bytes, order) * (std::size_t{kUnit} << order);
  return sum;
}

[[nodiscard]] Result<void> check(std::span<std::byte> range, const HotPoolOptions& options) {
  constexpr const char* kCall = "HotPool::create";
  VERBENA_TRY(check_limit(kCall, "max_threads", options.max_threads, 1, kMaxThreads));
  VERBENA_TRY(check_limit(kCall, "cache_bytes", options.cache_bytes, kMinCacheBytes, kMaxCacheBytes));
  if (range.size() > HotPool::kMaxRangeBytes)
    return fail(Status::kBadArgument, kCall, 0, "a hot pool has at most {} bytes; got {}", HotPool::kMaxRangeBytes,
                range.size());
  const std::size_t sum = HotPool::max_cached_bytes(options);
  if (sum > range.size() / 2)
    return fail(Status::kBadArgument, kCall, 0,
                "the caches of {} threads may hold {} bytes each, {} together, and that is more than half of the "
                "pool's {} bytes: lower max_threads or cache_bytes, or give it more memory",
                options.max_threads, cached_by_one(options), sum, range.size());
  return {};
}

}  // namespace

Result<std::unique_ptr<HotPoolCentre>> HotPoolCentre::create(std::span<std::byte> range,
                                                             const HotPoolOptions& options) {
  VERBENA_TRY(check(range, options));
  VERBENA_ASSIGN(SlabPool pool, SlabPool::create(range));
  std::unique_ptr<HotPoolCentre> centre(new (std::nothrow) HotPoolCentre(std::move(pool)));
  const Status status = centre == nullptr ? Status::kNoMemory : centre->set_up(range, options);
  if (status == Status::kNoMemory)
    return fail(
        Status::kNoMemory, "HotPool::create", ENOMEM,
        "no memory for the bookkeeping of a hot pool over {} bytes and {} threads; free memory, or ask for less",
        range.size(), options.max_threads);
  if (status != Status::kOk)
    return fail(status, "pthread_key_create", EAGAIN,
                "this process has all the {} thread keys that there are: something takes them and does not give them "
                "back",
                PTHREAD_KEYS_MAX);
  return centre;
}

Status HotPoolCentre::set_up(std::span<std::byte> range, const HotPoolOptions& options) noexcept {
  base_ = range.data();
  units_ = range.size() / kUnit;
  classes_ = classes_cached(options.cache_bytes);
  for (unsigned order = 0; order < classes_; ++order) limits_[order] = blocks_cached(options.cache_bytes, order);
  max_threads_ = options.max_threads;
  max_batches_ = options.max_threads * kBatchesPerCache;
#ifdef NDEBUG
  has_guards_ = options.guards == HotPoolOptions::Guards::kOn;
#else
  has_guards_ = options.guards != HotPoolOptions::Guards::kOff;
#endif
  // Zeroed, so that no page of it faults later: a byte for each unit, and with guards eight more.
  marks_.reset(new (std::nothrow) std::atomic<std::uint8_t>[units_]());
  if (has_guards_) asked_.reset(new (std::nothrow) std::uint64_t[units_]());
  caches_.reset(new (std::nothrow) Cache[max_threads_]());
  batches_.reset(new (std::nothrow) Batch[std::size_t{max_batches_} * classes_]());
  if (marks_ == nullptr || caches_ == nullptr || batches_ == nullptr || (has_guards_ && asked_ == nullptr))
    return Status::kNoMemory;
  free_caches_.store(max_threads_, std::memory_order_relaxed);
  const std::lock_guard lock(registry.mutex);
  if (!registry.has_key && pthread_key_create(&registry.key, &end_of_thread) != 0) return Status::kLimit;
  registry.has_key = true;
  id_ = ++registry.last_id;
  next_ = std::exchange(registry.first, this);
  return Status::kOk;
}

HotPoolCentre::~HotPoolCentre() {
  const std::lock_guard lock(registry.mutex);
  for (HotPoolCentre** at = &registry.first; *at != nullptr; at = &(*at)->next_) {
    if (*at != this) continue;
    *at = next_;
    break;
  }
}

// ---- Threads

Cache* HotPoolCentre::find_cache() noexcept {
  for (const Known& known : here.all) {
    if (known.pool != id_) continue;
    here.last = known;
    return known.cache;
  }
  return join();
}

Cache* HotPoolCentre::join() noexcept {
  if (free_caches_.load(std::memory_order_relaxed) == 0) return nullptr;
  // Makes `end_of_thread` run; of the value it counts only that it is not null.
  if (pthread_setspecific(registry.key, &here) != 0) return nullptr;
  auto* place = std::ranges::find(here.all, 0U, &Known::pool);
  if (place == here.all.end()) {
    // In turn: a thread that goes round more pools than it has places for parts from each before it comes again.
    place = &here.all[here.next_victim++ % kPoolsPerThread];
    part_from(std::exchange(*place, {}));
  }
  const std::lock_guard lock(mutex_);
  const std::span<Cache> caches(caches_.get(), max_threads_);
  const auto cache = std::ranges::find(caches, false, &Cache::is_taken);
  if (cache == caches.end()) return nullptr;
  cache->is_taken = true;
  free_caches_.store(free_caches_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  here.last = *place = {id_, &*cache};
  return &*cache;
}

void HotPoolCentre::leave(Cache& cache) noexcept {
  const std::lock_guard lock(mutex_);
  (void)empty(cache);
  cache.is_taken = false;
  free_caches_.store(free_caches_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

/// Gives the cache back to its pool, if that is still there.
void HotPoolCentre::part_from(const Known& known) noexcept {
  if (here.last.pool == known.pool) here.last = {};
  const std::lock_guard lock(registry.mutex);
  for (HotPoolCentre* pool = registry.first; pool != nullptr; pool = pool->next_)
    if (pool->id_ == known.pool) return pool->leave(*known.cache);
}

void HotPoolCentre::end_of_thread(void*) noexcept {
  for (Known& known : here.all)
    if (known.pool != 0) part_from(std::exchange(known, {}));
}

// ---- What takes the lock

std::uint64_t HotPoolCentre::take_from_pool(unsigned order) noexcept {
  return order > kMaxOrder ? kNoOffset : pool_.allocate(kUnit << order);
}

void HotPoolCentre::give_to_pool(std::uint64_t unit) noexcept {
  marks_[unit].store(0, std::memory_order_relaxed);
  const Status freed = pool_.free(unit * kUnit);
  VERBENA_CHECK(freed == Status::kOk);
}

/// Gives what the centre and one cache hold back to the slab pool, where it becomes larger blocks. Whether there was
/// something.
bool HotPoolCentre::merge(Cache* own) noexcept {
  const bool had_batches = merge_batches();
  const bool had_blocks = own != nullptr && empty(*own);
  return had_batches || had_blocks;
}

bool HotPoolCentre::merge_batches() noexcept {
  bool has_merged = false;
  for (unsigned order = 0; order < classes_; ++order) {
    for (; batch_counts_[order] != 0; has_merged = true) {
      const Batch& batch = batches_[std::size_t{order} * max_batches_ + --batch_counts_[order]];
      for (std::uint32_t i = 0; i < limits_[order] / 2; ++i) give_to_pool(batch[i]);
    }
  }
  return has_merged;
}

bool HotPoolCentre::empty(Cache& cache) noexcept {
  bool had_blocks = false;
  for (unsigned order = 0; order < classes_; ++order) {
    Cache::Stack& stack = cache.stacks[order];
    const std::uint32_t count = stack.count.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < count; ++i) give_to_pool(stack.units[i]);
    stack.count.store(0, std::memory_order_relaxed);
    had_blocks |= count != 0;
  }
  return had_blocks;
}

/// Fills an empty stack with a batch, or with what there is. Returns how many.
std::uint32_t HotPoolCentre::refill(Cache& cache, unsigned order) noexcept {
  Cache::Stack& stack = cache.stacks[order];
  const std::uint32_t wanted = limits_[order] / 2;
  add_one(cache.batches);
  const std::lock_guard lock(mutex_);
  std::uint32_t count = 0;
  if (batch_counts_[order] != 0) {
    const Batch& batch = batches_[std::size_t{order} * max_batches_ + --batch_counts_[order]];
    std::copy_n(batch.begin(), wanted, stack.units.begin());
    count = wanted;
  }
  while (count < wanted) {
    const std::uint64_t offset = take_from_pool(order);
    if (offset != kNoOffset) {
      stack.units[count++] = static_cast<std::uint32_t>(offset / kUnit);
    } else if (count != 0 || !merge(&cache)) {
      break;
    }
  }
  stack.count.store(count, std::memory_order_relaxed);
  if (count == 0) ++alone_.failures;
  return count;
}

/// Makes room in a full stack. The blocks that were freed first go: the others may still be in the processor's caches.
void HotPoolCentre::flush(Cache& cache, unsigned order) noexcept {
  Cache::Stack& stack = cache.stacks[order];
  const std::uint32_t half = limits_[order] / 2;
  add_one(cache.batches);
  {
    const std::lock_guard lock(mutex_);
    if (batch_counts_[order] < max_batches_) {
      Batch& batch = batches_[std::size_t{order} * max_batches_ + batch_counts_[order]++];
      std::copy_n(stack.units.begin(), half, batch.begin());
    } else {
      for (std::uint32_t i = 0; i < half; ++i) give_to_pool(stack.units[i]);
    }
  }
  std::copy_n(stack.units.begin() + half, half, stack.units.begin());
  stack.count.store(half, std::memory_order_relaxed);
}

/// One block, without a cache: too large for one, or the thread has none.
std::uint64_t HotPoolCentre::take_alone(unsigned order, Cache* own) noexcept {
  const std::lock_guard lock(mutex_);
  ++alone_.uncached;
  std::uint64_t offset = take_from_pool(order);
  // Not for a size that never fits.
  if (offset == kNoOffset && order <= kMaxOrder && (kUnit << order) <= capacity() && merge(own))
    offset = take_from_pool(order);
  if (offset == kNoOffset) {
    ++alone_.failures;
    return kNoOffset;
  }
  ++alone_.allocations;
  marks_[offset / kUnit].store(static_cast<std::uint8_t>(kLive | (order + 1)), std::memory_order_relaxed);
  return offset;
}

void HotPoolCentre::give_alone(std::uint64_t offset) noexcept {
  const std::lock_guard lock(mutex_);
  ++alone_.uncached;
  ++alone_.frees;
  give_to_pool(offset / kUnit);
}

// ---- Guards

/// Of a block that is about to be handed out.
void HotPoolCentre::check_unused(std::uint64_t unit) const noexcept {
  const std::uint8_t mark = marks_[unit].load(std::memory_order_relaxed);
  if ((mark & kPoisoned) == 0) return;
  const std::uint64_t offset = unit * kUnit;
  if (!is_all(poison_of(offset, order_in(mark)), kPoisonByte))
    guard_failed("somebody wrote into a block after it was freed", offset, kUnit << order_in(mark));
}

/// Of a block that is being freed.
void HotPoolCentre::check_used(std::uint64_t offset, unsigned order) noexcept {
  // Locked: of two threads that free the same block at the same time, one finds that it is not live.
  const auto freed = static_cast<std::uint8_t>(kPoisoned | (order + 1));
  const std::uint8_t before = marks_[offset / kUnit].exchange(freed, std::memory_order_relaxed);
  if ((before & kLive) == 0) refuse(offset, before);
  if (!is_all(guard_of(offset, order), kGuardByte))
    guard_failed("somebody wrote past the end of a block", offset, asked_[offset / kUnit]);
  std::ranges::fill(poison_of(offset, order), kPoisonByte);
}

void HotPoolCentre::refuse(std::uint64_t offset, std::uint8_t mark) const noexcept {
  if (mark != 0) guard_failed("a block was freed twice", offset, kUnit << order_in(mark));
  if (offset >= capacity()) guard_failed("what was freed is not of this pool", offset, 0);
  guard_failed("what was freed is not the start of a block, or was freed before", offset, 0);
}

// ---- The hot path

std::uint64_t HotPoolCentre::allocate(std::size_t bytes) noexcept {
  const std::size_t with_guard = bytes + (has_guards_ && bytes != 0 ? kMinGuardBytes : 0);
  const unsigned order = order_of(with_guard < bytes ? 0 : with_guard);
  Cache* const cache = cache_here();
  std::uint64_t offset = kNoOffset;
  if (order >= classes_ || cache == nullptr) [[unlikely]] {
    offset = take_alone(order, cache);
  } else {
    Cache::Stack& stack = cache->stacks[order];
    std::uint32_t count = stack.count.load(std::memory_order_relaxed);
    if (count == 0) [[unlikely]]
      count = refill(*cache, order);
    if (count == 0) [[unlikely]]
      return kNoOffset;
    const std::uint32_t unit = stack.units[count - 1];
    stack.count.store(count - 1, std::memory_order_relaxed);
    if (has_guards_) [[unlikely]]
      check_unused(unit);
    marks_[unit].store(static_cast<std::uint8_t>(kLive | (order + 1)), std::memory_order_relaxed);
    add_one(cache->allocations);
    offset = unit * kUnit;
  }
  if (has_guards_ && offset != kNoOffset) [[unlikely]] {
    asked_[offset / kUnit] = bytes;
    std::ranges::fill(guard_of(offset, order), kGuardByte);
  }
  return offset;
}

Status HotPoolCentre::free(std::uint64_t offset) noexcept {
  const std::uint8_t mark = mark_of(offset);
  if ((mark & kLive) == 0) [[unlikely]] {
    if (has_guards_) refuse(offset, mark);
    return Status::kBadArgument;
  }
  const unsigned order = order_in(mark);
  if (has_guards_) [[unlikely]]
    check_used(offset, order);
  Cache* const cache = cache_here();
  if (order >= classes_ || cache == nullptr) [[unlikely]] {
    give_alone(offset);
    return Status::kOk;
  }
  Cache::Stack& stack = cache->stacks[order];
  std::uint32_t count = stack.count.load(std::memory_order_relaxed);
  if (count == limits_[order]) [[unlikely]] {
    flush(*cache, order);
    count = stack.count.load(std::memory_order_relaxed);
  }
  if (!has_guards_) [[likely]]
    marks_[offset / kUnit].store(static_cast<std::uint8_t>(order + 1), std::memory_order_relaxed);
  stack.units[count] = static_cast<std::uint32_t>(offset / kUnit);
  stack.count.store(count + 1, std::memory_order_relaxed);
  add_one(cache->frees);
  return Status::kOk;
}

std::size_t HotPoolCentre::block_bytes(std::uint64_t offset) const noexcept {
  const std::uint8_t mark = mark_of(offset);
  if ((mark & kLive) == 0) return 0;
  return has_guards_ ? asked_[offset / kUnit] : kUnit << order_in(mark);
}

HotPoolStatistics HotPoolCentre::statistics() const noexcept {
  const std::lock_guard lock(mutex_);
  HotPoolStatistics now = alone_;
  const SlabStatistics pool = pool_.statistics();
  now.capacity_bytes = pool.capacity_bytes;
  for (const Cache& cache : std::span<const Cache>(caches_.get(), max_threads_)) {
    now.allocations += cache.allocations.load(std::memory_order_relaxed);
    now.frees += cache.frees.load(std::memory_order_relaxed);
    now.batches += cache.batches.load(std::memory_order_relaxed);
    now.caches += cache.is_taken ? 1 : 0;
    for (unsigned order = 0; order < classes_; ++order)
      now.cached_bytes += cache.stacks[order].count.load(std::memory_order_relaxed) * (kUnit << order);
  }
  for (unsigned order = 0; order < classes_; ++order)
    now.cached_bytes += batch_counts_[order] * (limits_[order] / 2) * (kUnit << order);
  now.used_bytes = pool.used_bytes - std::min(pool.used_bytes, now.cached_bytes);
  return now;
}

// ---- HotPool

HotPool::HotPool(std::unique_ptr<HotPoolCentre> centre) noexcept : centre_(std::move(centre)) {}
HotPool::HotPool(HotPool&&) noexcept = default;
HotPool& HotPool::operator=(HotPool&&) noexcept = default;
HotPool::~HotPool() = default;

Result<HotPool> HotPool::create(std::span<std::byte> range, const HotPoolOptions& options) {
  VERBENA_ASSIGN(auto centre, HotPoolCentre::create(range, options));
  return HotPool(std::move(centre));
}

std::size_t HotPool::max_cached_bytes(const HotPoolOptions& options) noexcept {
  return options.max_threads * cached_by_one(options);
}

std::uint64_t HotPool::allocate(std::size_t bytes) noexcept { return centre_->allocate(bytes); }
Status HotPool::free(std::uint64_t offset) noexcept { return centre_->free(offset); }
std::size_t HotPool::block_bytes(std::uint64_t offset) const noexcept { return centre_->block_bytes(offset); }
std::byte* HotPool::at(std::uint64_t offset) const noexcept {
  VERBENA_DCHECK(offset < centre_->capacity());
  return centre_->base() + offset;
}
std::uint64_t HotPool::offset_of(const void* address) const noexcept {
  const auto distance = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(centre_->base());
  return distance < centre_->capacity() ? distance : kNoOffset;
}
HotPoolStatistics HotPool::statistics() const noexcept { return centre_->statistics(); }

}  // namespace verbena::host
