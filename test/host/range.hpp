// Memory for a pool under test.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

namespace verbena::host {

struct FreeMemory {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};

/// Starts on a page; the bytes are whatever they are.
struct Range {
  explicit Range(std::size_t bytes)
      : memory(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))), size(bytes) {}
  [[nodiscard]] std::span<std::byte> span() const { return {memory.get(), size}; }
  std::unique_ptr<std::byte, FreeMemory> memory;
  std::size_t size;
};

}  // namespace verbena::host
