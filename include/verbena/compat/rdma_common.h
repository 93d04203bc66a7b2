/** \file
 * rdma_kv's rdma_common.h: connections of two programs by its names, over verbena/rdma.h. conn_mode_t is
 * verbena/kv.h's.
 *
 * All functions that return int return 0 or a negative code of RdmaError (verbena/rdma.h); rdmaErrorString and
 * rdmaErrorDetail tell more. One thread at a time uses a context. Don't include this header where rdma/rdma_cma.h is
 * used: some names are the same. Differences from rdma_kv: every wait has a deadline; a context has a connection of
 * verbena/rdma.h in place of objects of verbs, so the calls on queue pair states are not there; memory that was not
 * registered is refused; both modes have one set of functions, and those with `socket` take a device. */
#ifndef VERBENA_COMPAT_RDMA_COMMON_H
#define VERBENA_COMPAT_RDMA_COMMON_H

#include <verbena/kv.h>
#include <verbena/rdma.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The archive has these under other names, so that nothing clashes in a static link. */
/** \cond */
#define rdma_init_context verbena_common_init_context
#define rdma_destroy_context verbena_common_destroy_context
#define rdma_connect verbena_common_connect
#define rdma_listen verbena_common_listen
#define rdma_accept verbena_common_accept
#define rdma_disconnect verbena_common_disconnect
#define rdma_socket_connect verbena_common_socket_connect
#define rdma_socket_listen verbena_common_socket_listen
#define rdma_socket_accept verbena_common_accept
#define rdma_socket_disconnect verbena_common_disconnect
#define rdma_listen_port verbena_common_listen_port
#define rdma_register_memory verbena_common_register_memory
#define rdma_deregister_memory verbena_common_deregister_memory
#define rdma_send verbena_common_send
#define rdma_recv verbena_common_recv
#define rdma_read verbena_common_read
#define rdma_write verbena_common_write
#define rdma_cas verbena_common_cas
#define rdma_poll_completion verbena_common_poll_completion
/** \endcond */

/** Values below so many bytes travel inside a message. */
#define RDMA_SMALL_DATA_THRESHOLD 4096
/** Bytes of rdma_kv's memory, by default. */
#define MEMORY_POOL_SIZE (1UL << 30)
/** Bytes of a hugepage. */
#define HUGE_PAGE_SIZE (2UL << 20)
/** Deadline of connecting, accepting and of each call. */
#define RDMA_TIMEOUT_MS 5000
/** Receives that a context may have posted. */
#define RDMA_MAX_WR 256

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/** Kinds of rdma_kv's messages, for programs that use its numbers. */
typedef enum {
  MSG_TYPE_GET_REQUEST,
  MSG_TYPE_GET_RESPONSE,
  MSG_TYPE_PUT_REQUEST,
  MSG_TYPE_PUT_RESPONSE,
  MSG_TYPE_DELETE_REQUEST,
  MSG_TYPE_DELETE_RESPONSE,
  MSG_TYPE_CAS_REQUEST,
  MSG_TYPE_CAS_RESPONSE,
  MSG_TYPE_RDMA_INFO
} rdma_msg_type_t;

/** Memory of the other side, for a program that sends this in a message. */
typedef struct {
  uint64_t addr; /**< First byte. */
  uint32_t rkey; /**< ctx->mr->rkey of the other side. */
  uint32_t size; /**< Bytes. */
} rdma_mem_info_t;

/** A connection or a listener. rdma_init_context fills it in; the program may read all and set remote_mem. */
typedef struct rdma_context {
  RdmaConn* conn;             /**< For calls of verbena/rdma.h; null for a listener. */
  const RdmaMemory* mr;       /**< From rdma_register_memory, once connected: addr, lkey, rkey. */
  void* buf;                  /**< As rdma_register_memory got it. */
  size_t buf_size;            /**< The same. */
  conn_mode_t conn_mode;      /**< As rdma_init_context got it. */
  rdma_mem_info_t remote_mem; /**< The program's own. */
  bool connected;             /**< There is a connection, or a listener. */
  void* state;                /**< The library's own. */
} rdma_context_t;

