/** \file
 * The blocking C API: a server and its clients, messages of any length, and access to the peer's memory.
 *
 * Functions that return int return 0 (RDMA_OK) or a negative code of RdmaError; those that return size_t return the
 * bytes accepted, or 0 when nothing was, with the code in rdmaConnError. Every call that waits has a deadline: the
 * connection's timeout (RdmaOptions::timeout_ms), unless the call takes its own. There are no global options. No call
 * prints or ends the process, unless the library finds its own state broken.
 *
 * Threads that drive a connection:
 *  - A listener has one thread of its own, pinned to a core that it claims; that thread drives all of its connections
 *    and calls their callbacks. Other threads may call any function of an accepted connection, also at the same time:
 *    the call hands the work to that thread, and waits.
 *  - Client connections for which a callback was set before rdmaConnect share such a thread. With a node
 *    (RdmaOptions::node) its threads drive them, and listeners' connections, in turn.
 *  - The calling thread itself drives any other client's connection: a second thread that calls meanwhile gets
 *    RDMA_ERR_BUSY. Messages of the peer, and the peer that sends them, wait until the next call.
 *
 * A callback may call every function of this header, and wait in it, except rdmaServerStop, rdmaServerWait and
 * rdmaServerRelease of its own listener and rdmaRuntimeStop. Whatever it waits for in this library, the other
 * connections of its thread receive messages and carry out calls meanwhile; their callbacks come when it has returned.
 *
 * A child that is forked while its parent has a connection, listener or node gets RDMA_ERR_FORKED from every call, and
 * does not harm its parent, whatever it frees; it may exec. Registered memory of the library is not mapped in the
 * child. pthread_cancel takes effect only after a call has returned. */
#ifndef VERBENA_RDMA_H
#define VERBENA_RDMA_H

#include <stddef.h>
#include <stdint.h>

/* The archive has these under other names, so that nothing clashes in a static link. */
/** \cond */
#define rdmaServer verbena_rdmaServer
#define rdmaServerSetOptions verbena_rdmaServerSetOptions
#define rdmaServerSetAcceptCallback verbena_rdmaServerSetAcceptCallback
#define rdmaServerOnAccept verbena_rdmaServerOnAccept
#define rdmaServerOnMessage verbena_rdmaServerOnMessage
#define rdmaServerOnDisconnect verbena_rdmaServerOnDisconnect
#define rdmaServerStart verbena_rdmaServerStart
#define rdmaServerPort verbena_rdmaServerPort
#define rdmaServerAddress verbena_rdmaServerAddress
#define rdmaServerWindow verbena_rdmaServerWindow
#define rdmaServerWait verbena_rdmaServerWait
#define rdmaServerStop verbena_rdmaServerStop
#define rdmaServerRelease verbena_rdmaServerRelease
#define rdmaServerRegMem verbena_rdmaServerRegMem
#define rdmaServerRegister verbena_rdmaServerRegister
#define rdmaServerDeregMem verbena_rdmaServerDeregMem
#define rdmaServerPublish verbena_rdmaServerPublish
#define rdmaServerPublishPart verbena_rdmaServerPublishPart
#define rdmaNode verbena_rdmaNode
#define rdmaNodeOptionsInit verbena_rdmaNodeOptionsInit
#define rdmaNodeRelease verbena_rdmaNodeRelease
#define rdmaNodeRegMem verbena_rdmaNodeRegMem
#define rdmaNodeRegister verbena_rdmaNodeRegister
#define rdmaNodeDeregMem verbena_rdmaNodeDeregMem
#define rdmaNodePublish verbena_rdmaNodePublish
#define rdmaNodePublishPart verbena_rdmaNodePublishPart
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
#define rdmaConnPublishPart verbena_rdmaConnPublishPart
#define rdmaConnLookup verbena_rdmaConnLookup
#define rdmaConnImportWindow verbena_rdmaConnImportWindow
#define rdmaConnReleaseWindow verbena_rdmaConnReleaseWindow
#define rdmaSyncWriteSignaled verbena_rdmaSyncWriteSignaled
#define rdmaSyncReadSignaled verbena_rdmaSyncReadSignaled
#define rdmaSyncFetchAdd verbena_rdmaSyncFetchAdd
#define rdmaSyncCompareSwap verbena_rdmaSyncCompareSwap
#define rdmaStartWrite verbena_rdmaStartWrite
#define rdmaStartRead verbena_rdmaStartRead
#define rdmaStartFetchAdd verbena_rdmaStartFetchAdd
#define rdmaStartCompareSwap verbena_rdmaStartCompareSwap
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
/** \endcond */

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/** Return codes of the calls. rdmaErrorString has cause and fix of each. */
typedef enum RdmaError {
  RDMA_OK = 0,   /**< Done. */
  RDMA_ERR = -1, /**< Never returned: for programs that have a code of their own. */
  /* Nothing is damaged. */
  RDMA_ERR_AGAIN = -2,     /**< A queue is full: complete something, then try again. */
  RDMA_ERR_TIMED_OUT = -3, /**< The deadline passed. */
  /* The call failed; the connection goes on. */
  RDMA_ERR_NOT_FOUND = -4,        /**< No such name, window or address. */
  RDMA_ERR_TOO_LONG = -7,         /**< A message is longer than max_message_bytes. */
  RDMA_ERR_BUFFER_TOO_SMALL = -8, /**< The message stays queued; the call returns its length. */
  RDMA_ERR_BAD_ARGUMENT = -12,    /**< Something that can never work. */
  RDMA_ERR_OUT_OF_RANGE = -13,    /**< Not inside the window or the memory. */
  RDMA_ERR_LOCAL_ACCESS = -14,    /**< The local key does not cover the buffer. */
  RDMA_ERR_UNSUPPORTED = -15,     /**< This connection or device does not have it. */
  RDMA_ERR_BUSY = -16,            /**< In use by another call or thread, or too late. */
  /* The connection is dead, or was not made. */
  RDMA_ERR_PEER_LOST = -17,          /**< The peer's process, host or link is gone, without a goodbye. */
  RDMA_ERR_CONNECTION_REFUSED = -18, /**< Nothing listens there. */
  RDMA_ERR_REJECTED = -19,           /**< The server refused; the detail has its reason. */
  RDMA_ERR_PROTOCOL = -20,           /**< The peer broke the protocol, or has another version. */
  RDMA_ERR_REMOTE_ACCESS = -21,      /**< The peer's NIC refused a key, range or right. */
  RDMA_ERR_REMOTE_INVALID = -22,     /**< The peer's NIC refused the form of a request. */
  RDMA_ERR_RETRY_EXCEEDED = -23,     /**< The peer's device never answered: check addresses and firewalls. */
  RDMA_ERR_RNR_EXCEEDED = -24,       /**< The peer received no messages in time. */
  RDMA_ERR_FLUSHED = -25,            /**< The connection failed before this was done. */
  RDMA_ERR_CLOSED = -26,             /**< Closed in an orderly way, by this side or by the other. */
  RDMA_ERR_NOT_ALLOWED = -27,        /**< The peer runs as another user. */
  RDMA_ERR_OTHER_NAMESPACE = -28,    /**< Same host, another network or PID namespace. */
  RDMA_ERR_OTHER_HOST = -29,         /**< The software NIC reaches this host only. */
  /* The device, the process or the machine lacks something. */
  RDMA_ERR_NO_MEMORY = -30,  /**< There is not enough memory. */
  RDMA_ERR_LIMIT = -31,      /**< A limit of the options or the system is reached; the detail names it. */
  RDMA_ERR_PERMISSION = -32, /**< A capability or setting is missing; the detail names it. */
  RDMA_ERR_DEVICE = -33,     /**< The NIC failed or is gone. */
  RDMA_ERR_SYSTEM = -34,     /**< A system call failed; the detail has its errno. */
  RDMA_ERR_FORKED = -35      /**< This process was forked from one that uses the library. */
} RdmaError;

