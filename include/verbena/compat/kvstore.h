/* The primitives of the RDMA Key-Value Store, for programs in its style: packets, READs and WRITEs of memory that the
 * other side named in a packet, and fins, each from one call that waits. kv_open, kv_set, kv_get, kv_release and
 * kv_close are in verbena/kv.h, with the store behind them; these do not need it, and the store does not use them.
 *
 * All return 0 or a negative code of RdmaError (those of kv.h are the same numbers); rdmaErrorString and
 * rdmaErrorDetail tell more. One thread at a time uses a context. Differences from the original: any number of clients,
 * on any device or the software NIC; no operation registers memory; every failure is returned; zeros at the end of a
 * packet are not sent, so a packet costs only the bytes that it holds. */
#ifndef VERBENA_COMPAT_KVSTORE_H
#define VERBENA_COMPAT_KVSTORE_H

#include <verbena/kv.h>
#include <verbena/rdma.h>

/* In the archive these are named so that nothing clashes in a static link. */
#define RDMA_connect verbena_RDMA_connect
#define RDMA_connect_with verbena_RDMA_connect_with
#define RDMA_disconnect verbena_RDMA_disconnect
#define RDMA_register verbena_RDMA_register
#define RDMA_deregister verbena_RDMA_deregister
#define send_packet verbena_send_packet
#define receive_packet verbena_receive_packet
#define receive_packet_async verbena_receive_packet_async
#define pp_wait_completions verbena_pp_wait_completions
#define send_RDMA_read verbena_send_RDMA_read
#define send_RDMA_write verbena_send_RDMA_write
#define send_fin verbena_send_fin
#define receive_fin verbena_receive_fin
#define run_server verbena_run_server
#define run_client verbena_run_client

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

enum {
  KVSTORE_PACKET_BYTES = 12288, /* Bytes of a packet: a program's own struct must fit. */
  KVSTORE_BUFFERS = 16,         /* Packets of a context. */
  KVSTORE_PORT = 7471           /* Default port of RDMA_connect. */
};

/* A connection. The program fills buf[currBuffer] and sends it, or has it filled; it may set currBuffer at any time. */
typedef struct verbena_PingpongContext {
  char* buf[KVSTORE_BUFFERS]; /* KVSTORE_PACKET_BYTES each, 64-byte aligned, zeroed at first. */
  int currBuffer;             /* 0 to KVSTORE_BUFFERS - 1. */
  RdmaConn* conn;             /* For calls of verbena/rdma.h. */
} PingpongContext;

/* Connects to "host" or "host:port"; with null, listens on KVSTORE_PORT and waits, for ever if need be, for the next
 * client. As long as one context of a listening call is there, clients that come in between wait their turn. */
int RDMA_connect(const char* servername, PingpongContext** save_ctx);
/* The same on another port, with options: device, bootstrap and deadlines are taken. options null: the defaults. */
int RDMA_connect_with(const char* servername, int port, const RdmaOptions* options, PingpongContext** save_ctx);
/* Tells the peer, and frees the context with all that was registered by it. null is fine. */
int RDMA_disconnect(PingpongContext* ctx);

/* Lets the peer read and write `size` bytes at `addr`, under the key that it is to be told, until RDMA_deregister. */
int RDMA_register(PingpongContext* ctx, void* addr, size_t size, uint32_t* key);
/* RDMA_ERR_BAD_ARGUMENT: nothing is registered that begins at `addr`. */
int RDMA_deregister(PingpongContext* ctx, void* addr);

/* Sends buf[currBuffer]. */
int send_packet(PingpongContext* ctx);
/* Waits for the next packet, for ever if need be, and puts it into buf[currBuffer]. Packets that receive_packet_async
 * has buffers for are received first. RDMA_ERR_PROTOCOL: a fin came instead, and is lost. */
int receive_packet(PingpongContext* ctx);
/* Gives buf[currBuffer] for a packet, and does not wait. RDMA_ERR_AGAIN: KVSTORE_BUFFERS are given. */
int receive_packet_async(PingpongContext* ctx);
/* Waits, for ever if need be, for the packets of the first `iters` of these. RDMA_ERR_BAD_ARGUMENT: so many are not
 * given. */
int pp_wait_completions(PingpongContext* ctx, int iters);

/* Reads `size` bytes of the peer's memory at `remote_addr`; any memory. Fails as rdmaSyncReadSignaled does. */
int send_RDMA_read(PingpongContext* ctx, char* target, unsigned long size, void* remote_addr, uint32_t remote_key);
/* Writes the string `value`, with its terminating zero, to the peer's memory. It is there before any packet or fin that
 * is sent after it. Fails as rdmaSyncWriteSignaled does. */
int send_RDMA_write(PingpongContext* ctx, const char* value, void* remote_addr, uint32_t remote_key);
/* Says that the reads or writes are done. */
int send_fin(PingpongContext* ctx);
/* Waits, for ever if need be, for that. RDMA_ERR_PROTOCOL: a packet came instead, and is lost. */
int receive_fin(PingpongContext* ctx);

/* Runs a key-value store with the default options (see kv.h). Returns once the program has handled a signal in this
 * thread, with 0; or a code of kv_error_t when it could not be started. */
int run_server(void);
/* Connects to such a store and stores, reads and compares values of 1 byte to 16 MiB. 0, or the code of kv_error_t that
 * a call came to; KV_ERR_PROTOCOL for a value that came back as another one. */
int run_client(const char* servername);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
