/** \file
 * The mesh in C: N processes by T threads, thread i of each connected to thread i of all others (docs/mesh.md).
 *
 * Functions that return int return 0 (MESH_OK) or a negative code of mesh_error_t, unless their comment says that they
 * return a number. mesh_error_string tells the cause and fix of a code, mesh_error_detail tells about the last call
 * that failed in this thread. The codes are those of verbena/rdma.h. There are no global options. No call prints or
 * ends the process, unless the library finds its own state broken. The detail of MESH_ERR_BAD_ARGUMENT names the
 * argument, its value and its range; the comments below do not list this code.
 *
 * Threads: any thread may call the functions of a mesh, also at the same time. One thread at a time uses a lane (except
 * for mesh_lane_counters) or a carrier. The library has threads of its own, which connect peers and call none of your
 * functions.
 *
 * Time: timeout_ms is in milliseconds. 0: don't wait; -1: no deadline; less is MESH_ERR_BAD_ARGUMENT.
 *
 * Memory: calls of a lane allocate nothing, except mesh_find and mesh_gather.
 *
 * A child that is forked while its parent has a mesh gets MESH_ERR_FORKED from every call, and does not harm its
 * parent, whatever it frees; it may exec. Memory of mesh_allocate is not mapped in the child. pthread_cancel takes
 * effect only after a call has returned. */
#ifndef VERBENA_MESH_H
#define VERBENA_MESH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The archive has these under other names, so that nothing clashes in a static link. */
/** \cond */
#define mesh_error_string verbena_mesh_error_string
#define mesh_error_detail verbena_mesh_error_detail
#define mesh_options_init verbena_mesh_options_init
#define mesh_carrier_directory verbena_mesh_carrier_directory
#define mesh_carrier_hosts verbena_mesh_carrier_hosts
#define mesh_carrier_gather verbena_mesh_carrier_gather
#define mesh_carrier_destroy verbena_mesh_carrier_destroy
#define mesh_join verbena_mesh_join
#define mesh_leave verbena_mesh_leave
#define mesh_description verbena_mesh_description
#define mesh_allocate verbena_mesh_allocate
#define mesh_add verbena_mesh_add
#define mesh_publish verbena_mesh_publish
#define mesh_lane verbena_mesh_lane
#define mesh_is_here verbena_mesh_is_here
#define mesh_reserve verbena_mesh_reserve
#define mesh_commit verbena_mesh_commit
#define mesh_commit_imm verbena_mesh_commit_imm
#define mesh_cancel verbena_mesh_cancel
#define mesh_send verbena_mesh_send
#define mesh_send_imm verbena_mesh_send_imm
#define mesh_find verbena_mesh_find
#define mesh_write verbena_mesh_write
#define mesh_write_imm verbena_mesh_write_imm
#define mesh_read verbena_mesh_read
#define mesh_fetch_add verbena_mesh_fetch_add
#define mesh_compare_swap verbena_mesh_compare_swap
#define mesh_flush verbena_mesh_flush
#define mesh_flush_peer verbena_mesh_flush_peer
#define mesh_poll verbena_mesh_poll
#define mesh_wait verbena_mesh_wait
#define mesh_release verbena_mesh_release
#define mesh_gather verbena_mesh_gather
#define mesh_barrier verbena_mesh_barrier
#define mesh_lane_counters verbena_mesh_lane_counters
/** \endcond */

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

enum {
  MESH_MAX_PROCESSES = 16384,
  MESH_MAX_THREADS = 256,
  MESH_MAX_MESSAGE_BYTES = 16320,
  MESH_MAX_GATHER_BYTES = 64,
  MESH_MAX_NAME_BYTES = 64, /**< Longest name of a window, without its zero. */
  MESH_BLOB_BYTES = 256     /**< Bytes that a carrier brings from each process. */
};