/** Cause and fix of a code, in static storage. */
const char* rdmaErrorString(int code);
/** One sentence about the last call that failed in this thread: it names what the call failed on. "" before any
 * failure. Valid until the next call that fails in this thread. */
const char* rdmaErrorDetail(void);

/** A server. rdmaServer makes it, rdmaServerRelease frees it. */
typedef struct verbena_RdmaListener RdmaListener;
/** One end of a connection. rdmaConn makes it, rdmaConnClose frees it. For an accepted one see rdmaConnKeep. */
typedef struct verbena_RdmaConn RdmaConn;
/** A NIC with threads and memory that many connections share. rdmaNode makes it, rdmaNodeRelease frees it. */
typedef struct verbena_RdmaNode RdmaNode;

/** How the two ends find each other. In C++ the enum has a fixed type, so that it can hold any number, which a C
 * program may pass and the library refuses. */
typedef enum RdmaBootstrap
#ifdef __cplusplus
    : unsigned
#endif
{ RDMA_BOOTSTRAP_CM = 0,    /**< RDMA CM; over TCP on the software NIC. */
  RDMA_BOOTSTRAP_SOCKET = 1 /**< A TCP exchange. */
} RdmaBootstrap;

/** How messages without a receive callback are handled. In C++ it has a fixed type, as above. */
typedef enum RdmaRecvMode
#ifdef __cplusplus
    : unsigned
#endif
{ RDMA_RECV_DISCARD = 0, /**< Messages without a callback are counted and dropped. */
  RDMA_RECV_QUEUE = 1    /**< Messages wait for rdmaConnRecv. */
} RdmaRecvMode;

