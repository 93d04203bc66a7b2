/** \file
 * The key-value store in C: a client whose calls block, batches of calls, and a server within the process.
 *
 * Functions that return int return 0 (KV_OK) or a negative code of kv_error_t. kv_error_string tells the cause and fix
 * of a code, kv_error_detail tells about the last call that failed in this thread. The codes are those of
 * verbena/rdma.h and some more. Every call that waits has a deadline: the client's timeout
 * (kv_client_options_t::timeout_ms). There are no global options. No call prints or ends the process, unless the
 * library finds its own state broken.
 *
 * Threads: one thread at a time uses a client; a second thread that calls meanwhile gets KV_ERR_BUSY, and its call has
 * no effect. Make a client for each thread. A server has threads of its own; one thread at a time calls its functions.
 *
 * Keys have 1 to KV_MAX_KEY_BYTES bytes, values 0 to the server's max_value_bytes; both hold any bytes. You may
 * reuse or free keys and values when the call returns.
 *
 * Failures from KV_ERR_PEER_LOST on end the connection, and later calls return the same code at once: call
 * kv_client_disconnect, then connect again. Smaller ones, KV_ERR_DENIED and KV_ERR_OVER_QUOTA leave everything as it
 * was.
 *
 * A child that is forked while its parent has a connected client or a server gets KV_ERR_FORKED from every call, and
 * does not harm its parent, whatever it frees; it may exec. Memory of kv_client_allocate is not mapped in the child.
 * pthread_cancel takes effect only after a call has returned. */
#ifndef VERBENA_KV_H
#define VERBENA_KV_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The archive has these under other names, so that nothing clashes in a static link. */
/** \cond */
#define kv_error_string verbena_kv_error_string
#define kv_error_detail verbena_kv_error_detail
#define kv_client_options_init verbena_kv_client_options_init
#define kv_client_create verbena_kv_client_create
#define kv_client_set_options verbena_kv_client_set_options
#define kv_client_connect verbena_kv_client_connect
#define kv_client_connect_socket verbena_kv_client_connect_socket
#define kv_client_disconnect verbena_kv_client_disconnect
#define kv_client_destroy verbena_kv_client_destroy
#define kv_client_put verbena_kv_client_put
#define kv_client_get verbena_kv_client_get
#define kv_client_get_version verbena_kv_client_get_version
#define kv_client_cas verbena_kv_client_cas
#define kv_client_delete verbena_kv_client_delete
#define kv_client_cell_open verbena_kv_client_cell_open
#define kv_client_cell_fetch_add verbena_kv_client_cell_fetch_add
#define kv_client_cell_compare_swap verbena_kv_client_cell_compare_swap
#define kv_client_cell_read verbena_kv_client_cell_read
#define kv_client_keys verbena_kv_client_keys
#define kv_key_page_next verbena_kv_key_page_next
#define kv_client_flush verbena_kv_client_flush
#define kv_client_put_ttl verbena_kv_client_put_ttl
#define kv_client_get_ttl verbena_kv_client_get_ttl
#define kv_client_allocate verbena_kv_client_allocate
#define kv_client_get_items verbena_kv_client_get_items
#define kv_client_put_items verbena_kv_client_put_items
#define kv_client_put_items_ttl verbena_kv_client_put_items_ttl
#define kv_client_batch_get verbena_kv_client_batch_get
#define kv_client_batch_put verbena_kv_client_batch_put
#define kv_server_options_init verbena_kv_server_options_init
#define kv_server_create verbena_kv_server_create
#define kv_server_start verbena_kv_server_start
#define kv_server_port verbena_kv_server_port
#define kv_server_stop verbena_kv_server_stop
#define kv_server_destroy verbena_kv_server_destroy
#define kv_open verbena_kv_open
#define kv_open_with verbena_kv_open_with
#define kv_set verbena_kv_set
#define kv_get verbena_kv_get
#define kv_release verbena_kv_release
#define kv_close verbena_kv_close
/** \endcond */

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

enum { KV_MAX_KEY_BYTES = 1024, KV_DEFAULT_PORT = 7470 };