/** Return codes of the calls, and codes of completions. mesh_error_string has cause and fix of each. */
typedef enum mesh_error {
  MESH_OK = 0,
  /* Nothing is damaged. */
  MESH_ERR_AGAIN = -2,     /**< Complete something of this peer, then try again. */
  MESH_ERR_TIMED_OUT = -3, /**< The deadline passed; the detail names the missing processes. */
  /* The call failed; the connection goes on. */
  MESH_ERR_NOT_FOUND = -4,     /**< The peer has never connected; or no such name, file or device. */
  MESH_ERR_TOO_LONG = -7,      /**< A message is longer than message_bytes. */
  MESH_ERR_BAD_ARGUMENT = -12, /**< Something that can never work. */
  MESH_ERR_OUT_OF_RANGE = -13, /**< Not inside the window or the memory. */
  MESH_ERR_LOCAL_ACCESS = -14, /**< Registered memory of this process does not cover the bytes. */
  MESH_ERR_UNSUPPORTED = -15,  /**< The device does not have it. */
  MESH_ERR_BUSY = -16,         /**< The name or the address is in use. */
  /* The peer is gone, or cannot be reached. */
  MESH_ERR_PEER_LOST = -17,          /**< It died, or cannot be reached. */
  MESH_ERR_CONNECTION_REFUSED = -18, /**< Nothing listens there. */
  MESH_ERR_REJECTED = -19,           /**< Another process has other limits, or the same id. */
  MESH_ERR_PROTOCOL = -20,           /**< The peer broke the protocol, or has another version. */
  MESH_ERR_REMOTE_ACCESS = -21,      /**< The window lacks the right, or the peer's NIC refused the access. */
  MESH_ERR_REMOTE_INVALID = -22,     /**< The peer's NIC refused the form of a request. */
  MESH_ERR_RETRY_EXCEEDED = -23,     /**< The peer's device never answered: check addresses and firewalls. */
  MESH_ERR_RNR_EXCEEDED = -24,       /**< The peer received no messages in time. */
  MESH_ERR_FLUSHED = -25,            /**< The connection failed before this was done. */
  MESH_ERR_CLOSED = -26,             /**< The peer has left in an orderly way. */
  MESH_ERR_NOT_ALLOWED = -27,        /**< The peer runs as another user. */
  MESH_ERR_OTHER_NAMESPACE = -28,    /**< Same host, another network or PID namespace. */
  MESH_ERR_OTHER_HOST = -29,         /**< The software NIC reaches this host only. */
  /* The device, the process or the machine lacks something. */
  MESH_ERR_NO_MEMORY = -30,  /**< There is not enough memory. */
  MESH_ERR_LIMIT = -31,      /**< A limit of the options or the system is reached; the detail names it. */
  MESH_ERR_PERMISSION = -32, /**< A capability or setting is missing; the detail names it. */
  MESH_ERR_DEVICE = -33,     /**< The NIC failed or is gone. */
  MESH_ERR_SYSTEM = -34,     /**< A system call failed; the detail has its errno. */
  MESH_ERR_FORKED = -35      /**< This process was forked from one that uses the library. */
} mesh_error_t;

/** Cause and fix of a code, in static storage. Any thread. */
const char* mesh_error_string(int code);
/** One sentence about the last call that failed in this thread: it names what the call failed on. "" before any
 * failure. Valid until the next call that fails in this thread. Any thread. */
const char* mesh_error_detail(void);

/** This process's part of a mesh. */
typedef struct verbena_mesh_handle mesh_t;
/** One thread's end of the mesh: connections to the same lane of all other processes. */
typedef struct verbena_mesh_lane_handle mesh_lane_t;
/** Tells all processes where each of them listens. */
typedef struct verbena_mesh_carrier_handle mesh_carrier_t;

/** How a thread waits. In C++ the enum has a fixed type, so that it can hold any number, which a C program may pass and
 * the library refuses. */
typedef enum
#ifdef __cplusplus
    : unsigned
#endif
{ MESH_WAIT_SPIN,     /**< Polls until the deadline. Needs a core of its own. */
  MESH_WAIT_ADAPTIVE, /**< Polls for spin_us, then sleeps until an event. */
  MESH_WAIT_EVENT     /**< Sleeps at once: for more threads than cores. */
} mesh_wait_policy_t;

/** \name Joining
 * \{ */

/** mesh_options_init sets the defaults. Those marked with * must be the same in all processes; a process with other
 * ones is refused. */