/** Options of a listener and its connections, or of one client connection. rdmaOptionsInit sets the defaults. */
typedef struct RdmaOptions {
  const char* device;          /**< Null or "": an RDMA device if one is usable, else the software NIC. "soft": the
                                    software NIC. Else a device, "mlx5_0" or "mlx5_0:2". Copied. */
  RdmaBootstrap bootstrap;     /**< Both ends must choose the same. Default RDMA_BOOTSTRAP_CM. */
  unsigned connect_timeout_ms; /**< Deadline of rdmaConnect. 1 to 2^30, default 5000. */
  unsigned timeout_ms;         /**< Default deadline of each call. 1 to 2^30, default 5000. */
  unsigned max_connections;    /**< Listeners without a node only. 1 to 65536, default 64. */
  RdmaRecvMode recv_mode;      /**< Listeners only; clients always queue. Default RDMA_RECV_DISCARD. */
  void* window;                /**< Memory of your own as the default window: window_bytes of it, a multiple of 64. All
                                    connections of a listener share it. Keep it until they are closed. It is as fast as
                                    the library's own if rdmaNodeRegMem allocated it. Null, the default: the library
                                    allocates one for each connection. */
  size_t window_bytes;      /**< Length of this side's default window: memory that the peer reads, writes and changes by
                                 atomics. 0: none. At most 64 GiB, default 1 MiB. */
  size_t inbox_bytes;       /**< Room for messages that have arrived and wait to be received; further ones wait at the
                                 sender. 64 KiB to 1 GiB, default 1 MiB. */
  size_t max_message_bytes; /**< Longest message for a receive callback. Default 64 MiB. A longer one ends the
                                 connection with RDMA_ERR_TOO_LONG. rdmaConnRecv takes any. A connection with a receive
                                 callback reserves so much address space; memory is used only as messages come. */
  int shared_window;        /**< Listeners only. 1: all of its connections share one allocated default window of
                                 window_bytes, which rdmaServerWindow returns. Default 0. */
  int gid_index;            /**< On an RDMA device with RDMA_BOOTSTRAP_SOCKET: the row of the port's GID table, 0 to
                                 255. Default -1: the best one, as verbena-info explains. */
  const unsigned* allowed_uids; /**< Users besides this one, and root, whose processes may connect (software NIC).
                                     Copied. */
  size_t allowed_uid_count;     /**< Number of allowed_uids. Default 0. */
  const char* key_file; /**< File of keys, one a line (docs/connections.md). A listener accepts only clients that prove
                             that they have one of them; a client proves that it has one, and makes the listener prove
                             the same. Each rdmaServerStart and rdmaConnect reads the file. Null or "", the default:
                             none, and on a device anybody who reaches the port may connect. Copied. */
  const char* key_name; /**< Clients only: which key of key_file. Null or "", the default: the first. Copied. */
  RdmaNode* node; /**< The node to use; it replaces `device`, `bootstrap`, `gid_index` and `allowed_uids`. Release it
                       after everything that uses it. Null, the default: the process's own node for that NIC. */
} RdmaOptions;
/** Sets all of `options` to the defaults. Call it first: fields may be added. */
void rdmaOptionsInit(RdmaOptions* options);

/** Kinds of messages. */
typedef enum RdmaMessageKind {
  RDMA_MESSAGE = 0, /**< Sent by rdmaConnSend or rdmaConnSendWithImm. */
  RDMA_WRITTEN = 1  /**< The peer wrote into this side's default window by rdmaConnWriteWithImm(At). */
} RdmaMessageKind;
/** A message that arrived. */
typedef struct RdmaMessage {
  RdmaMessageKind kind; /**< Sent, or written. */
  int has_imm;          /**< 1 when the sender gave a number with it; else 0. */
  uint32_t imm;         /**< The number, or 0. */
  void* data;    /**< RDMA_MESSAGE: the bytes, valid until the callback returns; in rdmaConnRecv the caller's buffer.
                      RDMA_WRITTEN: the place in the default window. */
  size_t length; /**< Bytes at `data`. */
} RdmaMessage;

/** Rights of the peer to memory. This side may always read and write it. */
typedef enum RdmaAccess {
  RDMA_ACCESS_LOCAL = 0,         /**< The peer has no access. */
  RDMA_ACCESS_REMOTE_READ = 1,   /**< The peer may read. */
  RDMA_ACCESS_REMOTE_WRITE = 2,  /**< The peer may write. */
  RDMA_ACCESS_REMOTE_ATOMIC = 4, /**< The peer may use atomics. */
  RDMA_ACCESS_REMOTE_ALL = 7     /**< The peer has all three rights. */
} RdmaAccess;

/** Registered memory of this side. The library owns this struct: it is valid until the memory is deregistered, or the
 * connection, listener or node that registered it ends. */
typedef struct RdmaMemory {
  void* addr;         /**< Address of the first byte. */
  size_t length;      /**< Bytes. */
  uint32_t lkey;      /**< Key for calls of this side. */
  uint32_t rkey;      /**< Key for calls of the peer. */
  uint32_t access;    /**< RdmaAccess bits. */
  uint64_t memory_id; /**< For the library: the software NIC's number of the memory. */
} RdmaMemory;