/** Return codes of the calls. kv_error_string has cause and fix of each. */
typedef enum kv_error {
  KV_OK = 0, /**< Done. */
  /* Nothing is damaged. */
  KV_ERR_AGAIN = -2,     /**< A queue is full: complete something, then try again. */
  KV_ERR_TIMED_OUT = -3, /**< The change may have happened or not. For a large value it ends the connection. */
  /* The call failed; the connection goes on. */
  KV_ERR_NOT_FOUND = -4,        /**< No such key, name or device. */
  KV_ERR_VERSION_MISMATCH = -5, /**< The key has another version than the expected one. */
  KV_ERR_BAD_KEY = -6,          /**< A key is empty, or longer than KV_MAX_KEY_BYTES. */
  KV_ERR_TOO_LONG = -7,         /**< A value is longer than the server's max_value_bytes. */
  KV_ERR_BUFFER_TOO_SMALL = -8, /**< The buffer cannot hold the value; the call sets the length needed. */
  KV_ERR_STORE_FULL = -9,       /**< The store has no free memory for this value; the old value stays readable. */
  KV_ERR_INDEX_FULL = -10,      /**< The index has no place for another key: raise max_items. */
  KV_ERR_WRONG_KIND = -11,      /**< The key has a cell and the call is for values, or the other way round. */
  KV_ERR_BAD_ARGUMENT = -12,    /**< Something that can never work. */
  KV_ERR_OUT_OF_RANGE = -13,    /**< Not inside the window or the memory. */
  KV_ERR_LOCAL_ACCESS = -14,    /**< The local key does not cover the buffer. */
  KV_ERR_UNSUPPORTED = -15,     /**< This device or server does not have it. */
  KV_ERR_BUSY = -16,            /**< In use by another call or thread, or too late. */
  /* The connection is dead, or was not made. */
  KV_ERR_PEER_LOST = -17,          /**< The server's process, host or link is gone. */
  KV_ERR_CONNECTION_REFUSED = -18, /**< Nothing listens there. */
  KV_ERR_REJECTED = -19,           /**< The server refused; the detail has its reason. */
  KV_ERR_PROTOCOL = -20,           /**< The peer broke the protocol, or has another version. */
  KV_ERR_REMOTE_ACCESS = -21,      /**< The peer's NIC refused a key, range or right. */
  KV_ERR_REMOTE_INVALID = -22,     /**< The peer's NIC refused the form of a request. */
  KV_ERR_RETRY_EXCEEDED = -23,     /**< The peer's device never answered: check addresses and firewalls. */
  KV_ERR_RNR_EXCEEDED = -24,       /**< The peer received no messages in time. */
  KV_ERR_FLUSHED = -25,            /**< The connection failed before this was done. */
  KV_ERR_CLOSED = -26,             /**< Closed in an orderly way, by this side or by the other. */
  KV_ERR_NOT_ALLOWED = -27,        /**< The peer runs as another user. */
  KV_ERR_OTHER_NAMESPACE = -28,    /**< Same host, another network or PID namespace. */
  KV_ERR_OTHER_HOST = -29,         /**< The software NIC reaches this host only. */
  /* The device, the process or the machine lacks something. */
  KV_ERR_NO_MEMORY = -30,  /**< There is not enough memory. */
  KV_ERR_LIMIT = -31,      /**< A limit of the options or the system is reached; the detail names it. */
  KV_ERR_PERMISSION = -32, /**< A capability or setting is missing; the detail names it. */
  KV_ERR_DEVICE = -33,     /**< The NIC failed or is gone. */
  KV_ERR_SYSTEM = -34,     /**< A system call failed; the detail has its errno. */
  KV_ERR_FORKED = -35,     /**< This process was forked from one that uses the library. */
  /* The call failed; the connection goes on. These came later, hence their numbers. */
  KV_ERR_DENIED = -36,    /**< The user has no right to do it; kv_error_detail names right, user and prefix. */
  KV_ERR_OVER_QUOTA = -37 /**< The user's quota is used up; kv_error_detail has its numbers. */
} kv_error_t;

/** Cause and fix of a code, in static storage. */
const char* kv_error_string(int code);
/** One sentence about the last call of this header that failed in this thread: it names what the call failed on. ""
 * before any failure. Valid until the next call that fails in this thread. */
const char* kv_error_detail(void);

