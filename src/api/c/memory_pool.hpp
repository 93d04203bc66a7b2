// The handle of verbena/compat/memory_pool.h.
#pragma once

#include "host/arena.hpp"

#include <verbena/compat/memory_pool.h>
#include <verbena/slab_manager.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

struct verbena_memory_pool {
  verbena_memory_pool(verbena::host::Arena memory, verbena::SlabManager manager, std::size_t bytes)
      : arena(std::move(memory)), slabs(std::move(manager)), size(bytes) {}
  verbena::host::Arena arena;
  verbena::SlabManager slabs;  ///< One partition, for any thread.
  const std::size_t size;
  std::atomic<std::uint64_t> allocations{0}, frees{0};
};