/** Memory of the other side, as plain numbers of that process: you may send them in a message. */
typedef struct RdmaWindow {
  uint64_t addr;      /**< Address of the first byte, in the other process. */
  uint64_t length;    /**< Bytes. */
  uint32_t rkey;      /**< Key for calls. */
  uint32_t access;    /**< RdmaAccess bits. */
  uint64_t memory_id; /**< For the library: the software NIC's number of the memory. */
} RdmaWindow;

/** Operations that are started without waiting. */
typedef enum RdmaOperation { RDMA_WRITE = 0, RDMA_READ = 1, RDMA_ATOMIC = 2 } RdmaOperation;
/** The end of an operation that was started without waiting. */
typedef struct RdmaCompletion {
  uint64_t cookie;         /**< The cookie that you started it with. */
  RdmaOperation operation; /**< The kind of operation. */
  int code;                /**< RDMA_OK or an error. You may touch the operation's memory again. */
  uint64_t old;            /**< RDMA_ATOMIC: the value before. */
} RdmaCompletion;

/** NIC, threads and limits of a node. rdmaNodeOptionsInit sets the defaults. */
typedef struct RdmaNodeOptions {
  const char* device;           /**< As RdmaOptions::device. Copied. */
  RdmaBootstrap bootstrap;      /**< As RdmaOptions::bootstrap. Default RDMA_BOOTSTRAP_CM. */
  int gid_index;                /**< As RdmaOptions::gid_index. Default -1. */
  const char* address;          /**< Without a device: selects the NIC that has this address. Null: any NIC. Copied. */
  unsigned shards;              /**< Threads that drive connections. 1 to 256, default 1. */
  unsigned connections;         /**< Most connections of each shard. 1 to 65536, default 256. */
  const unsigned* cpus;         /**< One core number for each shard. Null, the default: claims free cores. Copied. */
  const unsigned* allowed_uids; /**< As RdmaOptions::allowed_uids. Copied. */
  size_t allowed_uid_count;     /**< Number of allowed_uids. Default 0. */
} RdmaNodeOptions;

/* Callbacks. The thread that drives the connection calls them (see above). */

/** Gets a new connection of a listener. */
typedef void (*RdmaAcceptCallbackFunc)(RdmaConn* conn);
/** Gets a message. `data`: data_len bytes, valid until the callback returns. */
typedef void (*RdmaRecvCallbackFunc)(RdmaConn* conn, void* data, size_t data_len);
/** Gets a connection that was made. */
typedef void (*RdmaConnectedCallbackFunc)(RdmaConn* conn);
/** Gets a connection that has ended. */
typedef void (*RdmaDisconnectCallbackFunc)(RdmaConn* conn);
/** Gets the connection of a write or an atomic that is complete. */
typedef void (*RdmaWriteCallbackFunc)(RdmaConn* conn);
/** Gets the connection of a read that is complete. */
typedef void (*RdmaReadCallbackFunc)(RdmaConn* conn);

/* The same with `user`, the pointer that you gave with the function. */

/** Gets a connection that was made. */
typedef void (*RdmaConnFunc)(RdmaConn* conn, void* user);
/** Gets a message, valid until the callback returns. */
typedef void (*RdmaMessageFunc)(RdmaConn* conn, const RdmaMessage* message, void* user);
/** Gets a connection that has ended. `code`: the reason. */
typedef void (*RdmaDisconnectFunc)(RdmaConn* conn, int code, void* user);
/** Gets the completion of an operation that was started without waiting. */
typedef void (*RdmaCompletionFunc)(RdmaConn* conn, const RdmaCompletion* completion, void* user);

/** \name Servers. Any thread, one at a time for one listener
 * \{ */

/** Makes a listener, without opening anything yet. `ip`: address or name to listen on; null or "": this host. Port 0
 * takes any free one; rdmaServerPort returns it once the listener runs. RDMA_ERR_BAD_ARGUMENT, RDMA_ERR_NO_MEMORY. */
int rdmaServer(RdmaListener** listener, const char* ip, int port);
/** Set options and callbacks before rdmaServerStart: RDMA_ERR_BUSY afterwards. */
int rdmaServerSetOptions(RdmaListener* listener, const RdmaOptions* options);
/** Sets the function that is called for each new connection, before the connection receives anything. Set callbacks of
 * the connection there. */
int rdmaServerSetAcceptCallback(RdmaListener* listener, RdmaAcceptCallbackFunc func);
/** \copydoc rdmaServerSetAcceptCallback */
int rdmaServerOnAccept(RdmaListener* listener, RdmaConnFunc func, void* user);
/** The callbacks of every new connection. */
int rdmaServerOnMessage(RdmaListener* listener, RdmaMessageFunc func, void* user);
/** \copydoc rdmaServerOnMessage */
int rdmaServerOnDisconnect(RdmaListener* listener, RdmaDisconnectFunc func, void* user);
/** Starts the listener, and returns once clients can connect. Errors: those of the NIC and the address, RDMA_ERR_BUSY
 * (it runs). */
