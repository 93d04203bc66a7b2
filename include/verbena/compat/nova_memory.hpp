/// \file
/// RDMALib's memory manager, over verbena::SlabManager.
#pragma once

#include <verbena/compat/nova_error.hpp>
#include <verbena/slab_manager.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

// The field's names, not ours. NOLINTBEGIN(readability-identifier-naming)

namespace nova {

/// Hands out items of memory that the caller owns, by key: a verbena::SlabManager. Item sizes are 64 B, 128 B and so on
/// up to a slab's; freed memory of large items serves small ones. \thread any, with a lock for each partition, unless
/// it was made with Sharing::kOneThread  \alloc setup (constructor)
class NovaMemManager {
 public:
  /// The pool is `mem_pool_size_gb` GiB that begin at `buf`, and nothing beyond. Key k belongs to partition k %
  /// `num_mem_partitions`. Items have up to `slab_size_mb` MiB. Errors: kBadArgument, kNoMemory.
  NovaMemManager(char* buf, std::uint32_t num_mem_partitions, std::uint64_t mem_pool_size_gb,
                 std::uint64_t slab_size_mb)
      : NovaMemManager({reinterpret_cast<std::byte*>(buf), scaled("mem_pool_size_gb", mem_pool_size_gb, 30)},
                       num_mem_partitions, scaled("slab_size_mb", slab_size_mb, 20)) {}
  /// The same for memory of any size, such as what verbena::mesh::Mesh::allocate returned, and slabs of any size.
  NovaMemManager(std::span<std::byte> memory, std::uint32_t num_mem_partitions, std::size_t slab_bytes,
                 verbena::SlabManager::Sharing sharing = verbena::SlabManager::Sharing::kAnyThread)
      : slab_bytes_(slab_bytes),
        items_(detail::value_of(
            verbena::SlabManager::create(aligned(memory), {.partitions = num_mem_partitions, .sharing = sharing}))) {}

  /// The class of items of `size` bytes, 1 to a slab's. Errors: kBadArgument.
  [[nodiscard]] std::uint32_t slabclassid(std::uint64_t /*key*/, std::uint64_t size) const {
    detail::check_number("the size of an item", size, 1, slab_bytes_);
    return verbena::SlabManager::class_for(size);
  }
  /// An item of a class. Null: the partition has none. Errors: kBadArgument (no such class).
  [[nodiscard]] char* ItemAlloc(std::uint64_t key, std::uint32_t scid) {
    check_class(scid);
    return reinterpret_cast<char*>(items_.allocate_class(key, scid).data());
  }
  /// Frees an item. Errors: kBadArgument (it is not an item of that key's partition and class, or is free already).
  void FreeItem(std::uint64_t key, char* buf, std::uint32_t scid) {
    check_class(scid);
    const std::size_t bytes = items_.item_bytes(key, buf);
    const bool is_of_class = bytes != 0 && verbena::SlabManager::class_for(bytes) == scid;
    if (!is_of_class || items_.free(key, buf) != verbena::Status::kOk)
      detail::refuse("FreeItem: buf is not an item of class " + std::to_string(scid) + " that key " +
                     std::to_string(key) + " has");
  }
  /// Frees items in their order, up to the first one that FreeItem refuses.
  void FreeItems(std::uint64_t key, const std::vector<char*>& items, std::uint32_t scid) {
    for (char* const item : items) FreeItem(key, item, scid);
  }
  /// For statistics.
  [[nodiscard]] const verbena::SlabManager& manager() const noexcept { return items_; }

 private:
  [[nodiscard]] static std::size_t scaled(const char* name, std::uint64_t value, unsigned shift) {
    return std::size_t{detail::check_number(name, value, 1, 1U << 20)} << shift;
  }
  /// Skips up to 63 bytes at the front, because malloc returns multiples of 16.
  [[nodiscard]] static std::span<std::byte> aligned(std::span<std::byte> memory) {
    constexpr std::size_t kUnit = verbena::SlabManager::kMinItemBytes;
    const std::size_t skipped = (kUnit - reinterpret_cast<std::uintptr_t>(memory.data()) % kUnit) % kUnit;
    return memory.subspan(std::min(skipped, memory.size()));
  }
  void check_class(std::uint32_t scid) const {
    detail::check_number("a slab class", scid, 0, verbena::SlabManager::class_for(slab_bytes_));
  }

  const std::size_t slab_bytes_;
  verbena::SlabManager items_;
};

}  // namespace nova

// NOLINTEND(readability-identifier-naming)