/** A client, connected or not. */
typedef struct verbena_kv_client kv_client_t;
/** A server, running or not. */
typedef struct verbena_kv_server kv_server_t;

/** How the two ends find each other. Both ends must choose the same. In C++ the enum has a fixed type, so that it can
 * hold any number, which a C program may pass and the library refuses. */
typedef enum
#ifdef __cplusplus
    : unsigned
#endif
{ CONN_MODE_CM,    /**< RDMA CM; over TCP on the software NIC. */
  CONN_MODE_SOCKET /**< A TCP exchange. */
} conn_mode_t;

/** How a client's gets find their values. In C++ it has a fixed type, as above. */
typedef enum
#ifdef __cplusplus
    : unsigned
#endif
{ KV_LOOKUP_AUTO,     /**< By RDMA READs, without the server's CPU, where that is quicker; else by message. */
  KV_LOOKUP_MESSAGE,  /**< Always by message, so that the server sees every get. */
  KV_LOOKUP_ONE_SIDED /**< By READs; by message where READs give no answer, as always for missing keys. */
} kv_lookup_t;

/** The policy of a server that has no memory, or no place for a key. In C++ it has a fixed type, as above. */
typedef enum
#ifdef __cplusplus
    : unsigned
#endif
{ KV_EVICT_NONE, /**< Puts fail with KV_ERR_STORE_FULL or KV_ERR_INDEX_FULL. */
  KV_EVICT_LRU   /**< Removes keys that nobody has got or replaced lately, until the new value fits. */
} kv_evict_t;

/** \name Clients
 * \{ */

/** kv_client_options_init sets the defaults. */
typedef struct kv_client_options {
  const char* device;          /**< Null or "": an RDMA device if one is usable, else the software NIC. "soft": the
                                    software NIC. Else a device, "mlx5_0" or "mlx5_0:2". Copied. */
  int gid_index;               /**< Row of the port's GID table, 0 to 255; -1, the default: the best one. */
  unsigned connect_timeout_ms; /**< Deadline of connecting. At least 1, default 5000. */
  unsigned timeout_ms;         /**< Deadline of each call, for one item or a batch. At least 1, default 5000. */
  unsigned depth;              /**< Operations that a batch has in flight. 1 to 1024, default 32; the server may allow
                                    fewer. */
  size_t buffer_bytes;         /**< Registered memory for kv_client_allocate. 0 to 1 TiB, default 4 MiB. */
  unsigned spin_us;            /**< A blocked call polls this long before it sleeps. Default 200. */
  const uid_t* allowed_uids;   /**< Users besides this process's own, and root, whose servers are trusted. Copied. */
  size_t allowed_uid_count;    /**< Number of allowed_uids. Default 0. */
  const char* key_file;        /**< File of keys, one a line (docs/connections.md), for a server that uses one: client
                                    and server prove to each other that they have the same key. Null or "", the default:
                                    none. Copied. */
  const char* key_name;        /**< Which key of key_file. Null or "", the default: the first. Copied. */
  kv_lookup_t lookup;          /**< Default KV_LOOKUP_AUTO. */
  size_t known_locations; /**< For how many keys the client remembers the value's place, 16 bytes each: those put or got
                               last. 0 (none) or a power of two of 4 to 2^24; default 4096. */
  int read_only;          /**< Default 0. Else the client only reads: the server refuses changes and cells with
                               KV_ERR_DENIED. */
} kv_client_options_t;
/** Sets the defaults. KV_ERR_BAD_ARGUMENT: null. */
int kv_client_options_init(kv_client_options_t* options);

/** Makes a client that is not connected. Null if there is no memory or the mode is bad; kv_error_detail says which. */
kv_client_t* kv_client_create(conn_mode_t mode);
/** Sets the options; call it before connecting. KV_ERR_BUSY while connected. */
int kv_client_set_options(kv_client_t* client, const kv_client_options_t* options);
/** Connects, in the client's mode, within connect_timeout_ms. `ip`: address or name; null or "": this host. After a
 * failure you may call it again. KV_ERR_BUSY (connected, perhaps to a server that is gone: call kv_client_disconnect
 * first), KV_ERR_NOT_FOUND (the name, or no such device), KV_ERR_CONNECTION_REFUSED, KV_ERR_REJECTED (server full, of
 * another version, or on another NIC), KV_ERR_NOT_ALLOWED, KV_ERR_TIMED_OUT, KV_ERR_PROTOCOL, and what the device
 * lacks. */