int rdmaServerStart(RdmaListener* listener);
/** The port, or a negative code before start. */
int rdmaServerPort(const RdmaListener* listener);
/** Writes the address for rdmaConnect of a peer, on any host, to `address`, which has `length` bytes: text with a null
 * character. If the listener listens on all addresses, it is this host's name. RDMA_ERR_BUFFER_TOO_SMALL: the detail
 * says how many bytes it needs; RDMA_ERR_CLOSED: the listener does not run. */
int rdmaServerAddress(const RdmaListener* listener, char* address, size_t length);
/** Returns the default window that all connections share (RdmaOptions::shared_window or RdmaOptions::window), with its
 * length in `*length` unless null. Null and 0 if there is none, or the listener does not run. An allocated one starts
 * zeroed and is valid until rdmaServerStop. */
void* rdmaServerWindow(const RdmaListener* listener, size_t* length);
/** Waits without a deadline until another thread has stopped the listener. */
int rdmaServerWait(RdmaListener* listener);
/** Ends all connections and the thread; calls under way in other threads return RDMA_ERR_CLOSED. RDMA_OK also when it
 * does not run; RDMA_ERR_BUSY from one of its callbacks. It can be started again. */
int rdmaServerStop(RdmaListener* listener);
/** Stops it, and frees it. null is fine. Not from its callbacks. */
void rdmaServerRelease(RdmaListener* listener);
/** \} */

/** \name Nodes
 *
 * A process opens each NIC once, and all of its connections share it. Make a node to choose the NIC's threads, cores
 * and limits. A node's threads, its shards, take the connections of its listeners, and of its clients with callbacks,
 * in turn. All connections of a node use the memory that it registers, and all of their peers reach it. Any thread, one
 * at a time for one node.
 * \{ */

/** Sets all of `options` to the defaults. Call it first: fields may be added. */
void rdmaNodeOptionsInit(RdmaNodeOptions* options);
/** Makes a node. options null: the defaults. Errors: those of the NIC, RDMA_ERR_BAD_ARGUMENT (an option),
 * RDMA_ERR_LIMIT (threads, files), RDMA_ERR_NO_MEMORY. */
int rdmaNode(RdmaNode** node, const RdmaNodeOptions* options);
/** Frees a node, with the memory that it registered. Release its listeners and close its connections before. null is
 * fine. */
void rdmaNodeRelease(RdmaNode* node);
/** These are for a node what rdmaServerRegMem and the like, below, are for a listener. The memory lasts until
 * rdmaNodeRelease; rdmaNodeDeregMem waits 5 seconds at most. */
const RdmaMemory* rdmaNodeRegMem(RdmaNode* node, size_t size);
/** \copydoc rdmaNodeRegMem */
const RdmaMemory* rdmaNodeRegister(RdmaNode* node, void* addr, size_t length, unsigned access);
/** \copydoc rdmaNodeRegMem */
int rdmaNodeDeregMem(RdmaNode* node, const RdmaMemory* memory);
/** \copydoc rdmaNodeRegMem */
int rdmaNodePublish(RdmaNode* node, const char* name, const RdmaMemory* memory);
/** \copydoc rdmaNodeRegMem */
int rdmaNodePublishPart(RdmaNode* node, const char* name, const RdmaMemory* memory, size_t offset, size_t length);
/** \} */

/** \name Connections
 * \{ */

/** Makes a client's connection, not connected yet. Null if there is no memory. */
RdmaConn* rdmaConn(void);
/** Sets the options; call it before rdmaConnect. RDMA_ERR_BUSY afterwards. */
int rdmaConnSetOptions(RdmaConn* conn, const RdmaOptions* options);
/** Set callbacks before rdmaConnect, or in an accept callback; RDMA_ERR_BUSY elsewhere. func null removes one. The two
 * forms of one callback replace each other. A receive callback gets all messages; rdmaConnRecv gets none. */
int rdmaConnSetRecvCallback(RdmaConn* conn, RdmaRecvCallbackFunc func);
/** \copydoc rdmaConnSetRecvCallback */
int rdmaConnSetConnectedCallback(RdmaConn* conn, RdmaConnectedCallbackFunc func);
/** \copydoc rdmaConnSetRecvCallback */
int rdmaConnSetDisconnectCallback(RdmaConn* conn, RdmaDisconnectCallbackFunc func);
/** Called for each write and atomic, and for each read, that was started without waiting (rdmaStart...,
 * rdmaPA...Signaled). */
