// Frames of coroutines: a list of free blocks that every thread takes from and gives back to.
#include <verbena/coroutine_loop.hpp>

#include "api/cxx/guarded.hpp"
#include "base/check.hpp"
#include "base/limit.hpp"

#include <new>

namespace verbena::coroutine {

/// What is in front of a frame.
struct alignas(16) FramePool::Block {
  FramePool* pool = nullptr;
  std::atomic<std::uint32_t> next{0};  ///< While it is free: the number of the next one; kNone.
};

namespace {

// One word has the first free block, the number in use, and a count of changes.
constexpr std::uint32_t kIndexBits = 21;
constexpr std::uint64_t kIndexMask = (std::uint64_t{1} << kIndexBits) - 1;
constexpr std::uint32_t kNone = static_cast<std::uint32_t>(kIndexMask);
constexpr std::uint32_t kMostFrames = 1u << 20;
static_assert(kMostFrames < kNone, "an index and a number in use each fit in their bits");
constexpr std::uint64_t kOneInUse = std::uint64_t{1} << kIndexBits;
// 22 bits of changes: a thread that sleeps in `allocate` while others make four million finds the value of before.
constexpr std::uint64_t kOneChange = std::uint64_t{1} << (2 * kIndexBits);

[[nodiscard]] constexpr std::uint32_t index_of(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word & kIndexMask);
}
[[nodiscard]] constexpr std::uint32_t in_use_of(std::uint64_t word) noexcept { return index_of(word >> kIndexBits); }

template <class Number>
void raise(std::atomic<Number>& to, Number value) noexcept {
  Number before = to.load(std::memory_order_relaxed);
  while (before < value && !to.compare_exchange_weak(before, value, std::memory_order_relaxed)) {}
}

constexpr std::align_val_t kAlignment{64};

}  // namespace

Result<std::unique_ptr<FramePool>> FramePool::make(const FrameOptions& options) {
  constexpr const char* kCall = "coroutine::FramePool::make";
  return api::guarded(kCall, [&]() -> Result<std::unique_ptr<FramePool>> {
    VERBENA_TRY(check_limit(kCall, "frames", options.frames, 1, kMostFrames));
    VERBENA_TRY(check_limit(kCall, "frame_bytes", options.frame_bytes, 64, 1u << 20));
    const std::size_t bytes = (sizeof(Block) + options.frame_bytes + 63) / 64 * 64;
    auto* const memory = static_cast<std::byte*>(::operator new(bytes * options.frames, kAlignment));
    auto* const pool = new (std::nothrow) FramePool(options, memory);
    if (pool == nullptr) {
      ::operator delete(memory, kAlignment);
      throw std::bad_alloc();
    }
    return std::unique_ptr<FramePool>(pool);
  });
}

FramePool::FramePool(const FrameOptions& options, std::byte* memory) noexcept
    : memory_(memory),
      frames_(options.frames),
      bytes_(static_cast<std::uint32_t>((sizeof(Block) + options.frame_bytes + 63) / 64 * 64)),
      free_(0) {
  for (std::uint32_t i = 0; i < frames_; ++i) {
    Block& block = *new (memory_ + std::size_t{i} * bytes_) Block;
    block.pool = this;
    block.next.store(i + 1 == frames_ ? kNone : i + 1, std::memory_order_relaxed);
  }
}

FramePool::~FramePool() {
  // A frame that lives would be memory that is gone.
  VERBENA_CHECK(in_use_of(free_.load(std::memory_order_acquire)) == 0);
  ::operator delete(memory_, kAlignment);
}

FramePool::Block& FramePool::at(std::uint32_t index) const noexcept {
  return *std::launder(reinterpret_cast<Block*>(memory_ + std::size_t{index} * bytes_));
}

void* FramePool::allocate(std::size_t bytes) noexcept {
  constexpr const char* kCall = "coroutine::FramePool";
  if (bytes > longest_.load(std::memory_order_relaxed)) [[unlikely]]
    raise(longest_, bytes);
  if (const std::size_t room = bytes_ - sizeof(Block); bytes > room) [[unlikely]] {
    refused_.fetch_add(1, std::memory_order_relaxed);
    note(Status::kLimit, kCall, "a coroutine's frame has {} bytes, and those of the pool {}: raise frame_bytes", bytes,
         room);
    return nullptr;
  }
  std::uint64_t before = free_.load(std::memory_order_acquire);
  for (;;) {
    const std::uint32_t first = index_of(before);
    if (first == kNone) [[unlikely]] {
      refused_.fetch_add(1, std::memory_order_relaxed);
      note(Status::kLimit, kCall, "all {} frames are in use: raise frames, or await some coroutines first", frames_);
      return nullptr;
    }
    Block& block = at(first);
    const std::uint64_t rest = (before & ~kIndexMask) + kOneInUse + kOneChange;
    const std::uint64_t after = rest | block.next.load(std::memory_order_relaxed);
    if (!free_.compare_exchange_weak(before, after, std::memory_order_acquire)) continue;
    if (const std::uint32_t in_use = in_use_of(after); in_use > highest_.load(std::memory_order_relaxed))
      raise(highest_, in_use);
    return &block + 1;
  }
}

void FramePool::release(void* frame) noexcept {
  Block& block = *(static_cast<Block*>(frame) - 1);
  block.pool->give_back(block);
}

void FramePool::give_back(Block& block) noexcept {
  const auto index = static_cast<std::uint32_t>((reinterpret_cast<std::byte*>(&block) - memory_) / bytes_);
  std::uint64_t before = free_.load(std::memory_order_relaxed);
  std::uint64_t after = 0;
  do {
    block.next.store(index_of(before), std::memory_order_relaxed);
    after = ((before & ~kIndexMask) - kOneInUse + kOneChange) | index;
    // Release: whoever takes the block finds what its last user wrote behind him, and its next one.
  } while (!free_.compare_exchange_weak(before, after, std::memory_order_release, std::memory_order_relaxed));
}

FrameCounts FramePool::counts() const noexcept {
  return {.in_use = in_use_of(free_.load(std::memory_order_relaxed)),
          .highest = highest_.load(std::memory_order_relaxed),
          .refused = refused_.load(std::memory_order_relaxed),
          .longest = longest_.load(std::memory_order_relaxed)};
}

}  // namespace verbena::coroutine
