#include <verbena/slab_manager.hpp>

#include "base/error.hpp"
#include "base/limit.hpp"
#include "base/threads.hpp"
#include "host/slab_pool.hpp"

#include <bit>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace verbena {

using host::SlabPool;

namespace {

constexpr const char* kCreate = "SlabManager::create";
/// The largest alignment of blocks.
constexpr std::size_t kPage = 4096;

/// Where partition `index` of `count` begins. The product fits: addresses have less than 52 bits.
std::size_t begin_of(std::size_t bytes, unsigned index, unsigned count) noexcept {
  const std::size_t unit = bytes / count >= kPage ? kPage : SlabPool::kMinBlockBytes;
  return index == count ? bytes : bytes * index / count / unit * unit;
}

std::span<std::byte> item_at(const SlabPool& pool, std::uint64_t offset) noexcept {
  if (offset == SlabPool::kNoOffset) return {};
  return {pool.at(offset), pool.block_bytes(offset)};
}

}  // namespace

struct SlabManager::State {
  // Aligned to cache lines, so that partitions of different threads share none.
  struct alignas(64) Partition {
    explicit Partition(SlabPool made) : pool(std::move(made)), capacity_bytes(pool.statistics().capacity_bytes) {}
    SlabPool pool;
    const std::size_t capacity_bytes;
    Mutex mutex;
  };

  Sharing sharing = Sharing::kOneThread;
  std::vector<std::unique_ptr<Partition>> partitions;

  [[nodiscard]] Partition& partition_of(std::uint64_t key) const noexcept {
    return *partitions[key % partitions.size()];
  }
  // A mutex instead of a spin lock: the holder may lose its core, and then the next thread sleeps.
  template <class Use>
  auto use(std::uint64_t key, Use&& use) const noexcept {
    Partition& partition = partition_of(key);
    std::unique_lock<Mutex> lock(partition.mutex, std::defer_lock);
    if (sharing == Sharing::kAnyThread) lock.lock();
    return use(partition.pool);
  }
};

SlabManager::SlabManager(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
SlabManager::SlabManager(SlabManager&&) noexcept = default;
SlabManager& SlabManager::operator=(SlabManager&&) noexcept = default;
SlabManager::~SlabManager() = default;

Result<SlabManager> SlabManager::create(std::span<std::byte> memory, const Options& options) {
  VERBENA_TRY(check_limit(kCreate, "partitions", options.partitions, 1, kMaxPartitions));
  VERBENA_TRY(check_limit(kCreate, "sharing (one of Sharing)", std::to_underlying(options.sharing), 0,
                          std::to_underlying(Sharing::kAnyThread)));
  const std::size_t bytes = memory.size() / kMinItemBytes * kMinItemBytes;
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % kMinItemBytes != 0 ||
      bytes / kMinItemBytes < options.partitions)
    return fail(Status::kBadArgument, kCreate, 0,
                "the memory must begin on a {}-byte boundary and have {} bytes for each partition; {} bytes for {} "
                "partitions begin at {}",
                kMinItemBytes, kMinItemBytes, memory.size(), options.partitions,
                static_cast<const void*>(memory.data()));
  try {
    auto state = std::make_unique<State>();
    state->sharing = options.sharing;
    for (unsigned i = 0; i < options.partitions; ++i) {
      const std::size_t begin = begin_of(bytes, i, options.partitions);
      const std::size_t end = begin_of(bytes, i + 1, options.partitions);
      VERBENA_ASSIGN(SlabPool pool, SlabPool::create(memory.subspan(begin, end - begin)));
      state->partitions.push_back(std::make_unique<State::Partition>(std::move(pool)));
    }
    return SlabManager(std::move(state));
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, kCreate, 0, "no memory for the tables of {} partitions", options.partitions);
  }
}

unsigned SlabManager::partitions() const noexcept { return static_cast<unsigned>(state_->partitions.size()); }

std::span<std::byte> SlabManager::allocate(std::uint64_t key, std::size_t bytes) noexcept {
  return state_->use(key, [bytes](SlabPool& pool) { return item_at(pool, pool.allocate_exact(bytes)); });
}

std::span<std::byte> SlabManager::allocate_class(std::uint64_t key, unsigned slab_class) noexcept {
  return state_->use(key, [slab_class](SlabPool& pool) -> std::span<std::byte> {
    if (slab_class >= pool.classes()) return {};
    return item_at(pool, pool.allocate(kMinItemBytes << slab_class));
  });
}

Status SlabManager::free(std::uint64_t key, const void* item) noexcept {
  return state_->use(key, [item](SlabPool& pool) { return pool.free(pool.offset_of(item)); });
}

std::size_t SlabManager::item_bytes(std::uint64_t key, const void* item) const noexcept {
  return state_->use(key, [item](const SlabPool& pool) { return pool.block_bytes(pool.offset_of(item)); });
}

unsigned SlabManager::class_for(std::size_t bytes) noexcept {
  return bytes <= kMinItemBytes ? 0 : static_cast<unsigned>(std::bit_width((bytes - 1) / kMinItemBytes));
}

unsigned SlabManager::classes(std::uint64_t key) const noexcept { return state_->partition_of(key).pool.classes(); }

SlabClass SlabManager::class_of(std::uint64_t key, unsigned slab_class) const noexcept {
  const SlabPool& pool = state_->partition_of(key).pool;
  return slab_class < pool.classes() ? pool.class_of(slab_class) : SlabClass{};
}

std::size_t SlabManager::capacity_bytes(std::uint64_t key) const noexcept {
  return state_->partition_of(key).capacity_bytes;
}

std::size_t SlabManager::used_bytes(std::uint64_t key) const noexcept {
  std::size_t sum = 0;
  for (unsigned i = 0; i < classes(key); ++i) sum += class_of(key, i).used_bytes;
  return sum;
}

}  // namespace verbena