int rdmaConnSetWriteCallback(RdmaConn* conn, RdmaWriteCallbackFunc func);
/** \copydoc rdmaConnSetWriteCallback */
int rdmaConnSetReadCallback(RdmaConn* conn, RdmaReadCallbackFunc func);
/** As rdmaConnSetConnectedCallback, with `user` for the function. */
int rdmaConnOnConnect(RdmaConn* conn, RdmaConnFunc func, void* user);
/** As rdmaConnSetRecvCallback; the function gets `user` and what came with the message. */
int rdmaConnOnMessage(RdmaConn* conn, RdmaMessageFunc func, void* user);
/** As rdmaConnSetDisconnectCallback; the function gets `user` and the reason. */
int rdmaConnOnDisconnect(RdmaConn* conn, RdmaDisconnectFunc func, void* user);
/** As rdmaConnSetWriteCallback; the function gets `user` and the completion. */
int rdmaConnOnWrite(RdmaConn* conn, RdmaCompletionFunc func, void* user);
/** As rdmaConnSetReadCallback; the function gets `user` and the completion. */
int rdmaConnOnRead(RdmaConn* conn, RdmaCompletionFunc func, void* user);
/** Connects within connect_timeout_ms. After a failure you may call it again; after a success you may not. Errors:
 * RDMA_ERR_NOT_FOUND (the name), RDMA_ERR_CONNECTION_REFUSED, RDMA_ERR_REJECTED and others with the server's text in
 * rdmaErrorDetail, RDMA_ERR_TIMED_OUT (a port that does not answer), RDMA_ERR_BUSY (connected before). */
int rdmaConnect(RdmaConn* conn, const char* ip, int port);
/** The listener owns an accepted connection, and frees it when its disconnect callback has returned: use it only in
 * callbacks. If you call this in the accept callback, you own the connection: it is valid until rdmaConnClose, whatever
 * happens. */
int rdmaConnKeep(RdmaConn* conn);
/** Tells the peer, ends the operations under way, and frees the connection. Messages that rdmaConnSend accepted are in
 * the peer's memory when this returns, unless the peer takes longer than 336 ms. In a callback it returns at once, and
 * the connection ends when the callback has returned. No other call of the connection may be under way or follow. null
 * is fine. */
void rdmaConnClose(RdmaConn* conn);
/** Ends the threads of all client connections of this process, and those connections with RDMA_ERR_CLOSED; close their
 * handles afterwards. No call of a client's connection may be under way. */
void rdmaRuntimeStop(void);

/** Sets the default deadline of later calls: 1 to 2^30 ms. */
int rdmaConnSetTimeout(RdmaConn* conn, unsigned timeout_ms);
/** The code of the last call on this connection that failed, or the reason why it is dead. */
int rdmaConnError(const RdmaConn* conn);
/** 1 while calls can work, 0 before rdmaConnect and once it is dead. */
int rdmaConnIsConnected(const RdmaConn* conn);
/** Number of messages that were dropped (RDMA_RECV_DISCARD without a callback). */
uint64_t rdmaConnDiscarded(const RdmaConn* conn);
/** \} */

/** \name Messages
 * \{ */

/** Sends a message of 1 byte to any length, in order with everything that this connection sends. `data` may be any
 * memory; you may reuse it when the call returns. Returns data_len once the NIC has all of it, or will get it within
 * the peer's room; 0 on failure. If the deadline passes the message will not arrive, and the connection goes on. */
size_t rdmaConnSend(RdmaConn* conn, const void* data, size_t data_len);
/** \copydoc rdmaConnSend */
size_t rdmaConnSendWithImm(RdmaConn* conn, uint32_t imm_data, const void* data, size_t data_len);
/** Takes the next message into `buffer`. Fills in `message`, unless null. timeout_ms below 0: the connection's default;
 * 0: don't wait. RDMA_ERR_TIMED_OUT (nothing is lost), RDMA_ERR_BUFFER_TOO_SMALL (the message stays queued;
 * message->length is the length it needs), RDMA_ERR_UNSUPPORTED (a receive callback takes the messages, or the listener
 * discards them). Once the connection is dead, it first returns the messages that had arrived, then the code. */
int rdmaConnRecv(RdmaConn* conn, void* buffer, size_t buffer_len, RdmaMessage* message, int timeout_ms);
/** \} */

/** \name The peer's default window
 * \{ */

/** Writes to and reads from the peer's default window, from its start or from `offset`: complete at the peer when this
 * returns, without its CPU. The local memory may be any. If the deadline passes you may reuse the local memory, the
 * connection goes on, and a write may have happened in part. A write arrives before anything that you send after it.
 * RDMA_ERR_OUT_OF_RANGE: not inside the window; nothing was done. */