int kv_client_connect(kv_client_t* client, const char* ip, int port);
/** The same on `device` (null: as in the options), for a client of CONN_MODE_SOCKET; KV_ERR_BAD_ARGUMENT for
 * another. */
int kv_client_connect_socket(kv_client_t* client, const char* ip, int port, const char* device);
/** Disconnects, and tells the server. KV_OK also when it is not connected. */
int kv_client_disconnect(kv_client_t* client);
/** Disconnects and frees the client. No other call of the client may be under way. null is fine. */
void kv_client_destroy(kv_client_t* client);

/** Stores a value. KV_ERR_BAD_KEY, KV_ERR_TOO_LONG, KV_ERR_STORE_FULL (memory), KV_ERR_INDEX_FULL (keys; the old value
 * stays readable with both). */
int kv_client_put(kv_client_t* client, const void* key, size_t klen, const void* value, size_t vlen);
/** Copies the value into `buf`. `*len`: its capacity in, the value's length out. KV_ERR_NOT_FOUND;
 * KV_ERR_BUFFER_TOO_SMALL: `*len` is the length needed, and what `buf` holds is unspecified. Else `*len` stays. */
int kv_client_get(kv_client_t* client, const void* key, size_t klen, void* buf, size_t* len);
/** The same; also sets `*version`, unless null, to the version of the value that it returned, for kv_client_cas; 0 with
 * any other code than KV_OK. */
int kv_client_get_version(kv_client_t* client, const void* key, size_t klen, void* buf, size_t* len, uint64_t* version);
/** Stores the value if the key's version is `expected`; 0 means that there must be no such key. `*version`, unless
 * null: the new version, or with KV_ERR_VERSION_MISMATCH the current one; else 0. Every change gets a
 * new version, also those by kv_client_put, and no version is used twice. */
int kv_client_cas(kv_client_t* client, const void* key, size_t klen, uint64_t expected, const void* value, size_t vlen,
                  uint64_t* version);
/** Removes a key and its value. KV_ERR_NOT_FOUND: there was no such key. */
int kv_client_delete(kv_client_t* client, const void* key, size_t klen);

/** Stores a value that expires: its key is absent for every call once `ttl_ms` have passed since the server stored it,
 * by the server's clock. 1 to 3153600000000 (a hundred years), else KV_ERR_BAD_ARGUMENT. Otherwise as kv_client_put,
 * which takes the time to live away again. */
int kv_client_put_ttl(kv_client_t* client, const void* key, size_t klen, const void* value, size_t vlen,
                      int64_t ttl_ms);
/** Sets `*left_ms` to what is left of the time to live, rounded up; 0: it does not expire, or the call failed. */
int kv_client_get_ttl(kv_client_t* client, const void* key, size_t klen, int64_t* left_ms);

/* Cells: words of 8 bytes under a key, which the NICs change and read without the server's CPU. A cell stays until the
 * server ends. The calls above return KV_ERR_WRONG_KIND for its key. A server has cells if
 * kv_server_options_t::max_cells is not 0. */

/** The place of a cell, for the client that opened it, until it disconnects. Copy it freely; only the library uses its
 * fields. */
typedef struct kv_cell {
  uint64_t address; /**< Address in the server. */
  uint32_t worker;  /**< The server's worker that has it. */
  uint32_t is_new;  /**< 1: the call that filled this in made the cell; else 0. */
} kv_cell_t;
/** Opens the cell under a key; if there is no such key, makes a cell that holds `initial`. KV_ERR_WRONG_KIND: the key
 * has a value; KV_ERR_LIMIT: there are max_cells already; KV_ERR_UNSUPPORTED: the server has no cells;
 * KV_ERR_TIMED_OUT: the cell may have been made, open it again. `*cell` is all 0 with any other code than KV_OK. */
