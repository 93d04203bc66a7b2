/** \file
 * A hash table in the memory of a pool, which peers can READ: rdma_kv's hash_table.h, as a part of its own.
 *
 * It is the store of verbena/kv.h without a server: an index of one cache line for each bucket, and items that prove by
 * a checksum that a READ got all of one. The owner's process changes it by the calls on a hash_table_t, from any
 * thread. A peer gets keys by RDMA READs alone, without the owner's CPU:
 *
 *   owner: registers the pool, and sends the rkey and what hash_table_get_place returns;
 *   peer:  hash_table_remote_get with both, over its connection to the owner.
 *
 * Versions count for each key from 1. Deleted memory is used again. kv_error_detail (verbena/kv.h) tells about a
 * failure; codes are those of verbena/kv.h. */
#ifndef VERBENA_COMPAT_HASH_TABLE_H
#define VERBENA_COMPAT_HASH_TABLE_H

#include <verbena/compat/memory_pool.h>
#include <verbena/kv.h>
#include <verbena/rdma.h>

#include <stddef.h>
#include <stdint.h>

/* The archive has these under other names, so that nothing clashes in a static link. */
/** \cond */
#define hash_table_create verbena_hash_table_create
#define hash_table_destroy verbena_hash_table_destroy
#define hash_table_get verbena_hash_table_get
#define hash_table_copy verbena_hash_table_copy
#define hash_table_put verbena_hash_table_put
#define hash_table_delete verbena_hash_table_delete
#define hash_table_cas verbena_hash_table_cas
#define hash_table_get_entry_addr verbena_hash_table_get_entry_addr
#define hash_table_get_place verbena_hash_table_get_place
#define hash_table_remote_get verbena_hash_table_remote_get
#define hash_table_print_stats verbena_hash_table_print_stats
/** \endcond */

/** rdma_kv's default number of buckets. */
#define HASH_TABLE_INITIAL_SIZE 65536
/** The longest key of rdma_kv; ours may have KV_MAX_KEY_BYTES. */
#define MAX_KEY_LENGTH 256

/** rdma_kv's name of KV_ERR_VERSION_MISMATCH. */
#define KV_ERR_CAS_FAILED KV_ERR_VERSION_MISMATCH
/** rdma_kv's name of KV_ERR_BAD_KEY. */
#define KV_ERR_KEY_TOO_LONG KV_ERR_BAD_KEY
/** rdma_kv's name of KV_ERR_TOO_LONG. */
#define KV_ERR_VALUE_TOO_LONG KV_ERR_TOO_LONG
/** rdma_kv's name of KV_ERR_SYSTEM. */
#define KV_ERR_INTERNAL KV_ERR_SYSTEM

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/** Bytes of registered memory that hash_table_remote_get works in. */
enum { HASH_TABLE_SCRATCH_BYTES = 65536 };

/** A table. */
typedef struct verbena_hash_table hash_table_t;

/** What an operation came to. */
typedef struct kv_result {
  int status;       /**< KV_OK, or a code of kv_error_t. */
  uint64_t version; /**< The key's version; with KV_ERR_CAS_FAILED the current one. */
  void* value;      /**< hash_table_get: the value, in the pool, until the table's next change. Don't write it. */
  size_t value_len; /**< hash_table_get: the value's length. */
} kv_result_t;

/** Where a table is, as plain numbers of the owner's process: send them to peers as they are. */
typedef struct hash_table_place {
  uint64_t address; /**< First byte, in the pool. */
  uint64_t bytes;   /**< Index and items. */
  uint64_t buckets; /**< Buckets of the index. */
  uint64_t seed;    /**< Seed of the keys' hash. */
} hash_table_place_t;

/** Makes a table in half of the pool's largest free piece, 1 MiB at least. It holds `initial_size` keys and more, if it
 * has the memory: at least one for every 128 bytes. Null: the pool has no such piece, or it is too small for so many
 * keys. */
hash_table_t* hash_table_create(size_t initial_size, memory_pool_t* mem_pool);
/** Gives its memory back to the pool, which must still be there. null is fine. */
void hash_table_destroy(hash_table_t* table);

/** Finds a key of 1 to KV_MAX_KEY_BYTES bytes. KV_ERR_NOT_FOUND. Where other threads change the table meanwhile, use
 * hash_table_copy. */
kv_result_t hash_table_get(hash_table_t* table, const char* key, size_t key_len);
/** Copies the value into `buf`. `*len`: its capacity in, the value's length out, also with KV_ERR_BUFFER_TOO_SMALL.
 * `*version`, unless null: the key's version, with KV_OK. */
int hash_table_copy(hash_table_t* table, const char* key, size_t key_len, void* buf, size_t* len, uint64_t* version);
/** Stores a value. KV_ERR_BAD_KEY, KV_ERR_TOO_LONG, KV_ERR_STORE_FULL (memory), KV_ERR_INDEX_FULL (keys). */
kv_result_t hash_table_put(hash_table_t* table, const char* key, size_t key_len, const void* value, size_t value_len);
/** Removes a key. KV_ERR_NOT_FOUND. */
kv_result_t hash_table_delete(hash_table_t* table, const char* key, size_t key_len);
/** Stores a value if the key's version is `expected_version`. KV_ERR_CAS_FAILED, KV_ERR_NOT_FOUND, and as
 * hash_table_put. */
kv_result_t hash_table_cas(hash_table_t* table, const char* key, size_t key_len, uint64_t expected_version,
                           const void* new_value, size_t new_value_len);

/** Address and length of a key's value, for one RDMA READ of values that nobody changes; a READ that a change overtakes
 * may get anything. KV_ERR_NOT_FOUND. */
int hash_table_get_entry_addr(hash_table_t* table, const char* key, size_t key_len, uint64_t* addr, size_t* size);
/** Where the table is, for hash_table_remote_get. */
int hash_table_get_place(hash_table_t* table, hash_table_place_t* place);

/** In a peer: gets a key by READs of the owner's memory over `conn`; other arguments as in hash_table_copy. `rkey`: of
 * the pool's registration in the owner, with the right to read. `scratch`: HASH_TABLE_SCRATCH_BYTES of registered
 * memory of this side, which one thread at a time uses. The call checks all bytes that READs bring: the value is whole,
 * and was the key's during the call. KV_ERR_AGAIN: changes overtook every attempt. KV_ERR_NOT_FOUND:
 * both buckets lacked the key twice; a key may be missed if insertions of others move it in between each time.
 * Otherwise as rdmaSyncReadSignaled, whose codes kv_error_t has, too. */
int hash_table_remote_get(RdmaConn* conn, const hash_table_place_t* place, uint32_t rkey, const RdmaMemory* scratch,
                          const char* key, size_t key_len, void* buf, size_t* len, uint64_t* version);

/** Prints counts on stdout. Any thread. */
void hash_table_print_stats(hash_table_t* table);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