size_t rdmaConnWrite(RdmaConn* conn, const void* data, size_t data_len);
/** \copydoc rdmaConnWrite */
size_t rdmaConnWriteAt(RdmaConn* conn, size_t offset, const void* data, size_t data_len);
/** \copydoc rdmaConnWrite */
int rdmaConnRead(RdmaConn* conn, void* data_buf, size_t buf_len);
/** \copydoc rdmaConnWrite */
int rdmaConnReadAt(RdmaConn* conn, size_t offset, void* data_buf, size_t buf_len);
/** The peer gets an RDMA_WRITTEN message after the bytes. data_len 0 is only that message. */
int rdmaConnWriteWithImm(RdmaConn* conn, uint32_t imm_data, const void* data, size_t data_len);
/** \copydoc rdmaConnWriteWithImm */
int rdmaConnWriteWithImmAt(RdmaConn* conn, uint32_t imm_data, size_t offset, const void* data, size_t data_len);
/** This side's default window and its length; null and 0 if there is none, or before connecting. Zeroed at first. The
 * peer may change it at any time. Valid as long as the connection. */
void* rdmaConnWindow(RdmaConn* conn, size_t* length);
/** \copydoc rdmaConnWindow */
size_t rdmaConnPeerWindowBytes(const RdmaConn* conn);
/** The peer's default window, for rdmaSync... and rdmaStart... RDMA_ERR_NOT_FOUND: it has none. */
int rdmaConnPeerWindow(const RdmaConn* conn, RdmaWindow* window);
/** This side's default window as registered memory; null if there is none. Don't deregister it. */
const RdmaMemory* rdmaConnWindowMemory(RdmaConn* conn);
/** \} */

/** \name Registered memory
 *
 * The NIC reads and writes registered memory itself, without a copy through the library's own. Any thread. A connection
 * registers memory for its peer, until rdmaConnClose; a running listener registers it for all of its connections, until
 * rdmaServerStop. Registering waits for the system and, on a device, pins memory: don't do it on a data path. These
 * return null on failure, with the code in rdmaConnError and the sentence in rdmaErrorDetail.
 * \{ */

/** Allocates `size` bytes (1 to 2^40), zeroed, and registers them with all rights. On the software NIC peers access
 * only this memory directly; access to other memory costs a system call each time. */
const RdmaMemory* rdmaConnRegMem(RdmaConn* conn, size_t size);
/** \copydoc rdmaConnRegMem */
const RdmaMemory* rdmaServerRegMem(RdmaListener* listener, size_t size);
/** Registers memory of your own. Keep it mapped until you deregister it. `access`: RdmaAccess bits. */
const RdmaMemory* rdmaConnRegister(RdmaConn* conn, void* addr, size_t length, unsigned access);
/** \copydoc rdmaConnRegister */
const RdmaMemory* rdmaServerRegister(RdmaListener* listener, void* addr, size_t length, unsigned access);
/** Ends the registration, with its names and physical addresses, and frees memory that rdma...RegMem allocated. No peer
 * reads or writes the memory afterwards. No call of this side may be using it. RDMA_ERR_TIMED_OUT: a peer was still
 * using it after the default deadline; the library then never reuses allocated memory. RDMA_ERR_BAD_ARGUMENT: the
 * memory is not registered there. */
int rdmaConnDeregMem(RdmaConn* conn, const RdmaMemory* memory);
/** \copydoc rdmaConnDeregMem */
int rdmaServerDeregMem(RdmaListener* listener, const RdmaMemory* memory);

/** Publishes registered memory under a name of 1 to 64 bytes. Clients of the listener, or the peer of the connection,
 * look it up. memory null removes the name. RDMA_ERR_BUSY: the name is taken; RDMA_ERR_NOT_FOUND: no such name to
 * remove; RDMA_ERR_BAD_ARGUMENT: the memory is not registered there. */
int rdmaServerPublish(RdmaListener* listener, const char* name, const RdmaMemory* memory);
/** \copydoc rdmaServerPublish */
int rdmaConnPublish(RdmaConn* conn, const char* name, const RdmaMemory* memory);
/** Publishes `length` bytes, at least 1, from `offset` on. The peer's own library keeps the peer inside this part; its
 * NIC would allow access to all of the memory. RDMA_ERR_OUT_OF_RANGE: the part is not inside the memory. */
int rdmaServerPublishPart(RdmaListener* listener, const char* name, const RdmaMemory* memory, size_t offset,
                          size_t length);
/** \copydoc rdmaServerPublishPart */
int rdmaConnPublishPart(RdmaConn* conn, const char* name, const RdmaMemory* memory, size_t offset, size_t length);
/** Finds the window that the peer has published under `name`, and makes it usable; waits until the peer has published
 * it. timeout_ms as in rdmaConnRecv. RDMA_ERR_NOT_FOUND: not in time; RDMA_ERR_TIMED_OUT: the peer did not answer (a
 * client without callbacks answers only during its calls); RDMA_ERR_LIMIT: a connection uses at most 63 windows. */
int rdmaConnLookup(RdmaConn* conn, const char* name, RdmaWindow* window, int timeout_ms);
/** Import a window that the peer told you about in some other way, and release it. If you use a key without importing
 * it, the library asks the peer for it once, at its first use. */
int rdmaConnImportWindow(RdmaConn* conn, const RdmaWindow* window);
/** \copydoc rdmaConnImportWindow */
int rdmaConnReleaseWindow(RdmaConn* conn, const RdmaWindow* window);
/** \} */

