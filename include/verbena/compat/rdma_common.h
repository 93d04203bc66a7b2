/* The constants and types of rdma_kv's rdma_common.h that its users see. conn_mode_t is verbena/kv.h's. */
#ifndef VERBENA_COMPAT_RDMA_COMMON_H
#define VERBENA_COMPAT_RDMA_COMMON_H

#include <verbena/kv.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values below so many bytes travel inside a message. */
#define RDMA_SMALL_DATA_THRESHOLD 4096
/* Defaults of rdma_kv: of its memory, and of a hugepage. */
#define MEMORY_POOL_SIZE ((size_t)1 << 30)
#define HUGE_PAGE_SIZE ((size_t)2 << 20)
/* Default deadline of connecting and of each call. */
#define RDMA_TIMEOUT_MS 5000

#endif