int kv_client_cell_open(kv_client_t* client, const void* key, size_t klen, uint64_t initial, kv_cell_t* cell);
/** Adds `delta`, modulo 2^64. `*old`, unless null: the value before; 0 with any other code than KV_OK. KV_ERR_TIMED_OUT
 * and the codes that end the connection: the addition may have happened or not, and after KV_ERR_TIMED_OUT it may still
 * happen. KV_ERR_UNSUPPORTED: this side's device has no atomics. KV_ERR_BAD_ARGUMENT, KV_ERR_OUT_OF_RANGE: this client
 * did not open `*cell`. */
int kv_client_cell_fetch_add(kv_client_t* client, const kv_cell_t* cell, uint64_t delta, uint64_t* old);
/** Replaces `expected` with `desired`. KV_OK either way: it was swapped if `*old`, the value before, is `expected`.
 * Otherwise as kv_client_cell_fetch_add. */
int kv_client_cell_compare_swap(kv_client_t* client, const kv_cell_t* cell, uint64_t expected, uint64_t desired,
                                uint64_t* old);
/** Reads the cell. Otherwise as kv_client_cell_fetch_add. */
int kv_client_cell_read(kv_client_t* client, const kv_cell_t* cell, uint64_t* value);

/** Where a listing of keys goes on: of one prefix, at one server. Set it to 0 (kv_cursor_t cursor = {0}) to begin; copy
 * it, or keep it for later. */
typedef struct kv_cursor {
  uint64_t place;   /**< The server's. */
  uint64_t moves;   /**< The server's. */
  uint64_t seal;    /**< The server's: it knows its own cursors by it. */
  uint32_t worker;  /**< The worker whose keys come next. */
  uint32_t is_over; /**< 1: all keys have been listed; else 0. */
} kv_cursor_t;
enum { KV_KEY_PAGE_BYTES = 4064 };
/** Some keys; kv_key_page_next goes over them. */
typedef struct kv_key_page {
  uint32_t count;                         /**< How many keys. */
  uint32_t length;                        /**< Bytes in use. */
  unsigned char bytes[KV_KEY_PAGE_BYTES]; /**< The keys, each behind its length in two bytes, the lower first. */
} kv_key_page_t;
/** Lists the keys that begin with a prefix (plen 0: all keys), a page at a time and in no order: each call fills
 * `*page` with some, perhaps none, and moves `*cursor` on, until that is over. Whatever others change meanwhile, each
 * key that is there from the first call to the last is listed at least once; one may be listed twice.
 * KV_ERR_BAD_ARGUMENT: a cursor of another server or prefix, or made up. KV_ERR_DENIED: needs the right to read all
 * keys that begin with the prefix. A failure leaves the cursor as it is, and the page empty. */
int kv_client_keys(kv_client_t* client, const void* prefix, size_t plen, kv_cursor_t* cursor, kv_key_page_t* page);
/** The next key of a page, in the page, and its length; null at the end. `*at` is 0 at first; the call moves it on:
 * for (size_t at = 0; (key = kv_key_page_next(&page, &at, &klen)) != NULL;) */
const void* kv_key_page_next(const kv_key_page_t* page, size_t* at, size_t* klen);
/** Erases the keys that begin with a prefix, with plen 0 all keys, but no cells. All that are there during the call,
 * and that nobody puts meanwhile, are gone when it returns KV_OK. `*erased`, unless null: their number, with a failure
 * too: after KV_ERR_TIMED_OUT the rest is still there. KV_ERR_DENIED: needs the right to write all keys that begin with
 * the prefix. */
int kv_client_flush(kv_client_t* client, const void* prefix, size_t plen, uint64_t* erased);

/** Registered memory of a connected client, 64-byte aligned: values of 4096 bytes and more in it save a copy, and
 * batches pipeline them. Null when buffer_bytes are used up. Freed by kv_client_disconnect. */
void* kv_client_allocate(kv_client_t* client, size_t bytes);

