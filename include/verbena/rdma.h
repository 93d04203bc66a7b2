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
#define rdmaServerRegMem verbena_rdmaServerRegMem
#define rdmaServerRegister verbena_rdmaServerRegister
#define rdmaServerDeregMem verbena_rdmaServerDeregMem
#define rdmaServerPublish verbena_rdmaServerPublish
#define rdmaConn verbena_rdmaConn
#define rdmaConnSetOptions verbena_rdmaConnSetOptions
#define rdmaConnSetRecvCallback verbena_rdmaConnSetRecvCallback
#define rdmaConnSetConnectedCallback verbena_rdmaConnSetConnectedCallback
#define rdmaConnSetDisconnectCallback verbena_rdmaConnSetDisconnectCallback
#define rdmaConnSetWriteCallback verbena_rdmaConnSetWriteCallback
#define rdmaConnSetReadCallback verbena_rdmaConnSetReadCallback
#define rdmaConnOnConnect verbena_rdmaConnOnConnect
#define rdmaConnOnMessage verbena_rdmaConnOnMessage
#define rdmaConnOnDisconnect verbena_rdmaConnOnDisconnect
#define rdmaConnOnWrite verbena_rdmaConnOnWrite
#define rdmaConnOnRead verbena_rdmaConnOnRead
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
#define rdmaConnPeerWindow verbena_rdmaConnPeerWindow
#define rdmaConnWindowMemory verbena_rdmaConnWindowMemory
#define rdmaConnRegMem verbena_rdmaConnRegMem
#define rdmaConnRegister verbena_rdmaConnRegister
#define rdmaConnDeregMem verbena_rdmaConnDeregMem
#define rdmaConnPublish verbena_rdmaConnPublish
#define rdmaConnLookup verbena_rdmaConnLookup
#define rdmaConnImportWindow verbena_rdmaConnImportWindow
#define rdmaConnReleaseWindow verbena_rdmaConnReleaseWindow
#define rdmaSyncWriteSignaled verbena_rdmaSyncWriteSignaled
#define rdmaSyncReadSignaled verbena_rdmaSyncReadSignaled
#define rdmaSyncFetchAdd verbena_rdmaSyncFetchAdd
#define rdmaSyncCompareSwap verbena_rdmaSyncCompareSwap
#define rdmaStartWrite verbena_rdmaStartWrite
#define rdmaStartRead verbena_rdmaStartRead
#define rdmaConnComplete verbena_rdmaConnComplete
#define rdmaPAExport verbena_rdmaPAExport
#define rdmaPAAddress verbena_rdmaPAAddress
#define rdmaPAWriteSignaled verbena_rdmaPAWriteSignaled
#define rdmaPAReadSignaled verbena_rdmaPAReadSignaled
#define rdmaPASyncWriteSignaled verbena_rdmaPASyncWriteSignaled
#define rdmaPASyncReadSignaled verbena_rdmaPASyncReadSignaled
#define rdmaPASyncFetchAdd verbena_rdmaPASyncFetchAdd
#define rdmaPASyncCompareSwap verbena_rdmaPASyncCompareSwap
#define rdmaOptionsInit verbena_rdmaOptionsInit
#define rdmaErrorString verbena_rdmaErrorString
#define rdmaErrorDetail verbena_rdmaErrorDetail

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#ifdef __cplusplus
extern "C" {
#endif

/* What a call came to. rdmaErrorString has cause and fix of each. */
typedef enum RdmaError {
  RDMA_OK = 0,   /* Done. */
  RDMA_ERR = -1, /* Never returned: for programs that have a code of their own. */
  /* Nothing is damaged. */
  RDMA_ERR_AGAIN = -2,     /* A queue is full: complete something, then try again. */
  RDMA_ERR_TIMED_OUT = -3, /* The deadline passed. */
  /* The call failed; the connection goes on. */
  RDMA_ERR_NOT_FOUND = -4,        /* No such name, window or address. */
  RDMA_ERR_TOO_LONG = -7,         /* A message is longer than max_message_bytes. */
  RDMA_ERR_BUFFER_TOO_SMALL = -8, /* The message waits on; its length is told beside this. */
  RDMA_ERR_BAD_ARGUMENT = -12,    /* Something that can never work. */
  RDMA_ERR_OUT_OF_RANGE = -13,    /* Not inside the window or the memory. */
  RDMA_ERR_LOCAL_ACCESS = -14,    /* The local key does not cover the buffer. */
  RDMA_ERR_UNSUPPORTED = -15,     /* This connection or device does not have it. */
  RDMA_ERR_BUSY = -16,            /* In use by another call or thread, or too late. */
  /* The connection is dead, or was not made. */
  RDMA_ERR_PEER_LOST = -17,          /* The peer's process, host or link is gone. */
  RDMA_ERR_CONNECTION_REFUSED = -18, /* Nothing listens there. */
  RDMA_ERR_REJECTED = -19,           /* The server said no; the detail has its reason. */
  RDMA_ERR_PROTOCOL = -20,           /* The peer broke the protocol, or has another version. */
  RDMA_ERR_REMOTE_ACCESS = -21,      /* The peer's NIC refused a key, range or right. */
  RDMA_ERR_REMOTE_INVALID = -22,     /* The peer's NIC refused the form of a request. */
  RDMA_ERR_RETRY_EXCEEDED = -23,     /* The peer's NIC never answered: addresses, firewall. */
  RDMA_ERR_RNR_EXCEEDED = -24,       /* The peer took no messages in time. */
  RDMA_ERR_FLUSHED = -25,            /* The connection failed before this was done. */
  RDMA_ERR_CLOSED = -26,             /* Closed, by this side or by the other. */
  RDMA_ERR_NOT_ALLOWED = -27,        /* The peer runs as another user. */
  RDMA_ERR_OTHER_NAMESPACE = -28,    /* Same host, another network or PID namespace. */
  RDMA_ERR_OTHER_HOST = -29,         /* The software NIC reaches this host only. */
  /* The device, the process or the machine lacks something. */
  RDMA_ERR_NO_MEMORY = -30,  /* Memory could not be had. */
  RDMA_ERR_LIMIT = -31,      /* A limit, of options or system; the detail names it. */
  RDMA_ERR_PERMISSION = -32, /* The detail names the capability or setting. */
  RDMA_ERR_DEVICE = -33,     /* The NIC failed or is gone. */
  RDMA_ERR_SYSTEM = -34      /* A system call failed; the detail has its errno. */
} RdmaError;

/* Cause and fix of a code, in static storage. */
const char* rdmaErrorString(int code);
/* The sentence of the last call that failed in this thread, which names what it failed on; "" before any did. Good
 * until the next call that fails in this thread. */
const char* rdmaErrorDetail(void);

/* A server. Made by rdmaServer, freed by rdmaServerRelease. */
typedef struct verbena_RdmaListener RdmaListener;
/* One end of a connection. Made by rdmaConn, freed by rdmaConnClose; or an accepted one: see rdmaConnKeep. */
typedef struct verbena_RdmaConn RdmaConn;

/* How the two ends find each other. */
typedef enum RdmaBootstrap {
  RDMA_BOOTSTRAP_CM = 0,    /* RDMA CM; over TCP on the software NIC. */
  RDMA_BOOTSTRAP_SOCKET = 1 /* A TCP exchange. */
} RdmaBootstrap;

/* What becomes of messages for which there is no receive callback. */
typedef enum RdmaRecvMode {
  RDMA_RECV_DISCARD = 0, /* Messages are counted and dropped, where there is no callback for them. */
  RDMA_RECV_QUEUE = 1    /* Messages wait for rdmaConnRecv. */
} RdmaRecvMode;

/* Options of a listener and its connections, or of one client connection. rdmaOptionsInit sets the defaults. */
typedef struct RdmaOptions {
  const char* device;          /* Null or "": an RDMA device if one is usable, else the software NIC. "soft": the
                                  software NIC. Else a device, "mlx5_0" or "mlx5_0:2". Copied. */
  RdmaBootstrap bootstrap;     /* Both ends the same. Default RDMA_BOOTSTRAP_CM. */
  unsigned connect_timeout_ms; /* Of rdmaConnect. Default 5000. */
  unsigned timeout_ms;         /* Default deadline of each call. Default 5000. */
  unsigned max_connections;    /* Of a listener. 1 to 1024, default 64. */
  RdmaRecvMode recv_mode;      /* Of a listener's connections. Default RDMA_RECV_DISCARD; a client's always queue. */
  void* window;                /* Memory of the caller's own as default window, for all connections of a listener the
                                  same; window_bytes of it, a multiple of 64; it stays until they are closed. Null, the
                                  default: allocated, one for each connection. */
  size_t window_bytes;      /* Memory of this side that the peer of a connection reads, writes and changes by atomics:
                               its default window. 0: none. At most 64 GiB, default 1 MiB. */
  size_t inbox_bytes;       /* Messages that arrived and were not taken; what is beyond waits at the sender. 64 KiB
                               to 1 GiB, default 1 MiB. */
  size_t max_message_bytes; /* Of a message to a receive callback. Default 64 MiB. A longer one ends the connection
                               with RDMA_ERR_TOO_LONG. rdmaConnRecv takes any. */
} RdmaOptions;
/* Sets all of `options` to the defaults. Call it first: fields may be added. */
void rdmaOptionsInit(RdmaOptions* options);

/* What kind of thing arrived. */
typedef enum RdmaMessageKind {
  RDMA_MESSAGE = 0, /* Sent by rdmaConnSend or rdmaConnSendWithImm. */
  RDMA_WRITTEN = 1  /* The peer wrote into this side's default window by rdmaConnWriteWithImm(At). */
} RdmaMessageKind;
/* What arrived. */
typedef struct RdmaMessage {
  RdmaMessageKind kind; /* Sent, or written. */
  int has_imm;          /* 1 when the sender gave a number with it; else 0. */
  uint32_t imm;         /* That number, or 0. */
  void* data;    /* RDMA_MESSAGE: the bytes, the callback's until it returns; in rdmaConnRecv the caller's buffer.
                    RDMA_WRITTEN: the place in the default window. */
  size_t length; /* Bytes, at `data`. */
} RdmaMessage;

/* Rights to memory: what the peer may do with it. This side may always read and write. */
typedef enum RdmaAccess {
  RDMA_ACCESS_LOCAL = 0,         /* None. */
  RDMA_ACCESS_REMOTE_READ = 1,   /* It may read. */
  RDMA_ACCESS_REMOTE_WRITE = 2,  /* It may write. */
  RDMA_ACCESS_REMOTE_ATOMIC = 4, /* It may use atomics. */
  RDMA_ACCESS_REMOTE_ALL = 7     /* All of these. */
} RdmaAccess;

/* Registered memory of this side. The library's: valid until it is deregistered, or its owner ends. */
typedef struct RdmaMemory {
  void* addr;         /* Of its first byte. */
  size_t length;      /* Bytes. */
  uint32_t lkey;      /* For calls of this side. */
  uint32_t rkey;      /* For calls of the peer. */
  uint32_t access;    /* RdmaAccess */
  uint64_t memory_id; /* The software NIC's. */
} RdmaMemory;

/* Memory of the other side. Plain numbers of the sending process: they may travel in a message. */
typedef struct RdmaWindow {
  uint64_t addr;      /* Of its first byte, in the other process. */
  uint64_t length;    /* Bytes. */
  uint32_t rkey;      /* What calls name it by. */
  uint32_t access;    /* RdmaAccess */
  uint64_t memory_id; /* The software NIC's. */
} RdmaWindow;

/* What was started without waiting. */
typedef enum RdmaOperation { RDMA_WRITE = 0, RDMA_READ = 1 } RdmaOperation;
/* How an operation ended that was started without waiting. */
typedef struct RdmaCompletion {
  uint64_t cookie;         /* As it was started with. */
  RdmaOperation operation; /* Which it was. */
  int code;                /* RDMA_OK, or why not. Its memory is the caller's again. */
} RdmaCompletion;

/* Callbacks, called by the thread that drives the connection (see above). `data`: data_len bytes, the callback's until
 * it returns. */
typedef void (*RdmaAcceptCallbackFunc)(RdmaConn* conn);
typedef void (*RdmaRecvCallbackFunc)(RdmaConn* conn, void* data, size_t data_len);
typedef void (*RdmaConnectedCallbackFunc)(RdmaConn* conn);
typedef void (*RdmaDisconnectCallbackFunc)(RdmaConn* conn);
typedef void (*RdmaWriteCallbackFunc)(RdmaConn* conn);
typedef void (*RdmaReadCallbackFunc)(RdmaConn* conn);
/* The same with a pointer of the user's own, as it was given with the function. */
typedef void (*RdmaConnFunc)(RdmaConn* conn, void* user);
typedef void (*RdmaMessageFunc)(RdmaConn* conn, const RdmaMessage* message, void* user);
typedef void (*RdmaDisconnectFunc)(RdmaConn* conn, int code, void* user); /* `code`: why. */
typedef void (*RdmaCompletionFunc)(RdmaConn* conn, const RdmaCompletion* completion, void* user);

/* --- servers. Any thread, one at a time for one listener. -------------------------------------------------------- */

/* Makes a listener; nothing is opened yet. `ip`: address or name to listen on; null or "": this host. Port 0 takes any
 * free one, which rdmaServerPort tells once started. RDMA_ERR_BAD_ARGUMENT, RDMA_ERR_NO_MEMORY. */
int rdmaServer(RdmaListener** listener, const char* ip, int port);
/* Before start, as the callbacks: RDMA_ERR_BUSY afterwards. */
int rdmaServerSetOptions(RdmaListener* listener, const RdmaOptions* options);
/* Called for each new connection, before anything of it is received: the place to set callbacks on it. */
int rdmaServerSetAcceptCallback(RdmaListener* listener, RdmaAcceptCallbackFunc func);
int rdmaServerOnAccept(RdmaListener* listener, RdmaConnFunc func, void* user);
/* What every new connection starts with. */
int rdmaServerOnMessage(RdmaListener* listener, RdmaMessageFunc func, void* user);
int rdmaServerOnDisconnect(RdmaListener* listener, RdmaDisconnectFunc func, void* user);
/* Returns once clients can connect. Errors: those of the NIC and the address, RDMA_ERR_BUSY (it runs). */
int rdmaServerStart(RdmaListener* listener);
/* The port, or a negative code before start. */
int rdmaServerPort(const RdmaListener* listener);
/* Waits, for ever if need be, until some other thread has stopped the listener. */
int rdmaServerWait(RdmaListener* listener);
/* Ends all connections and the thread; calls under way in other threads return RDMA_ERR_CLOSED. RDMA_OK also when it
 * does not run; RDMA_ERR_BUSY from one of its callbacks. It can be started again. */
int rdmaServerStop(RdmaListener* listener);
/* Stops it, and frees it. null is fine. Not from its callbacks. */
void rdmaServerRelease(RdmaListener* listener);

/* --- connections ------------------------------------------------------------------------------------------------- */

/* A client's connection, not connected. null without memory. */
RdmaConn* rdmaConn(void);
/* Before rdmaConnect: RDMA_ERR_BUSY afterwards. */
int rdmaConnSetOptions(RdmaConn* conn, const RdmaOptions* options);
/* Callbacks: before rdmaConnect, or in an accept callback; RDMA_ERR_BUSY elsewhere. func null takes it away. The two
 * forms of one callback replace each other. With a receive callback nothing is left for rdmaConnRecv. */
int rdmaConnSetRecvCallback(RdmaConn* conn, RdmaRecvCallbackFunc func);
int rdmaConnSetConnectedCallback(RdmaConn* conn, RdmaConnectedCallbackFunc func);
int rdmaConnSetDisconnectCallback(RdmaConn* conn, RdmaDisconnectCallbackFunc func);
/* Called for each write, each read, that was started without waiting (rdmaStart..., rdmaPA...Signaled). */
int rdmaConnSetWriteCallback(RdmaConn* conn, RdmaWriteCallbackFunc func);
int rdmaConnSetReadCallback(RdmaConn* conn, RdmaReadCallbackFunc func);
int rdmaConnOnConnect(RdmaConn* conn, RdmaConnFunc func, void* user);
int rdmaConnOnMessage(RdmaConn* conn, RdmaMessageFunc func, void* user);
int rdmaConnOnDisconnect(RdmaConn* conn, RdmaDisconnectFunc func, void* user);
int rdmaConnOnWrite(RdmaConn* conn, RdmaCompletionFunc func, void* user);
int rdmaConnOnRead(RdmaConn* conn, RdmaCompletionFunc func, void* user);
/* Connects within connect_timeout_ms. Once it has failed it may be tried again; once it has succeeded, not. Errors:
 * RDMA_ERR_NOT_FOUND (the name), RDMA_ERR_CONNECTION_REFUSED, RDMA_ERR_REJECTED and others with the server's text in
 * rdmaErrorDetail, RDMA_ERR_TIMED_OUT (a port that does not answer), RDMA_ERR_BUSY (connected before). */
int rdmaConnect(RdmaConn* conn, const char* ip, int port);
/* An accepted connection is the listener's, and freed when its disconnect callback has returned; use it in callbacks
 * only. After this call, in the accept callback, it is the caller's: valid until rdmaConnClose, whatever happens. */
int rdmaConnKeep(RdmaConn* conn);
/* Tells the peer, ends what is under way, and frees the connection. What was accepted by rdmaConnSend has arrived when
 * the peer answers, for which this waits 200 ms at most. In a callback it returns at once, and the connection goes when
 * the callback has returned. No other call of the connection may be under way or follow. null is fine. */
void rdmaConnClose(RdmaConn* conn);
/* Ends the threads of all client connections of this process, and those connections with RDMA_ERR_CLOSED; their handles
 * are still to be closed. No call of a client's connection may be under way. */
void rdmaRuntimeStop(void);

/* Default deadline of the calls that follow. */
int rdmaConnSetTimeout(RdmaConn* conn, unsigned timeout_ms);
/* Code of the last call on this connection that failed, or why it is dead. */
int rdmaConnError(const RdmaConn* conn);
/* 1 while calls can work, 0 before rdmaConnect and once it is dead. */
int rdmaConnIsConnected(const RdmaConn* conn);
/* Messages that nobody wanted (RDMA_RECV_DISCARD without a callback). */
uint64_t rdmaConnDiscarded(const RdmaConn* conn);

/* --- messages ---------------------------------------------------------------------------------------------------- */

/* Sends a message of 1 byte to any length, in order with all that this connection sends. Any memory; free when it
 * returns. Returns data_len once the NIC has or will get all of it within the peer's room; 0 on failure. Past the
 * deadline the message will not arrive, and the connection goes on. */
size_t rdmaConnSend(RdmaConn* conn, const void* data, size_t data_len);
size_t rdmaConnSendWithImm(RdmaConn* conn, uint32_t imm_data, const void* data, size_t data_len);
/* Takes the next message into `buffer`. `message`, unless null, is filled in. timeout_ms below 0: the connection's
 * default; 0: what is there already. RDMA_ERR_TIMED_OUT (nothing is lost), RDMA_ERR_BUFFER_TOO_SMALL (the message waits
 * on, and message->length tells what it needs), RDMA_ERR_UNSUPPORTED (a receive callback takes the messages, or the
 * listener discards them); once the connection is dead, what arrived before is still returned, then the code. */
int rdmaConnRecv(RdmaConn* conn, void* buffer, size_t buffer_len, RdmaMessage* message, int timeout_ms);

/* --- the peer's default window ----------------------------------------------------------------------------------- */

/* Writes to and reads from the peer's default window, from its start or from `offset`: in place at the peer when this
 * returns, without its CPU. Any memory. Past the deadline the local memory is the caller's again, the connection goes
 * on, and a write may have happened in part. A write is there before anything that is sent after it.
 * RDMA_ERR_OUT_OF_RANGE: not inside the window; nothing was done. */
size_t rdmaConnWrite(RdmaConn* conn, const void* data, size_t data_len);
size_t rdmaConnWriteAt(RdmaConn* conn, size_t offset, const void* data, size_t data_len);
int rdmaConnRead(RdmaConn* conn, void* data_buf, size_t buf_len);
int rdmaConnReadAt(RdmaConn* conn, size_t offset, void* data_buf, size_t buf_len);
/* The peer gets an RDMA_WRITTEN message after the bytes. data_len 0 is only that message. */
int rdmaConnWriteWithImm(RdmaConn* conn, uint32_t imm_data, const void* data, size_t data_len);
int rdmaConnWriteWithImmAt(RdmaConn* conn, uint32_t imm_data, size_t offset, const void* data, size_t data_len);
/* This side's default window and its length; null and 0 when there is none, or before the connection is made. Zeroed
 * at first. The peer may change it at any time. Valid while the connection is. */
void* rdmaConnWindow(RdmaConn* conn, size_t* length);
size_t rdmaConnPeerWindowBytes(const RdmaConn* conn);
/* The peer's default window as a window like others, for rdmaSync... and rdmaStart... RDMA_ERR_NOT_FOUND: it has none.
 */
int rdmaConnPeerWindow(const RdmaConn* conn, RdmaWindow* window);
/* This side's default window as registered memory; null when there is none. Not to be deregistered. */
const RdmaMemory* rdmaConnWindowMemory(RdmaConn* conn);

/* --- registered memory --------------------------------------------------------------------------------------------
 *
 * Memory that the NIC reads and writes itself, without a copy through the library's own. Any thread. What a connection
 * registers is for its peer, and ends with rdmaConnClose; what a listener registers, while it runs, is for all of its
 * connections, and ends with rdmaServerStop. Registering waits for the system and, on a device, pins: not for data
 * paths. These return null on failure, with the code in rdmaConnError and the sentence in rdmaErrorDetail. */

/* Allocates `size` bytes (1 to 2^40), zeroed, and registers them with all rights. On the software NIC this memory, and
 * no other, is accessed by peers directly; all else costs a system call each time. */
const RdmaMemory* rdmaConnRegMem(RdmaConn* conn, size_t size);
const RdmaMemory* rdmaServerRegMem(RdmaListener* listener, size_t size);
/* Registers memory of the caller's own, which stays mapped until it is deregistered. `access`: of RdmaAccess. */
const RdmaMemory* rdmaConnRegister(RdmaConn* conn, void* addr, size_t length, unsigned access);
const RdmaMemory* rdmaServerRegister(RdmaListener* listener, void* addr, size_t length, unsigned access);
/* Takes the registration back, and the names and physical addresses that it has; frees what rdma...RegMem allocated.
 * Nobody reads or writes it afterwards. No call of this side may be using it. RDMA_ERR_TIMED_OUT: a peer sat in it for
 * longer than the default deadline; then allocated memory is not used again. RDMA_ERR_BAD_ARGUMENT: it is not
 * registered there. */
int rdmaConnDeregMem(RdmaConn* conn, const RdmaMemory* memory);
int rdmaServerDeregMem(RdmaListener* listener, const RdmaMemory* memory);

/* Publishes memory registered there under a name of 1 to 64 bytes, which a listener's clients or this connection's peer
 * look up. memory null takes the name back. RDMA_ERR_BUSY: the name is taken. */
int rdmaServerPublish(RdmaListener* listener, const char* name, const RdmaMemory* memory);
int rdmaConnPublish(RdmaConn* conn, const char* name, const RdmaMemory* memory);
/* Finds the window that the peer has published under `name`, and makes it usable; waits until it is published.
 * timeout_ms as in rdmaConnRecv. RDMA_ERR_NOT_FOUND: not by then; RDMA_ERR_TIMED_OUT: the peer did not answer (a client
 * without callbacks answers only during its calls); RDMA_ERR_LIMIT: a connection uses at most 63 windows. */
int rdmaConnLookup(RdmaConn* conn, const char* name, RdmaWindow* window, int timeout_ms);
/* Makes a window usable of which the peer has told in some other way, and takes that back. A key that is used without
 * is asked for, once, at its first use. */
int rdmaConnImportWindow(RdmaConn* conn, const RdmaWindow* window);
int rdmaConnReleaseWindow(RdmaConn* conn, const RdmaWindow* window);

/* --- one-sided access between registered memory -------------------------------------------------------------------
 *
 * `length` bytes, at least 1, between `local_addr`, in memory registered here under `lkey`, and `remote_addr`, in a
 * window of the peer under `rkey`. Refused before anything is done, and the connection goes on: RDMA_ERR_LOCAL_ACCESS
 * (no memory here has this lkey, or it ends before), RDMA_ERR_NOT_FOUND (no window of the peer has this rkey),
 * RDMA_ERR_OUT_OF_RANGE, RDMA_ERR_REMOTE_ACCESS (the window lacks the right: here the connection is not dead),
 * RDMA_ERR_BAD_ARGUMENT.
 *
 * The memory is the caller's own. Past the deadline the call cannot leave it to the NIC: the connection is drained, and
 * dead with RDMA_ERR_TIMED_OUT, before the call returns; that may take one second more. */
int rdmaSyncWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                          uint32_t length);
int rdmaSyncReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                         uint32_t length);
/* Atomics on eight bytes of the peer, aligned to 8 (else RDMA_ERR_BAD_ARGUMENT), which nobody changes but by atomics of
 * NICs. `old`, unless null: what was there. Past the deadline the connection goes on, and the change may have happened.
 * RDMA_ERR_UNSUPPORTED: the device has none. */
int rdmaSyncFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t add, uint64_t* old);
int rdmaSyncCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t expected, uint64_t desired,
                        uint64_t* old);
/* The same transfers without waiting: the memory is the NIC's until the completion with this cookie comes, to the write
 * or the read callback, or to rdmaConnComplete where there is none. They have no deadline; the end of the connection
 * completes them. RDMA_ERR_AGAIN: 64 are under way, or complete and not taken. */
int rdmaStartWrite(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                   uint32_t length, uint64_t cookie);
int rdmaStartRead(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                  uint32_t length, uint64_t cookie);
/* Takes the completion that has been there longest, of the kinds that have no callback. timeout_ms as in rdmaConnRecv.
 * RDMA_ERR_TIMED_OUT: none came; RDMA_ERR_NOT_FOUND: none is under way. The result of the operation is in
 * completion->code. */
int rdmaConnComplete(RdmaConn* conn, RdmaCompletion* completion, int timeout_ms);

/* --- physical addresses -------------------------------------------------------------------------------------------
 *
 * The peer's memory by its physical address: what it exported, never more. Exporting needs CAP_SYS_ADMIN; without it
 * the call is RDMA_ERR_PERMISSION, whose detail names it, and everything else goes on working. Using what a peer
 * exported needs nothing. On the software NIC a physical address is a name that was fixed at export.
 * See docs/physical-addressing.md. */

/* Exports all of `memory`, registered by this connection or its listener, with its rights to this connection's peer, by
 * physical address; `physical`, unless null, becomes that of its first byte. The peer knows of it before any message
 * that is sent after it. RDMA_ERR_LIMIT: 16 in the life of a connection, those of deregistered memory among them. */
int rdmaPAExport(RdmaConn* conn, const RdmaMemory* memory, uint64_t* physical);
/* The physical address of a byte of this process: that under which this connection exported it, or else what the kernel
 * says, with the privilege. conn may be null. RDMA_ERR_NOT_FOUND: nothing is there yet; write to it first. */
int rdmaPAAddress(RdmaConn* conn, const void* local, uint64_t* physical);
/* As rdmaSync..., with the same errors. RDMA_ERR_OUT_OF_RANGE: the peer did not export all of it. What crosses from one
 * run of memory into the next is several operations, and may have happened in part when it fails. */
int rdmaPASyncWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);
int rdmaPASyncReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);
int rdmaPASyncFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint64_t add, uint64_t* old);
int rdmaPASyncCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint64_t expected, uint64_t desired, uint64_t* old);
/* As rdmaStart...; the cookie is local_addr. */
int rdmaPAWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);
int rdmaPAReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(readability-identifier-naming) */
#endif