/** \name One-sided access between registered memory
 * \{ */
/** `length` bytes, at least 1, between `local_addr`, in memory registered here under `lkey`, and `remote_addr`, in a
 * window of the peer under `rkey`. These errors have no effect, and the connection goes on: RDMA_ERR_LOCAL_ACCESS (no
 * memory here has this lkey, or it ends before), RDMA_ERR_NOT_FOUND (no window of the peer has this rkey),
 * RDMA_ERR_OUT_OF_RANGE, RDMA_ERR_REMOTE_ACCESS (the window lacks the right), RDMA_ERR_BAD_ARGUMENT.
 *
 * Plain numbers do not tell whose they are: on the connection to another peer, which may have handed out the same ones,
 * only chance protects its memory. Keys of the software NIC begin at random.
 *
 * The NIC uses your own memory, so the call must not return while it does: if the deadline passes, the call drains the
 * connection, which is then dead with RDMA_ERR_TIMED_OUT. This may take one second more. */
int rdmaSyncWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                          uint32_t length);
/** \copydoc rdmaSyncWriteSignaled */
int rdmaSyncReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                         uint32_t length);
/** Atomics on eight bytes of the peer, aligned to 8 (else RDMA_ERR_BAD_ARGUMENT). Change these bytes only by atomics of
 * NICs. `old`, unless null: the value before, or 0 after a failure. If the deadline passes the connection goes on, and
 * the change may have happened. RDMA_ERR_UNSUPPORTED: the device has no atomics. */
int rdmaSyncFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t add, uint64_t* old);
/** \copydoc rdmaSyncFetchAdd */
int rdmaSyncCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t expected, uint64_t desired,
                        uint64_t* old);
/** Start a transfer and return. Don't touch the memory until its completion, which has this cookie: the write or the
 * read callback gets it, or rdmaConnComplete if there is no such callback. These have no deadline; the end of the
 * connection completes them. RDMA_ERR_AGAIN: 64 are under way, or complete and not collected. */
int rdmaStartWrite(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                   uint32_t length, uint64_t cookie);
/** \copydoc rdmaStartWrite */
int rdmaStartRead(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                  uint32_t length, uint64_t cookie);
/** Start an atomic and return. completion->old is the value before; the write callback gets it. Atomics and transfers
 * complete in the order in which they were started. */
int rdmaStartFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t add, uint64_t cookie);
/** \copydoc rdmaStartFetchAdd */
int rdmaStartCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t expected, uint64_t desired,
                         uint64_t cookie);
/** Collects the oldest completion of the kinds that have no callback. timeout_ms as in rdmaConnRecv.
 * RDMA_ERR_TIMED_OUT: none came; RDMA_ERR_NOT_FOUND: none is under way. The result of the operation is in
 * completion->code. */
int rdmaConnComplete(RdmaConn* conn, RdmaCompletion* completion, int timeout_ms);
/** \} */

/** \name Physical addresses
 *
 * Access to the peer's memory by its physical address: only to memory that the peer has exported. Exporting needs
 * CAP_SYS_ADMIN; without it the call returns RDMA_ERR_PERMISSION, whose detail names the capability, and everything
 * else works on. Using exported memory of a peer needs no privilege. On the software NIC a physical address is a name
 * that was fixed at export. See docs/physical-addressing.md.
 * \{ */

/** Exports all of `memory`, which this connection or its listener has registered, to this connection's peer by physical
 * address, with the memory's rights. Sets `physical`, unless null, to the address of its first byte. The peer learns of
 * it before any message that you send afterwards. RDMA_ERR_LIMIT: a connection can make 16 exports in its life, those
 * of deregistered memory included. */
int rdmaPAExport(RdmaConn* conn, const RdmaMemory* memory, uint64_t* physical);
/** The physical address of a byte of this process: the one under which this connection exported it, else the kernel's,
 * which needs the privilege. conn may be null. RDMA_ERR_NOT_FOUND: there is no page yet; write to it first. */
int rdmaPAAddress(RdmaConn* conn, const void* local, uint64_t* physical);
/** As rdmaSync..., with the same errors. RDMA_ERR_OUT_OF_RANGE: the peer did not export all of it. A transfer that
 * crosses from one run of physical memory into the next is several operations; when it fails, some may have
 * happened. */
int rdmaPASyncWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);
/** \copydoc rdmaPASyncWriteSignaled */
int rdmaPASyncReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);
/** \copydoc rdmaPASyncWriteSignaled */
int rdmaPASyncFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint64_t add, uint64_t* old);
/** \copydoc rdmaPASyncWriteSignaled */
int rdmaPASyncCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint64_t expected, uint64_t desired, uint64_t* old);
/** As rdmaStart...; the cookie is local_addr. */
int rdmaPAWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);
/** \copydoc rdmaPAWriteSignaled */
int rdmaPAReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length);
/** \} */

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
