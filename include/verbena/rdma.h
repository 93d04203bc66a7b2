/* The blocking C API: a server and its clients, messages of any length, and access to the peer's memory.
 *
 * Functions that return int return 0 (RDMA_OK) or a negative code of RdmaError; those that return size_t return the
 * bytes accepted, or 0 when nothing was, with the code in rdmaConnError. Every call that waits has a deadline: the
 * connection's timeout (RdmaOptions::timeout_ms), unless the call takes its own. Nothing here ends the process, prints,
 * or has options that are global.
 *
 * Who drives a connection:
 *  - A listener has one thread of its own, pinned to a core that it claims; it drives all of its connections and calls
 *    their callbacks. Other threads may call any function of an accepted connection, also at the same time: it has the
 *    call done by that thread, and waits.
 *  - A client's connection for which a callback was set before rdmaConnect has such a thread too.
 *  - Any other client's connection is driven by the thread that calls, with no thread in between: a second thread that
 *    calls meanwhile gets RDMA_ERR_BUSY. What the peer sends waits, and the peer with it, until the next call.
 *
 * A callback may call every function of this header but rdmaServerStop, rdmaServerWait and rdmaServerRelease of its own
 * listener and rdmaRuntimeStop, and may wait in it; the other connections of its thread have their messages received
 * and their calls done meanwhile, but no callbacks.
 *
 * After fork the child must not use what the parent made. */
#ifndef VERBENA_RDMA_H
#define VERBENA_RDMA_H

#include <stddef.h>
#include <stdint.h>