typedef struct mesh_options {
  unsigned id;           /**< This process. 0 (the default) to processes - 1. */
  unsigned processes;    /**< * 1 to MESH_MAX_PROCESSES, default 1. */
  unsigned threads;      /**< * Lanes of each process. 1 to MESH_MAX_THREADS, default 1. */
  const char* job;       /**< * Distinguishes meshes that could find each other. Null or "", the default, to 64 bytes.
                              Copied. */
  const char* device;    /**< Null or "": an RDMA device if one is usable, else the software NIC. "soft": the software
                              NIC. Else a device, "mlx5_0" or "mlx5_0:2". Copied. */
  const char* address;   /**< Address to listen on. Null or "", the default: this host, by the device's own address,
                              else by loopback. Copied. */
  int port;              /**< 0 to 65535. 0, the default, takes any free one. */
  size_t message_bytes;  /**< * Longest message. 1 to MESH_MAX_MESSAGE_BYTES, default 1024. */
  unsigned depth;        /**< Messages from each peer that one lane may have unreleased, those on their way included. 4
                              to 4096, default 8. */
  unsigned operations;   /**< Operations that one lane may have in flight to each peer. 1 to 2000, default 32. */
  unsigned reservations; /**< Reservations (mesh_reserve) that a lane may hold for each peer. 0 to 1024, default 8. */
  unsigned batch;        /**< Posts to one peer that share a doorbell. 1 (the default) to 32, at most operations. */
  mesh_wait_policy_t wait;   /**< Default MESH_WAIT_ADAPTIVE. */
  unsigned spin_us;          /**< With MESH_WAIT_ADAPTIVE a lane polls this long before it sleeps. 0 to 1000000, default
                                  50. */
  unsigned join_timeout_ms;  /**< Deadline of mesh_join. 1 to 86400000, default 30000. */
  const uid_t* allowed_uids; /**< Users besides this one whose processes may connect (software NIC). Copied. */
  size_t allowed_uid_count;  /**< Number of allowed_uids. Default 0. */
  const char* key_file;      /**< File of keys, one a line (docs/connections.md): either all processes have one, with a
                                  key in common, or none has. Null or "", the default: none. Copied. */
  uint64_t incarnation;      /**< Must grow each time this process comes back. 0, the default: the time of day, in
                                  ns. */
} mesh_options_t;
/** Sets the defaults. Any thread. */
int mesh_options_init(mesh_options_t* options);

/* Carriers. These set `*carrier` to one for mesh_join, or to null on failure. */

/** Uses a directory that all processes see, with a file for each of them. `directory` must exist. Other meshes in it
 * must have another `job`: 1 to 64 letters, digits, '.', '-' and '_', and no '.' in front. The call copies both.
 * MESH_ERR_NOT_FOUND: there is no such directory; MESH_ERR_PERMISSION, MESH_ERR_SYSTEM: it cannot be opened. */
int mesh_carrier_directory(const char* directory, const char* job, mesh_carrier_t** carrier);
/** Uses a list that all processes have: process i listens at hosts[i], "host:port" or "[address]:port". `count`, at
 * least 1, is the number of processes. mesh_options_t::port must be the port of this process's entry. The call copies
 * the list. */
int mesh_carrier_hosts(const char* const* hosts, size_t count, mesh_carrier_t** carrier);
/** A collective call of your program, like MPI_Allgather: gives the others the `bytes_each` bytes at `mine`, and puts
 * those of all processes, by id, into `all`. Returns 0, or another number on failure. */
typedef int (*mesh_all_gather_t)(const void* mine, void* all, size_t bytes_each, void* context);
/** Exchanges all blobs by one call of `gather`, with bytes_each = MESH_BLOB_BYTES, in the thread that calls mesh_join.
 * `gather` must not throw. `processes`: 1 to MESH_MAX_PROCESSES, as in the options. `gather` gets `context`, which you
 * own. */
int mesh_carrier_gather(unsigned processes, mesh_all_gather_t gather, void* context, mesh_carrier_t** carrier);
/** Frees a carrier that you have not passed to mesh_join. null is fine. */
void mesh_carrier_destroy(mesh_carrier_t* carrier);

/** Publishes this process, and waits up to join_timeout_ms until all processes are connected with each other. It takes
 * the carrier, whether it succeeds or not: don't use or destroy the carrier afterwards. `*mesh` is null on failure.
 * MESH_ERR_TIMED_OUT (the detail tells which processes are missing, and why), MESH_ERR_REJECTED (another process has
 * other limits, or there is a second process with this id), MESH_ERR_SYSTEM (the carrier's call returned another number
 * than 0), and the codes of the carrier, the NIC and memory. */
int mesh_join(const mesh_options_t* options, mesh_carrier_t* carrier, mesh_t** mesh);
/** Tells all peers, and frees the mesh, its lanes and the memory of mesh_allocate. No thread may use them any more.
 * null is fine. */