/** One get of a batch. */
typedef struct kv_get_item {
  const void* key;  /**< 1 to KV_MAX_KEY_BYTES bytes. */
  size_t klen;      /**< Length of the key in bytes. */
  void* buf;        /**< Gets the value. */
  size_t len;       /**< As *len of kv_client_get. */
  uint64_t version; /**< Out, with KV_OK; else 0. */
  int code;         /**< Out: as kv_client_get returns. */
} kv_get_item_t;
/** One put of a batch. */
typedef struct kv_put_item {
  const void* key;   /**< 1 to KV_MAX_KEY_BYTES bytes. */
  size_t klen;       /**< Length of the key in bytes. */
  const void* value; /**< Copied, or read in place, until the batch is complete. */
  size_t vlen;       /**< Length of the value in bytes. */
  uint64_t version;  /**< Out, with KV_OK: the new version; else 0. */
  int code;          /**< Out: as kv_client_put returns. */
} kv_put_item_t;
/** Batches: many operations in flight at the same time. Items do not wait for each other, so the order of those of one
 * key is not defined. Puts of 4096 bytes and more go one after the other, unless the values lie in memory of
 * kv_client_allocate. Returns KV_OK if all items have it, else the code of the first one that has not; the others are
 * carried out all the same. Late items have KV_ERR_TIMED_OUT, as single calls have. Where the batch is refused as a
 * whole, as beside another thread's call, each item has its code. */
int kv_client_get_items(kv_client_t* client, kv_get_item_t* items, size_t count);
/** The same for puts. */
int kv_client_put_items(kv_client_t* client, kv_put_item_t* items, size_t count);
/** The same, and the values expire: see kv_client_put_ttl. */
int kv_client_put_items_ttl(kv_client_t* client, kv_put_item_t* items, size_t count, int64_t ttl_ms);

/** Batches with an array for each part. vlens[i]: the capacity in; out the length, the length needed if that is more
 * than the capacity, or SIZE_MAX if the key was not found or the get failed. Set them again for each call: a capacity
 * of SIZE_MAX is KV_ERR_BAD_ARGUMENT. */
int kv_client_batch_get(kv_client_t* client, const char* const* keys, const size_t* klens, void* const* values,
                        size_t* vlens, size_t count);
/** \copydoc kv_client_batch_get */
int kv_client_batch_put(kv_client_t* client, const char* const* keys, const size_t* klens, const void* const* values,
                        const size_t* vlens, size_t count);
/** \} */

/** \name Servers
 * \{ */

/** Rights of a grant: flags. */
enum {
  KV_RIGHT_READ = 1,      /**< get. */
  KV_RIGHT_WRITE = 2,     /**< put, cas, delete; an answer tells whether the key is there, and its version. */
  KV_RIGHT_ADMINISTER = 4 /**< Statistics of the server. */
};
/** Rights of one user, and a quota. The rights of all grants of a user add up. */
typedef struct kv_grant {
  uid_t uid;               /**< The user. */
  unsigned rights;         /**< Sum of KV_RIGHT_*, 0 to 7. 0 needs a quota. */
  const void* prefix;      /**< The rights to read and to write hold for keys that begin with these bytes. Copied. */
  size_t prefix_length;    /**< 0 to KV_MAX_KEY_BYTES. 0: all keys. */
  size_t max_memory_bytes; /**< Quota: memory of the items that the user wrote last. 0: none; else at most the server's
                                memory_bytes. Set it in one grant of a user. */
  size_t max_items;        /**< Quota: keys that the user wrote last. 0: none; else at most the server's max_items. */
} kv_grant_t;