/* In the archive these are named so that nothing clashes in a static link. */
#define rdmaServer verbena_rdmaServer
#define rdmaServerSetOptions verbena_rdmaServerSetOptions
#define rdmaServerSetAcceptCallback verbena_rdmaServerSetAcceptCallback
#define rdmaServerOnAccept verbena_rdmaServerOnAccept
#define rdmaServerOnMessage verbena_rdmaServerOnMessage
#define rdmaServerOnDisconnect verbena_rdmaServerOnDisconnect
#define rdmaServerStart verbena_rdmaServerStart
#define rdmaServerPort verbena_rdmaServerPort
#define rdmaServerWait verbena_rdmaServerWait
#define rdmaServerStop verbena_rdmaServerStop
#define rdmaServerRelease verbena_rdmaServerRelease
#define rdmaConn verbena_rdmaConn
#define rdmaConnSetOptions verbena_rdmaConnSetOptions
#define rdmaConnSetRecvCallback verbena_rdmaConnSetRecvCallback
#define rdmaConnSetConnectedCallback verbena_rdmaConnSetConnectedCallback
#define rdmaConnSetDisconnectCallback verbena_rdmaConnSetDisconnectCallback
#define rdmaConnOnConnect verbena_rdmaConnOnConnect
#define rdmaConnOnMessage verbena_rdmaConnOnMessage
#define rdmaConnOnDisconnect verbena_rdmaConnOnDisconnect
#define rdmaConnect verbena_rdmaConnect
#define rdmaConnKeep verbena_rdmaConnKeep
#define rdmaConnClose verbena_rdmaConnClose
#define rdmaRuntimeStop verbena_rdmaRuntimeStop
#define rdmaConnSetTimeout verbena_rdmaConnSetTimeout
#define rdmaConnError verbena_rdmaConnError
#define rdmaConnIsConnected verbena_rdmaConnIsConnected
#define rdmaConnDiscarded verbena_rdmaConnDiscarded
#define rdmaConnSend verbena_rdmaConnSend
#define rdmaConnSendWithImm verbena_rdmaConnSendWithImm
#define rdmaConnRecv verbena_rdmaConnRecv
#define rdmaConnWrite verbena_rdmaConnWrite
#define rdmaConnWriteAt verbena_rdmaConnWriteAt
#define rdmaConnWriteWithImm verbena_rdmaConnWriteWithImm
#define rdmaConnWriteWithImmAt verbena_rdmaConnWriteWithImmAt
#define rdmaConnRead verbena_rdmaConnRead
#define rdmaConnReadAt verbena_rdmaConnReadAt
#define rdmaConnWindow verbena_rdmaConnWindow
#define rdmaConnPeerWindowBytes verbena_rdmaConnPeerWindowBytes
#define rdmaOptionsInit verbena_rdmaOptionsInit
#define rdmaErrorString verbena_rdmaErrorString
#define rdmaErrorDetail verbena_rdmaErrorDetail

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#ifdef __cplusplus
extern "C" {
#endif

/* What a call came to. rdmaErrorString has cause and fix of each. */
typedef enum RdmaError {
  RDMA_OK = 0,
  RDMA_ERR = -1, /* Never returned: for programs that have a code of their own. */
  /* Nothing is damaged. */
  RDMA_ERR_AGAIN = -2,
  RDMA_ERR_TIMED_OUT = -3,
  /* The call failed; the connection goes on. */
  RDMA_ERR_NOT_FOUND = -4,
  RDMA_ERR_TOO_LONG = -7,
  RDMA_ERR_BUFFER_TOO_SMALL = -8,
  RDMA_ERR_BAD_ARGUMENT = -10,
  RDMA_ERR_OUT_OF_RANGE = -11,
  RDMA_ERR_LOCAL_ACCESS = -12,
  RDMA_ERR_UNSUPPORTED = -13,
  RDMA_ERR_BUSY = -14,
  /* The connection is dead, or was not made. */
  RDMA_ERR_PEER_LOST = -15,
  RDMA_ERR_CONNECTION_REFUSED = -16,
  RDMA_ERR_REJECTED = -17,
  RDMA_ERR_PROTOCOL = -18,
  RDMA_ERR_REMOTE_ACCESS = -19,
  RDMA_ERR_REMOTE_INVALID = -20,
  RDMA_ERR_RETRY_EXCEEDED = -21,
  RDMA_ERR_RNR_EXCEEDED = -22,
  RDMA_ERR_FLUSHED = -23,
  RDMA_ERR_CLOSED = -24,
  RDMA_ERR_NOT_ALLOWED = -25,
  RDMA_ERR_OTHER_NAMESPACE = -26,
  RDMA_ERR_OTHER_HOST = -27,
  /* The device, the process or the machine lacks something. */
  RDMA_ERR_NO_MEMORY = -28,
  RDMA_ERR_LIMIT = -29,
  RDMA_ERR_PERMISSION = -30,
  RDMA_ERR_DEVICE = -31,
  RDMA_ERR_SYSTEM = -32
} RdmaError;

/* Cause and fix of a code, in static storage. */
const char *rdmaErrorString(int code);
/* The sentence of the last call that failed in this thread, which names what it failed on; "" before any did. Good
 * until the next call that fails in this thread. */
const char *rdmaErrorDetail(void);

typedef struct verbena_RdmaListener RdmaListener;
typedef struct verbena_RdmaConn RdmaConn;

typedef enum RdmaBootstrap {
  RDMA_BOOTSTRAP_CM = 0,    /* RDMA CM; over TCP on the software NIC. */
  RDMA_BOOTSTRAP_SOCKET = 1 /* A TCP exchange. */
} RdmaBootstrap;

typedef enum RdmaRecvMode {
  RDMA_RECV_DISCARD = 0, /* Messages are counted and dropped, where there is no callback for them. */
  RDMA_RECV_QUEUE = 1    /* Messages wait for rdmaConnRecv. */
} RdmaRecvMode;

/* Options of a listener and its connections, or of one client connection. rdmaOptionsInit sets the defaults. */
typedef struct RdmaOptions {
  const char *device;          /* Null or "": an RDMA device if one is usable, else the software NIC. "soft": the
                                  software NIC. Else a device, "mlx5_0" or "mlx5_0:2". Copied. */
  RdmaBootstrap bootstrap;     /* Both ends the same. Default RDMA_BOOTSTRAP_CM. */
  unsigned connect_timeout_ms; /* Of rdmaConnect. Default 5000. */
  unsigned timeout_ms;         /* Default deadline of each call. Default 5000. */
  unsigned max_connections;    /* Of a listener. 1 to 1024, default 64. */
  RdmaRecvMode recv_mode;      /* Of a listener's connections. Default RDMA_RECV_DISCARD; a client's always queue. */
  size_t window_bytes;         /* Memory of this side that the peer of a connection reads and writes, its default
                                  window, one for each connection. 0: none. At most 1 GiB, default 1 MiB. */
  size_t inbox_bytes;          /* Messages that arrived and were not taken; what is beyond waits at the sender. 64 KiB
                                  to 1 GiB, default 1 MiB. */
  size_t max_message_bytes;    /* Of a message to a receive callback. Default 64 MiB. A longer one ends the connection
                                  with RDMA_ERR_TOO_LONG. rdmaConnRecv takes any. */
} RdmaOptions;
void rdmaOptionsInit(RdmaOptions *options);

/* What arrived. */
typedef enum RdmaMessageKind {
  RDMA_MESSAGE = 0, /* Sent by rdmaConnSend or rdmaConnSendWithImm. */
  RDMA_WRITTEN = 1  /* The peer wrote into this side's default window by rdmaConnWriteWithImm(At). */
} RdmaMessageKind;
typedef struct RdmaMessage {
  RdmaMessageKind kind;
  int has_imm;
  uint32_t imm;
  void *data;    /* RDMA_MESSAGE: the bytes, the callback's until it returns; in rdmaConnRecv the caller's buffer.
                    RDMA_WRITTEN: the place in the default window. */
  size_t length; /* Bytes, at `data`. */
} RdmaMessage;

typedef void (*RdmaAcceptCallbackFunc)(RdmaConn *conn);
typedef void (*RdmaRecvCallbackFunc)(RdmaConn *conn, void *data, size_t data_len);
typedef void (*RdmaConnectedCallbackFunc)(RdmaConn *conn);
typedef void (*RdmaDisconnectCallbackFunc)(RdmaConn *conn);
/* The same with a pointer of the user's own, as it was given with the function. */
typedef void (*RdmaConnFunc)(RdmaConn *conn, void *user);
typedef void (*RdmaMessageFunc)(RdmaConn *conn, const RdmaMessage *message, void *user);
typedef void (*RdmaDisconnectFunc)(RdmaConn *conn, int code, void *user); /* `code`: why. */

/* --- servers. Any thread, one at a time for one listener. -------------------------------------------------------- */

/* Makes a listener; nothing is opened yet. `ip`: address or name to listen on; null or "": this host. Port 0 takes any
 * free one, which rdmaServerPort tells once started. RDMA_ERR_BAD_ARGUMENT, RDMA_ERR_NO_MEMORY. */
int rdmaServer(RdmaListener **listener, const char *ip, int port);
/* Before start, as the callbacks: RDMA_ERR_BUSY afterwards. */
int rdmaServerSetOptions(RdmaListener *listener, const RdmaOptions *options);
/* Called for each new connection, before anything of it is received: the place to set callbacks on it. */
int rdmaServerSetAcceptCallback(RdmaListener *listener, RdmaAcceptCallbackFunc func);
int rdmaServerOnAccept(RdmaListener *listener, RdmaConnFunc func, void *user);
/* What every new connection starts with. */
int rdmaServerOnMessage(RdmaListener *listener, RdmaMessageFunc func, void *user);
int rdmaServerOnDisconnect(RdmaListener *listener, RdmaDisconnectFunc func, void *user);
/* Returns once clients can connect. Errors: those of the NIC and the address, RDMA_ERR_BUSY (it runs). */
int rdmaServerStart(RdmaListener *listener);
/* The port, or a negative code before start. */
int rdmaServerPort(const RdmaListener *listener);
/* Waits, for ever if need be, until some other thread has stopped the listener. */
int rdmaServerWait(RdmaListener *listener);
/* Ends all connections and the thread; calls under way in other threads return RDMA_ERR_CLOSED. RDMA_OK also when it
 * does not run; RDMA_ERR_BUSY from one of its callbacks. It can be started again. */
int rdmaServerStop(RdmaListener *listener);
/* Stops it, and frees it. null is fine. Not from its callbacks. */
void rdmaServerRelease(RdmaListener *listener);

/* --- connections ------------------------------------------------------------------------------------------------- */

/* A client's connection, not connected. null without memory. */
RdmaConn *rdmaConn(void);
/* Before rdmaConnect: RDMA_ERR_BUSY afterwards. */
int rdmaConnSetOptions(RdmaConn *conn, const RdmaOptions *options);
/* Callbacks: before rdmaConnect, or in an accept callback; RDMA_ERR_BUSY elsewhere. func null takes it away. The two
 * forms of one callback replace each other. With a receive callback nothing is left for rdmaConnRecv. */
int rdmaConnSetRecvCallback(RdmaConn *conn, RdmaRecvCallbackFunc func);
int rdmaConnSetConnectedCallback(RdmaConn *conn, RdmaConnectedCallbackFunc func);
int rdmaConnSetDisconnectCallback(RdmaConn *conn, RdmaDisconnectCallbackFunc func);
int rdmaConnOnConnect(RdmaConn *conn, RdmaConnFunc func, void *user);
int rdmaConnOnMessage(RdmaConn *conn, RdmaMessageFunc func, void *user);
int rdmaConnOnDisconnect(RdmaConn *conn, RdmaDisconnectFunc func, void *user);
/* Connects within connect_timeout_ms. Once it has failed it may be tried again; once it has succeeded, not. Errors:
 * RDMA_ERR_NOT_FOUND (the name), RDMA_ERR_CONNECTION_REFUSED, RDMA_ERR_REJECTED and others with the server's text in
 * rdmaErrorDetail, RDMA_ERR_TIMED_OUT (a port that does not answer), RDMA_ERR_BUSY (connected before). */
int rdmaConnect(RdmaConn *conn, const char *ip, int port);
/* An accepted connection is the listener's, and freed when its disconnect callback has returned; use it in callbacks
 * only. After this call, in the accept callback, it is the caller's: valid until rdmaConnClose, whatever happens. */
int rdmaConnKeep(RdmaConn *conn);
/* Tells the peer, ends what is under way, and frees the connection. What was accepted by rdmaConnSend has arrived when
 * the peer answers, for which this waits 200 ms at most. In a callback it returns at once, and the connection goes when
 * the callback has returned. No other call of the connection may be under way or follow. null is fine. */
void rdmaConnClose(RdmaConn *conn);
/* Ends the threads of all client connections of this process, and those connections with RDMA_ERR_CLOSED; their handles
 * are still to be closed. No call of a client's connection may be under way. */
void rdmaRuntimeStop(void);

/* Default deadline of the calls that follow. */
int rdmaConnSetTimeout(RdmaConn *conn, unsigned timeout_ms);
/* Code of the last call on this connection that failed, or why it is dead. */
int rdmaConnError(const RdmaConn *conn);
/* 1 or 0. */
int rdmaConnIsConnected(const RdmaConn *conn);
/* Messages that nobody wanted (RDMA_RECV_DISCARD without a callback). */
uint64_t rdmaConnDiscarded(const RdmaConn *conn);

/* --- messages ---------------------------------------------------------------------------------------------------- */

/* Sends a message of 1 byte to any length, in order with all that this connection sends. Any memory; free when it
 * returns. Returns data_len once the NIC has or will get all of it within the peer's room; 0 on failure. Past the
 * deadline the message will not arrive, and the connection goes on. */
size_t rdmaConnSend(RdmaConn *conn, const void *data, size_t data_len);
size_t rdmaConnSendWithImm(RdmaConn *conn, uint32_t imm_data, const void *data, size_t data_len);
/* Takes the next message into `buffer`. `message`, unless null, is filled in. timeout_ms below 0: the connection's
 * default; 0: what is there already. RDMA_ERR_TIMED_OUT (nothing is lost), RDMA_ERR_BUFFER_TOO_SMALL (the message waits
 * on, and message->length tells what it needs), RDMA_ERR_UNSUPPORTED (a receive callback takes the messages, or the
 * listener discards them); once the connection is dead, what arrived before is still returned, then the code. */
int rdmaConnRecv(RdmaConn *conn, void *buffer, size_t buffer_len, RdmaMessage *message, int timeout_ms);

/* --- the peer's default window ----------------------------------------------------------------------------------- */

/* Writes to and reads from the peer's default window, from its start or from `offset`: in place at the peer when this
 * returns, without its CPU. Any memory. Past the deadline the local memory is the caller's again, the connection goes
 * on, and a write may have happened in part. A write is there before anything that is sent after it.
 * RDMA_ERR_OUT_OF_RANGE: not inside the window; nothing was done. */
size_t rdmaConnWrite(RdmaConn *conn, const void *data, size_t data_len);
size_t rdmaConnWriteAt(RdmaConn *conn, size_t offset, const void *data, size_t data_len);
int rdmaConnRead(RdmaConn *conn, void *data_buf, size_t buf_len);
int rdmaConnReadAt(RdmaConn *conn, size_t offset, void *data_buf, size_t buf_len);
/* The peer gets an RDMA_WRITTEN message after the bytes. data_len 0 is only that message. */
int rdmaConnWriteWithImm(RdmaConn *conn, uint32_t imm_data, const void *data, size_t data_len);
int rdmaConnWriteWithImmAt(RdmaConn *conn, uint32_t imm_data, size_t offset, const void *data, size_t data_len);
/* This side's default window and its length; null and 0 when there is none, or before the connection is made. Zeroed
 * at first. The peer may change it at any time. Valid while the connection is. */
void *rdmaConnWindow(RdmaConn *conn, size_t *length);
size_t rdmaConnPeerWindowBytes(const RdmaConn *conn);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(readability-identifier-naming) */
#endif
