// The functions of verbena/compat/memory_pool.h, over an arena and the slab manager.
#include "api/c/memory_pool.hpp"

#include "api/c/arguments.hpp"
#include "api/c/kv.hpp"

#include <cstdio>
#include <memory>

using namespace verbena::api::c;
using verbena::Result;
using verbena::SlabManager;
using verbena::Status;
using verbena::host::Arena;

memory_pool_t* memory_pool_create(size_t size, bool use_huge_pages) {
  (void)use_huge_pages;  // The largest pages that are free are taken anyway.
  memory_pool_t* made = nullptr;
  (void)told(__func__, [&]() -> Result<void> {
    VERBENA_ASSIGN(Arena arena, Arena::create({.size_bytes = size, .name = "memory_pool"}));
    VERBENA_ASSIGN(SlabManager slabs,
                   SlabManager::create(arena.bytes().first(size), {.sharing = SlabManager::Sharing::kAnyThread}));
    made = new verbena_memory_pool(std::move(arena), std::move(slabs), size);
    return {};
  });
  return made;
}

void memory_pool_destroy(memory_pool_t* pool) { delete pool; }

void* memory_pool_alloc(memory_pool_t* pool, size_t size) {
  if (!is_given(__func__, {"pool", pool})) return nullptr;
  void* const item = pool->slabs.allocate(0, size).data();
  if (item != nullptr) pool->allocations.fetch_add(1, std::memory_order_relaxed);
  return item;
}

int memory_pool_free(memory_pool_t* pool, void* ptr) {
  if (ptr == nullptr) return KV_OK;
  if (!is_given(__func__, {"pool", pool})) return KV_ERR_BAD_ARGUMENT;
  const Status status = pool->slabs.free(0, ptr);
  if (status != Status::kOk) return refuse(__func__, "ptr must be an item of this pool, and not freed already");
  pool->frees.fetch_add(1, std::memory_order_relaxed);
  return KV_OK;
}

void* memory_pool_get_base(memory_pool_t* pool) { return pool != nullptr ? pool->arena.data() : nullptr; }

size_t memory_pool_get_size(memory_pool_t* pool) { return pool != nullptr ? pool->size : 0; }

size_t memory_pool_get_used(memory_pool_t* pool) { return pool != nullptr ? pool->slabs.used_bytes(0) : 0; }

size_t memory_pool_page_size(memory_pool_t* pool) { return pool != nullptr ? pool->arena.page_report().page_bytes : 0; }

void memory_pool_print_stats(memory_pool_t* pool) {
  if (pool == nullptr) return;
  const auto& pages = pool->arena.page_report();
  (void)std::printf("\n=== Memory Pool Statistics ===\nTotal size: %zu bytes\nUsed: %zu bytes\n", pool->size,
                    pool->slabs.used_bytes(0));
  (void)std::printf("Pages: %zu bytes%s%s\n", pages.page_bytes, pages.reason[0] != '\0' ? ", because " : "",
                    &pages.reason[0]);
  (void)std::printf("Allocations: %ju\nFrees: %ju\n", std::uintmax_t{pool->allocations.load()},
                    std::uintmax_t{pool->frees.load()});
  for (unsigned i = 0; i < pool->slabs.classes(0); ++i) {
    const verbena::SlabClass slab = pool->slabs.class_of(0, i);
    if (slab.used + slab.free != 0)
      (void)std::printf("Slab %zu: %ju used, %ju free\n", slab.block_bytes, std::uintmax_t{slab.used},
                        std::uintmax_t{slab.free});
  }
  (void)std::printf("==============================\n\n");
}