int mesh_leave(mesh_t* mesh);
/** One line: the NIC and why it was chosen, the port, limits. Valid as long as the mesh; "" for null. */
const char* mesh_description(const mesh_t* mesh);
/** The lane of a thread, 0 to mesh_options_t::threads - 1. It lives as long as the mesh. Null for another number;
 * mesh_error_detail says so. */
mesh_lane_t* mesh_lane(mesh_t* mesh, unsigned thread);
/** \} */

/** \name Memory
 * \{ */

/** Rights of peers: flags, for mesh_add. */
enum {
  MESH_ACCESS_LOCAL = 0,         /**< Peers have no access. */
  MESH_ACCESS_REMOTE_READ = 1,   /**< Peers may read. */
  MESH_ACCESS_REMOTE_WRITE = 2,  /**< Peers may write. */
  MESH_ACCESS_REMOTE_ATOMIC = 4, /**< Peers may use atomics. */
  MESH_ACCESS_REMOTE_ALL = 7     /**< Peers have all three rights. */
};

/** Allocates `bytes` bytes, 1 to 2^40, zeroed, and registers them with all rights for all lanes and peers. `*memory`,
 * null on failure, lives as long as the mesh. MESH_ERR_NO_MEMORY, MESH_ERR_LIMIT. */
int mesh_allocate(mesh_t* mesh, size_t bytes, void** memory);
/** Registers `bytes` bytes, 1 to 2^40, of your own memory. Keep it until the mesh ends. `access`: the sum of
 * MESH_ACCESS_*, 0 to 7; you cannot publish memory that lacks REMOTE_READ or REMOTE_WRITE, and this side's calls copy
 * it. On the software NIC peers reach it through the kernel, which is slower than memory of mesh_allocate.
 * MESH_ERR_NO_MEMORY, MESH_ERR_LIMIT. */
int mesh_add(mesh_t* mesh, void* memory, size_t bytes, unsigned access);
/** Publishes `bytes` bytes, at least 1, of registered memory under a name of 1 to MESH_MAX_NAME_BYTES bytes, to all
 * peers, also to later ones. A name can be used once. The call copies it. MESH_ERR_BUSY: the name is taken;
 * MESH_ERR_OUT_OF_RANGE: the bytes are not inside one registered memory to which peers have a right. */
int mesh_publish(mesh_t* mesh, const char* name, void* memory, size_t bytes);
/** \} */

/** \name Lanes
 *
 * Calls that take a peer (0 to processes - 1, and not this process) or a window of one also return MESH_ERR_NOT_FOUND
 * (the peer has never connected), MESH_ERR_CLOSED or MESH_ERR_PEER_LOST (it is gone, and may come back). Calls that
 * start something return MESH_ERR_AGAIN, and do nothing, when a limit for the peer is reached: complete something, then
 * try again. `cookie` is any number; the completion returns it.
 * \{ */

/** 1: the peer is connected; 0: it is not. */
int mesh_is_here(mesh_lane_t* lane, unsigned peer);

/* Messages. Messages and writes to one peer arrive in the order of the calls. */

/** Reserves room for a message of mesh_options_t::message_bytes. You own `*message`, null on failure, until mesh_commit
 * or mesh_cancel. MESH_ERR_AGAIN: none is free now. */
int mesh_reserve(mesh_lane_t* lane, unsigned peer, void** message);
/** Sends the first `bytes` bytes, 0 to message_bytes, of a reservation, without a copy. Unless it returns MESH_OK you
 * keep the reservation. MESH_ERR_TOO_LONG. */
int mesh_commit(mesh_lane_t* lane, unsigned peer, void* message, size_t bytes, uint64_t cookie);
/** The same with an immediate, a number beside the message, which may be 0. */
int mesh_commit_imm(mesh_lane_t* lane, unsigned peer, void* message, size_t bytes, uint64_t cookie, uint32_t immediate);
/** Gives a reservation back. Call it also if the peer has gone: the reservation's memory stays until then. */
int mesh_cancel(mesh_lane_t* lane, unsigned peer, void* message);
/** Sends a copy of a message of 0 to message_bytes bytes. `message` may be null with 0 bytes. MESH_ERR_TOO_LONG. */
int mesh_send(mesh_lane_t* lane, unsigned peer, const void* message, size_t bytes, uint64_t cookie);
/** The same with an immediate. */
int mesh_send_imm(mesh_lane_t* lane, unsigned peer, const void* message, size_t bytes, uint64_t cookie,
                  uint32_t immediate);

