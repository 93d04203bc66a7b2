/** \file
 * rdma_kv's interface: kv_config_t and its server, and clients whose keys count their versions from 1.
 *
 * A program that is written against rdma_kv's kv_store.h includes this header in place of that one. Handles, connecting
 * and errors are those of verbena/kv.h; kv_error_detail tells about a failure. Differences from rdma_kv: structs of
 * servers and clients are opaque; codes have other numbers, so compare them with their names; every call has a
 * deadline; all clients of a key use this header, or none does (verbena/compat/key_versions.h says why). */
#ifndef VERBENA_COMPAT_KV_STORE_H
#define VERBENA_COMPAT_KV_STORE_H

#include <verbena/compat/hash_table.h>
#include <verbena/compat/key_versions.h>
#include <verbena/compat/memory_pool.h>
#include <verbena/kv.h>

#include <stdbool.h>

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */

/** Options of a server. */
typedef struct kv_config {
  char bind_ip[64];       /**< Address or name to listen on; "": this host. */
  int port;               /**< 0 takes any free one; kv_server_port returns it. */
  size_t memory_size;     /**< Item memory in bytes. 1 MiB to 1 TiB. */
  bool use_huge_pages;    /**< Hugepages are used where there are some, with either value. */
  size_t hash_table_size; /**< At least so many keys fit; more do if memory_size is at least 128 bytes for each. */
  unsigned num_workers;   /**< Polling threads. 1 to 64. */
  conn_mode_t conn_mode;  /**< How clients connect: CONN_MODE_CM or CONN_MODE_SOCKET. */
  char ib_dev[64];        /**< "": an RDMA device if one is usable, else the software NIC, which "soft" names. */
} kv_config_t;

/** Makes a server that does not run yet. config null: the defaults of verbena/kv.h. Returns null if there is no memory
 * or the mode is wrong; other errors of `config` are kv_server_start's. */
static inline kv_server_t* kv_server_create_configured(const kv_config_t* config) {
  kv_server_options_t options;
  size_t usual_items;
  (void)kv_server_options_init(&options);
  if (!config) return kv_server_create(&options);
  usual_items = config->memory_size / 128;
  options.address = config->bind_ip;
  options.port = config->port;
  options.memory_bytes = config->memory_size;
  options.max_items = config->hash_table_size > usual_items ? config->hash_table_size : 0;
  options.workers = config->num_workers;
  options.mode = config->conn_mode;
  options.device = config->ib_dev;
  return kv_server_create(&options);
}

/** kv_client_put_counted without a version to return. */
static inline int kv_client_put_next(kv_client_t* client, const char* key, size_t key_len, const void* value,
                                     size_t value_len) {
  uint64_t version;
  return kv_client_put_counted(client, key, key_len, value, value_len, &version);
}
/** kv_client_get_counted without a version to return. */
static inline int kv_client_get_latest(kv_client_t* client, const char* key, size_t key_len, void* value_buf,
                                       size_t* value_len) {
  uint64_t version;
  return kv_client_get_counted(client, key, key_len, value_buf, value_len, &version);
}

/** Gets one after the other. value_lens[i]: the capacity in, the length out, or SIZE_MAX if that get failed. Returns
 * KV_OK if all succeeded, else the code of the first that did not; the others are carried out all the same. */
static inline int kv_client_batch_get_latest(kv_client_t* client, const char** keys, const size_t* key_lens,
                                             void** values, size_t* value_lens, int count) {
  int i, first = KV_OK;
  for (i = 0; i < count; ++i) {
    const int code = kv_client_get_latest(client, keys[i], key_lens[i], values[i], &value_lens[i]);
    if (code != KV_OK) value_lens[i] = SIZE_MAX;
    if (first == KV_OK) first = code;
  }
  return first;
}
/** The same for puts. */
static inline int kv_client_batch_put_next(kv_client_t* client, const char** keys, const size_t* key_lens,
                                           const void** values, const size_t* value_lens, int count) {
  int i, first = KV_OK;
  for (i = 0; i < count; ++i) {
    const int code = kv_client_put_next(client, keys[i], key_lens[i], values[i], value_lens[i]);
    if (first == KV_OK) first = code;
  }
  return first;
}
/* NOLINTEND(readability-identifier-naming) */

/* From here on rdma_kv's names mean the calls above. */
#undef kv_server_create
#undef kv_client_put
#undef kv_client_get
#undef kv_client_cas
#undef kv_client_batch_get
#undef kv_client_batch_put
/** rdma_kv's name of kv_server_create_configured. */
#define kv_server_create kv_server_create_configured
/** rdma_kv's name of kv_client_put_next. */
#define kv_client_put kv_client_put_next
/** rdma_kv's name of kv_client_get_latest. */
#define kv_client_get kv_client_get_latest
/** rdma_kv's name of kv_client_cas_counted. */
#define kv_client_cas kv_client_cas_counted
/** rdma_kv's name of kv_client_batch_get_latest. */
#define kv_client_batch_get kv_client_batch_get_latest
/** rdma_kv's name of kv_client_batch_put_next. */
#define kv_client_batch_put kv_client_batch_put_next

#endif