/** kv_server_options_init sets the defaults. */
typedef struct kv_server_options {
  conn_mode_t mode;              /**< Default CONN_MODE_CM. */
  const char* device;            /**< As the client's. */
  int gid_index;                 /**< As the client's. */
  const char* address;           /**< Address or name to listen on; null or "", the default: this host. Copied. */
  int port;                      /**< Default KV_DEFAULT_PORT. 0 takes any free one; kv_server_port returns it. */
  size_t memory_bytes;           /**< Item memory. 1 MiB to 1 TiB, default 1 GiB. */
  int require_hugepages;         /**< Default 0. */
  unsigned workers;              /**< Polling threads, each with its share of keys and memory. 1 to 64, default 1. */
  unsigned max_clients;          /**< 1 to 1024, default 64. */
  unsigned max_clients_per_user; /**< Clients of each of allowed_uids. 1 to max_clients; 0, the default: half of
                                      max_clients. Software NIC only: a device cannot tell users. */
  unsigned depth;                /**< Requests that a client may have in flight at one worker. 1 to 1024, default 32. */
  size_t max_value_bytes;        /**< 1 (with cells 8) to nearly memory_bytes / workers / 2: a value and the one that
                                      replaces it have to fit. 0, the default: that much. */
  size_t lease_bytes;            /**< Window that a client writes large values into. 64 KiB to 1 GiB, default 2 MiB. */
  int trusted_clients;           /**< Removed in 0.1: leave it 0. kv_server_create refuses another value. */
  unsigned client_leases;        /**< Removed in 0.1: leave it at its default, 4; another value is refused. */
  unsigned lease_term_ms;        /**< Removed in 0.1: leave it at its default, 2000; another value is refused. */
  size_t max_items;              /**< 0, the default: one for every 128 bytes of memory_bytes. */
  int checksum_large_values;     /**< Default 0. Every reader of a value of 4096 B and up checks all of it. */
  unsigned grace_ms;             /**< Grace period: the server reuses a freed block only this long afterwards. 1 to
                                      60000, default 500. */
  unsigned spin_us;              /**< A worker without work polls this long before it sleeps. 0 to 1000000, default
                                      50. */
  int pin_workers;               /**< Default 1. */
  const uid_t* allowed_uids;     /**< Users besides the server's own whose processes may connect. Copied. */
  size_t allowed_uid_count;      /**< Number of allowed_uids. Default 0. */
  const char* key_file;          /**< File of keys, one a line (docs/connections.md): only clients that prove one of
                                      them may connect. Read by kv_server_start. Null or "", the default: none, and on a
                                      device anybody who reaches the port may connect. Copied. */
  size_t max_cells;              /**< Words for kv_client_cell_open, 64 bytes each. 0, the default: none; at most
                                      max_items. */
  const kv_grant_t* grants;      /**< Rights and quotas of users; software NIC only. Copied. If no grant has a right,
                                      everybody who may connect may do everything. Else users have only their granted
                                      rights; the server's own user may do everything unless a grant names it. */
  size_t grant_count;            /**< Number of grants. 0 to 256, default 0. */
  kv_evict_t evict;              /**< Default KV_EVICT_NONE. */
} kv_server_options_t;
/** Sets the defaults. KV_ERR_BAD_ARGUMENT: null. */
int kv_server_options_init(kv_server_options_t* options);

/** Makes a server that does not run yet. options null: the defaults. Returns null if there is no memory or an option is
 * bad; kv_error_detail says which. */
kv_server_t* kv_server_create(const kv_server_options_t* options);
/** Starts the server, and returns once clients can connect. KV_ERR_BUSY (it runs), KV_ERR_BAD_ARGUMENT (kv_error_detail
 * names the limit, and the sum that does not fit), KV_ERR_NO_MEMORY, KV_ERR_LIMIT, KV_ERR_SYSTEM (address in use). */
int kv_server_start(kv_server_t* server);
/** The port, or a negative code while it does not run. */
int kv_server_port(const kv_server_t* server);
/** Tells clients, finishes the requests that have arrived, and ends all threads; all items are lost. KV_OK also when it
 * does not run. It can be started again. */
int kv_server_stop(kv_server_t* server);
/** Stops it, and frees it. null is fine. */
void kv_server_destroy(kv_server_t* server);
/** \} */

/** \name C strings
 * \{ */

/** Connects to "host", "host:port", "[address]:port" or, with null, "" or ":port", this host. Sets `*handle` to a
 * connected kv_client_t *, which the functions above take, too. `*handle` is null on failure. */
int kv_open(const char* server, void** handle);
/** The same in another mode, or with other options; options null: the defaults. */
int kv_open_with(const char* server, conn_mode_t mode, const kv_client_options_t* options, void** handle);
/** Stores the characters of `value`, without the terminating zero. */
int kv_set(void* handle, const char* key, const char* value);
/** Sets `*value` to a copy of the value with a zero after it; free it with kv_release. KV_ERR_NOT_FOUND: there is no
 * such key, which differs from an empty value. `*value` is null on failure. */
int kv_get(void* handle, const char* key, char** value);
/** null is fine. */
void kv_release(char* value);
/** Disconnects and frees the handle. null is fine. */
int kv_close(void* handle);
/** \} */

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