/* One-sided access. `bytes`, at least 1, of any memory of this process; registered memory is not copied. Don't touch it
 * until you have collected the completion. MESH_ERR_OUT_OF_RANGE: not inside the window; MESH_ERR_REMOTE_ACCESS: the
 * window lacks the right. */

/** A named window of a peer. Copy it freely; only the library uses its fields, except peer and length. Valid until that
 * peer leaves. */
typedef struct mesh_window {
  uint64_t address;     /**< Address of the first byte, in the peer. */
  uint64_t length;      /**< Bytes. */
  uint64_t memory_id;   /**< The software NIC's number of the memory. */
  uint64_t incarnation; /**< The owner's: calls with a window from before the owner's restart return
                             MESH_ERR_PEER_LOST. */
  uint32_t rkey;        /**< Key for calls. */
  uint32_t access;      /**< MESH_ACCESS_* bits. */
  uint32_t peer;        /**< The process that published it. */
} mesh_window_t;
/** Finds the window that the peer publishes under `name`; polls until the peer has published it. Sets `*window` only
 * with MESH_OK. MESH_ERR_NOT_FOUND: not within timeout_ms. It may allocate. */
int mesh_find(mesh_lane_t* lane, unsigned peer, const char* name, int timeout_ms, mesh_window_t* window);
/** Writes `bytes` bytes at `from` to `offset` bytes after the window's begin. */
int mesh_write(mesh_lane_t* lane, const mesh_window_t* to, uint64_t offset, const void* from, size_t bytes,
               uint64_t cookie);
/** The same with an immediate: the peer's lane gets a MESH_WRITTEN after the bytes. */
int mesh_write_imm(mesh_lane_t* lane, const mesh_window_t* to, uint64_t offset, const void* from, size_t bytes,
                   uint64_t cookie, uint32_t immediate);
/** Reads `bytes` bytes at `offset` bytes after the window's begin into `to`. */
int mesh_read(mesh_lane_t* lane, const mesh_window_t* from, uint64_t offset, void* to, size_t bytes, uint64_t cookie);
/** Adds `add`, modulo 2^64, to 8 bytes, whose address is a multiple of 8. MESH_ERR_UNSUPPORTED: the NIC has no atomics.
 * mesh_completion_t::old is the value before. */
int mesh_fetch_add(mesh_lane_t* lane, const mesh_window_t* at, uint64_t offset, uint64_t add, uint64_t cookie);
/** Replaces `expected` with `desired`. It has done so if mesh_completion_t::old, the value before, is `expected`.
 * Otherwise as mesh_fetch_add. */
int mesh_compare_swap(mesh_lane_t* lane, const mesh_window_t* at, uint64_t offset, uint64_t expected, uint64_t desired,
                      uint64_t cookie);

/** Posts to all peers what mesh_options_t::batch holds back. mesh_poll does so, too. */
int mesh_flush(mesh_lane_t* lane);
/** The same for one peer. */
int mesh_flush_peer(mesh_lane_t* lane, unsigned peer);
/** \} */

/** \name Completions
 * \{ */

/** Kinds of completions: of operations that ended, and of events from peers. */
typedef enum mesh_kind {
  MESH_SEND = 0,    /**< mesh_send or mesh_commit: the peer's NIC has the message. */
  MESH_WRITE = 1,   /**< mesh_write: the bytes are in the peer's memory. */
  MESH_READ = 2,    /**< mesh_read: the bytes have arrived. */
  MESH_ATOMIC = 3,  /**< mesh_fetch_add or mesh_compare_swap: `old` is the value before. */
  MESH_RECEIVE = 4, /**< A message. `bytes` is where it arrived; it stays unchanged until mesh_release. */
  MESH_WRITTEN = 5, /**< The peer wrote into this process's memory with an immediate. `bytes` is the place. */
  MESH_JOINED = 6,  /**< The peer is connected (after mesh_join: it has come back). */
  MESH_LEFT = 7     /**< The peer is gone. `code`: MESH_ERR_CLOSED, it left in an orderly way; MESH_ERR_PEER_LOST, it
                         died or cannot be reached; or why the connection failed. */
} mesh_kind_t;