/** Begins with any memory. RDMA_ERR_BAD_ARGUMENT: null, or no such mode. */
int rdma_init_context(rdma_context_t* ctx, conn_mode_t mode);
/** Disconnects, and frees what the context has; its own memory is the program's. null is fine. */
void rdma_destroy_context(rdma_context_t* ctx);

/** Connects within RDMA_TIMEOUT_MS. Fails as rdmaConnect does; RDMA_ERR_BUSY: the context is in use. */
int rdma_connect(rdma_context_t* ctx, const char* server_ip, int port);
/** Listens. bind_ip null or "": this host; port 0: any free one. */
int rdma_listen(rdma_context_t* ctx, const char* bind_ip, int port);
/** As rdma_connect, on a device: "soft", "mlx5_0"; null or "": an RDMA device if one is usable, else the software NIC.
 */
int rdma_socket_connect(rdma_context_t* ctx, const char* server_ip, int port, const char* ib_dev);
/** As rdma_listen, on a device as in rdma_socket_connect. */
int rdma_socket_listen(rdma_context_t* ctx, const char* bind_ip, int port, const char* ib_dev);
/** The port of a listening context, or a negative code. */
int rdma_listen_port(rdma_context_t* ctx);
/** Waits for the next client, RDMA_TIMEOUT_MS at most (then RDMA_ERR_TIMED_OUT: call again), and sets up client_ctx,
 * which must not be in use. Memory that `ctx` has registered is then client_ctx's, too. */
int rdma_accept(rdma_context_t* ctx, rdma_context_t* client_ctx);
/** Tells the peer, and ends the registration. A listener's clients stay connected. */
void rdma_disconnect(rdma_context_t* ctx);

/** Lets the peer read, write and use atomics in `buf`, until rdma_deregister_memory or rdma_disconnect: at once if
 * there is a connection, else when there is one. One memory for each context: RDMA_ERR_BUSY. */
int rdma_register_memory(rdma_context_t* ctx, void* buf, size_t size);
/** Ends the registration. The peer cannot use the memory afterwards. */
void rdma_deregister_memory(rdma_context_t* ctx);

/** Sends a message of any memory; you may reuse it on return. */
int rdma_send(rdma_context_t* ctx, void* buf, size_t size);
/** Offers any memory for one message, which rdma_poll_completion takes. RDMA_ERR_AGAIN: RDMA_MAX_WR are offered. */
int rdma_recv(rdma_context_t* ctx, void* buf, size_t size);
/** Waits for the message of the first offered memory. 0; RDMA_ERR_TIMED_OUT: call again; RDMA_ERR_BUFFER_TOO_SMALL: the
 * message is longer, offer more and call again; RDMA_ERR_BAD_ARGUMENT: nothing is offered. Reads, writes and sends are
 * complete when they return, and don't count here. */
int rdma_poll_completion(rdma_context_t* ctx, int timeout_ms);

/** Reads the peer's memory, and waits. local_buf must lie in the context's registered memory, else
 * RDMA_ERR_BAD_ARGUMENT. Otherwise as rdmaSyncReadSignaled. */
int rdma_read(rdma_context_t* ctx, void* local_buf, size_t size, uint64_t remote_addr, uint32_t rkey);
/** Writes the peer's memory, and waits. Otherwise as rdma_read. */
int rdma_write(rdma_context_t* ctx, void* local_buf, size_t size, uint64_t remote_addr, uint32_t rkey);
/** Replaces the peer's 8 bytes if they are `expected`. `*result`, unless null: their value before. */
int rdma_cas(rdma_context_t* ctx, uint64_t remote_addr, uint32_t rkey, uint64_t expected, uint64_t desired,
             uint64_t* result);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
