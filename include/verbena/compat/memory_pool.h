/** \file
 * A slab pool over hugepages that is registered once: rdma_kv's memory_pool.h, as a part of its own.
 *
 * A pool owns one range of memory, faulted in and on the largest pages that the machine has free, and hands out items
 * of it: any thread, O(log n), nothing registered or mapped per item. Register the range once, and every item of it can
 * be a buffer of RDMA: rdmaConnRegister(conn, memory_pool_get_base(pool), memory_pool_get_size(pool), access). In C++
 * verbena::SlabManager (verbena/slab_manager.hpp) does the same in memory that you have.
 *
 * Differences from rdma_kv: freed items serve all sizes, not only their own; an address that is no item is refused, and
 * so is a second free; a pool may be larger than 4 GiB. kv_error_detail (verbena/kv.h) tells about a failure. */
#ifndef VERBENA_COMPAT_MEMORY_POOL_H
#define VERBENA_COMPAT_MEMORY_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The archive has these under other names, so that nothing clashes in a static link. */
/** \cond */
#define memory_pool_create verbena_memory_pool_create
#define memory_pool_destroy verbena_memory_pool_destroy
#define memory_pool_alloc verbena_memory_pool_alloc
#define memory_pool_free verbena_memory_pool_free
#define memory_pool_get_base verbena_memory_pool_get_base
#define memory_pool_get_size verbena_memory_pool_get_size
#define memory_pool_get_used verbena_memory_pool_get_used
#define memory_pool_page_size verbena_memory_pool_page_size
#define memory_pool_print_stats verbena_memory_pool_print_stats
/** \endcond */

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/** A pool. */
typedef struct verbena_memory_pool memory_pool_t;

/** Makes a pool of `size` bytes, 64 to 1 TiB, zeroed. Its pages are the largest that are free, with either value of
 * use_huge_pages; memory_pool_page_size tells which. Null: bad size, or no memory. */
memory_pool_t* memory_pool_create(size_t size, bool use_huge_pages);
/** Frees the pool and all of its items. Deregister its memory first. null is fine. */
void memory_pool_destroy(memory_pool_t* pool);

/** An item of at least `size` bytes, 64-byte aligned, and 4096-byte aligned from 4096 bytes on. Null: none is free, or
 * size is 0. Any thread. */
void* memory_pool_alloc(memory_pool_t* pool, size_t size);
/** Frees an item. null is fine. KV_ERR_BAD_ARGUMENT: no item begins there, and nothing has changed. Any thread. */
int memory_pool_free(memory_pool_t* pool, void* ptr);

/** The first byte of the range, for registration; page-aligned. */
void* memory_pool_get_base(memory_pool_t* pool);
/** Bytes of the range, as memory_pool_create got them. */
size_t memory_pool_get_size(memory_pool_t* pool);
/** Bytes of all items. Any thread. */
size_t memory_pool_get_used(memory_pool_t* pool);
/** Bytes of the pages that the system gave. */
size_t memory_pool_page_size(memory_pool_t* pool);
/** Prints counts on stdout. Any thread. */
void memory_pool_print_stats(memory_pool_t* pool);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
