/** \file
 * Versions that each key counts for itself, as rdma_kv has them: the first put makes version 1, each change the next.
 *
 * The store's own versions come from one counter of the server and are never used twice, so that a cas cannot mistake a
 * key that was deleted and put again for the old one, and a client can tell from one RDMA READ that a value is whole.
 * Programs that were written for rdma_kv expect 1 instead: these calls keep a count in front of the value, under the
 * protection of the store's version. A change costs a get and a cas in place of a put. Use these calls for all accesses
 * to such keys: other calls see the count as the value's first 8 bytes, and these return KV_ERR_WRONG_KIND for a value
 * without one. A key that is deleted and put again begins at 1.
 *
 * Otherwise as the calls of verbena/kv.h without `_counted`. verbena/compat/kv_store.h gives them rdma_kv's names. */
#ifndef VERBENA_COMPAT_KEY_VERSIONS_H
#define VERBENA_COMPAT_KEY_VERSIONS_H

#include <verbena/kv.h>

/** \cond */
#define kv_client_put_counted verbena_kv_client_put_counted
#define kv_client_get_counted verbena_kv_client_get_counted
#define kv_client_cas_counted verbena_kv_client_cas_counted
/** \endcond */

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/** Stores a value. `*version`, unless null: the new version, with KV_OK. */
int kv_client_put_counted(kv_client_t* client, const void* key, size_t klen, const void* value, size_t vlen,
                          uint64_t* version);
/** Copies the value into `buf`. `*len`: its capacity in, the value's length out, also with KV_ERR_BUFFER_TOO_SMALL.
 * `*version`, unless null: the value's version, with KV_OK. */
int kv_client_get_counted(kv_client_t* client, const void* key, size_t klen, void* buf, size_t* len, uint64_t* version);
/** Stores the value if the key's version is `expected`. `*version`, unless null: the new version, or with
 * KV_ERR_VERSION_MISMATCH the current one. KV_ERR_NOT_FOUND: there is no such key, whatever is expected. */
int kv_client_cas_counted(kv_client_t* client, const void* key, size_t klen, uint64_t expected, const void* value,
                          size_t vlen, uint64_t* version);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