/** A completion, as mesh_poll and mesh_wait return it. */
typedef struct mesh_completion {
  mesh_kind_t kind;   /**< What it is. */
  int code;           /**< MESH_OK, or why it failed. */
  unsigned peer;      /**< The other side. */
  int has_immediate;  /**< 1: there is an immediate; else 0. */
  uint32_t immediate; /**< The immediate, or 0. */
  uint32_t number;    /**< For the library, which needs it in mesh_release. */
  uint64_t cookie;    /**< The cookie that you started it with, or 0. */
  void* bytes;        /**< The memory that the call named, or what arrived; null for others. */
  size_t length;      /**< Bytes there. */
  uint64_t old;       /**< MESH_ATOMIC: the value before. */
  uint64_t handle;    /**< For the library, which needs it in mesh_release. */
} mesh_completion_t;

/** Selects the completions that mesh_poll and mesh_wait return. In C++ it has a fixed type, as above. */
typedef enum
#ifdef __cplusplus
    : unsigned
#endif
{ MESH_ALL,     /**< Everything. */
  MESH_SENDS,   /**< Ends of this side's own operations. */
  MESH_RECEIVES /**< Messages and other events from peers. */
} mesh_which_t;

/** Moves completions into `out`, which has room for `count`, 1 to 65536, without waiting. Returns how many, 0 for none,
 * or a negative code. Poll regularly: on the software NIC messages also need the polls of their sender to move on, and
 * only a poll notices the death of a peer. */
int mesh_poll(mesh_lane_t* lane, mesh_completion_t* out, size_t count, mesh_which_t which);
/** The same, but waits until there is a completion. Returns 0 when timeout_ms have passed, or before that when you may
 * repeat a call that returned MESH_ERR_AGAIN. */
int mesh_wait(mesh_lane_t* lane, mesh_completion_t* out, size_t count, mesh_which_t which, int timeout_ms);
/** Gives the memory of a MESH_RECEIVE back, so that the peer can send another message. Release each once, in any order.
 * Pass the completion unchanged, or a copy of it. MESH_ERR_BAD_ARGUMENT: it is released already, or no message. */
int mesh_release(mesh_lane_t* lane, const mesh_completion_t* message);
/** \} */

/** \name All processes
 *
 * For starting and stopping. Use lane 0 only, and the same calls in the same order in all processes. They return once
 * the values of all processes are here and every peer's NIC has this one's. The detail of MESH_ERR_TIMED_OUT names the
 * missing processes, that of MESH_ERR_PEER_LOST and MESH_ERR_CLOSED the one that is gone. MESH_ERR_PROTOCOL: another
 * process gave another number of bytes.
 * \{ */

/** Each process gives `bytes_each` bytes at `mine`, 0 to MESH_MAX_GATHER_BYTES, and gets those of all, by id, in `all`:
 * bytes_each times the number of processes. Polls meanwhile. It may allocate. */
int mesh_gather(mesh_lane_t* lane, const void* mine, size_t bytes_each, void* all, int timeout_ms);
/** Waits until all processes have called it. */
int mesh_barrier(mesh_lane_t* lane, int timeout_ms);
/** \} */

/** \name Counters
 * \{ */

/** Counts of a lane since it was made, over all its peers. */
typedef struct mesh_counters {
  uint64_t work_requests;   /**< Send-queue work requests posted or held for the next doorbell, and `direct` ones. */
  uint64_t direct;          /**< Work requests that the software NIC carried out at once, without queue and doorbell. */
  uint64_t doorbells;       /**< ibv_post_send calls. */
  uint64_t completions;     /**< Completions polled, receives included. */
  uint64_t inline_sends;    /**< Work requests that carried their bytes inline. */
  uint64_t receive_refills; /**< ibv_post_recv calls. */
  uint64_t empty_polls;     /**< Polls that found nothing. */
  uint64_t sleeps;          /**< Waits on the completion channel: system calls. */
  uint64_t quarantined;     /**< Abandoned operations whose memory is kept, now, until their completion. */
  uint64_t bytes;           /**< Payload bytes posted. */
  uint64_t strays;          /**< Dropped completions of queue pairs that are gone. */
  uint64_t keepalives;      /**< Work requests that only ask whether the peer is there. */
} mesh_counters_t;
/** Sets all counters. Any thread, also while another uses the lane. */
int mesh_lane_counters(mesh_lane_t* lane, mesh_counters_t* counters);
/** \} */

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
