/** \file
 * The primitives of the RDMA Key-Value Store, for programs in its style: packets, fins, and READs and WRITEs of memory
 * that the other side named in a packet. One blocking call does each. kv_open, kv_set, kv_get, kv_release and kv_close
 * are in verbena/kv.h, with the store behind them; the calls here work without a store.
 *
 * All return 0 or a negative code of RdmaError (those of kv.h are the same numbers); rdmaErrorString and
 * rdmaErrorDetail tell more. One thread at a time uses a context. Differences from the original: any number of clients,
 * on any device or the software NIC; no operation registers memory; every failure is returned; a packet is sent without
 * the zeros at its end, so it costs only the bytes that it holds. */
#ifndef VERBENA_COMPAT_KVSTORE_H
#define VERBENA_COMPAT_KVSTORE_H

#include <verbena/kv.h>
#include <verbena/rdma.h>

/* The archive has these under other names, so that nothing clashes in a static link. */
/** \cond */
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
#define run_server_with verbena_run_server_with
#define run_client verbena_run_client
/** \endcond */

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

enum {
  KVSTORE_PACKET_BYTES = 12288, /**< Bytes of a packet: a program's own struct must fit. */
  KVSTORE_BUFFERS = 16,         /**< Packets of a context. */
  KVSTORE_PORT = 7471           /**< Default port of RDMA_connect. */
};

/** A connection. The program fills buf[currBuffer] and sends it, or receives into it; it may set currBuffer at any
 * time. */
typedef struct verbena_PingpongContext {
  char* buf[KVSTORE_BUFFERS]; /**< KVSTORE_PACKET_BYTES each, 64-byte aligned, zeroed at first. */
  int currBuffer;             /**< 0 to KVSTORE_BUFFERS - 1. */
  RdmaConn* conn;             /**< For calls of verbena/rdma.h. */
} PingpongContext;

/** Connects to "host" or "host:port"; with null, listens on KVSTORE_PORT and waits, for ever if need be, for the next
 * client. While a context of a listening call exists, other clients wait until the next call. */
int RDMA_connect(const char* servername, PingpongContext** save_ctx);
/** The same on another port, with options; it uses device, bootstrap and deadlines. options null: the defaults. */
int RDMA_connect_with(const char* servername, int port, const RdmaOptions* options, PingpongContext** save_ctx);
/** Tells the peer, and frees the context and all its registrations. null is fine. */
int RDMA_disconnect(PingpongContext* ctx);

/** Lets the peer read and write `size` bytes at `addr` until RDMA_deregister. Send `*key` to the peer: it needs the
 * key. */
int RDMA_register(PingpongContext* ctx, void* addr, size_t size, uint32_t* key);
/** Ends the registration that begins at `addr`. RDMA_ERR_BAD_ARGUMENT: there is none. */
int RDMA_deregister(PingpongContext* ctx, void* addr);

/** Sends buf[currBuffer]. */
int send_packet(PingpongContext* ctx);
/** Waits for the next packet, for ever if need be, and puts it into buf[currBuffer]. Buffers of receive_packet_async
 * get their packets first. RDMA_ERR_PROTOCOL: a fin came instead, and is lost. */
int receive_packet(PingpongContext* ctx);
/** Offers buf[currBuffer] for a packet, without waiting. RDMA_ERR_AGAIN: KVSTORE_BUFFERS buffers are offered
 * already. */
int receive_packet_async(PingpongContext* ctx);
/** Waits, for ever if need be, for the packets of the first `iters` offered buffers. RDMA_ERR_BAD_ARGUMENT: fewer are
 * offered. */
int pp_wait_completions(PingpongContext* ctx, int iters);

/** Reads `size` bytes of the peer's memory at `remote_addr` into `target`, which may be any memory. Fails as
 * rdmaSyncReadSignaled does. */
int send_RDMA_read(PingpongContext* ctx, char* target, unsigned long size, void* remote_addr, uint32_t remote_key);
/** Writes the string `value`, with its terminating zero, to the peer's memory. It arrives before any packet or fin that
 * you send after it. Fails as rdmaSyncWriteSignaled does. */
int send_RDMA_write(PingpongContext* ctx, const char* value, void* remote_addr, uint32_t remote_key);
/** Tells the peer that the reads or writes are done. */
int send_fin(PingpongContext* ctx);
/** Waits, for ever if need be, for the peer's fin. RDMA_ERR_PROTOCOL: a packet came instead, and is lost. */
int receive_fin(PingpongContext* ctx);

/** Runs a key-value store with the default options (see kv.h). Returns 0 once the program has handled a signal in this
 * thread, or a code of kv_error_t if the store cannot start. */
int run_server(void);
/** The same on another port, or with other sizes. options null: the defaults. */
int run_server_with(const kv_server_options_t* options);
/** Connects to such a store, stores, reads and compares values of 1 byte to 16 MiB for some seconds, and prints a table
 * of the throughput on stdout. Returns 0, or the code of kv_error_t of the call that failed; KV_ERR_PROTOCOL if a get
 * returned a wrong value. */
int run_client(const char* servername);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
