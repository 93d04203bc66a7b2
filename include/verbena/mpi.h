/** \file
 * MPI codes in C: connections between all ranks of a communicator, and windows of all ranks (docs/coming-from.md).
 *
 * The library has no part of it, because the ABIs of MPIs differ: you compile this header with your MPI. A rank gets a
 * node and a listener. It connects to another one when it first asks for the connection, or to all at once. Memory that
 * the node registers serves all connections, at both ends; rdmaMpiPublish tells all ranks of it.
 *
 * Calls marked "collective" must be called by all ranks of the communicator, in the same order. They return the same
 * code in all ranks: that of the lowest rank that failed, whose sentence is in rdmaMpiErrorDetail. Each waits for the
 * other ranks up to RdmaMpiOptions::timeout_ms: RDMA_ERR_TIMED_OUT, and MPI still waits for them, so end the job by
 * MPI_Abort then. RDMA_ERR_SYSTEM: MPI's own error.
 *
 * Threads: one thread at a time calls these functions, as MPI was initialized for. */
#ifndef VERBENA_MPI_H
#define VERBENA_MPI_H

#include <verbena/rdma.h>

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The field's names, not C++'s style; functions of C, in which C++ sees old-style casts. NOLINTBEGIN */
#pragma GCC visibility push(default)
#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
extern "C" {
#endif

/** Options of rdmaMpiStart. rdmaMpiOptionsInit sets the defaults. */
typedef struct RdmaMpiOptions {
  RdmaOptions conn;           /**< For the listener and all connections. Default: as rdmaOptionsInit sets it, without
                                   default windows. If you set `node`, it is used; else the ranks make one for `device`
                                   and the like. */
  const char* address;        /**< Address of this host for the other ranks. Null, the default: this host's own. */
  unsigned timeout_ms;        /**< Deadline of each collective call. 1 to 2^30, default 30000. */
  RdmaMessageFunc on_message; /**< Gets the messages that other ranks send by rdmaMpiConn, in a thread of the node.
                                   Null, the default: they are dropped. */
  void* user;                 /**< The callback's pointer. */
} RdmaMpiOptions;

/** All ranks, as one of them sees them. Read the first four fields; the others are for the functions below. */
typedef struct RdmaMpi {
  int rank;                    /**< This process. */
  int size;                    /**< Number of ranks. */
  RdmaNode* node;              /**< Registers memory for all connections: rdmaNodeRegMem. */
  RdmaListener* listener;      /**< Accepts the connections of other ranks. */
  MPI_Comm comm;               /**< A duplicate of the user's. */
  unsigned timeout_ms;         /**< As in the options. */
  int owns_node;               /**< 1: rdmaMpiStart made the node. */
  RdmaConn** conns;            /**< One to each rank. */
  unsigned char* is_connected; /**< 1: conns[rank] was connected. */
  struct RdmaMpiPlace* places; /**< Where each rank listens. */
} RdmaMpi;

/** Where a rank listens. */
typedef struct RdmaMpiPlace {
  char address[256]; /**< Text with a null character. */
  int port;          /**< Port of the listener. */
} RdmaMpiPlace;

/** What a rank tells the others at the end of a collective call. */
typedef struct RdmaMpiVerdict {
  int code;      /**< RDMA_OK or why this rank failed. */
  char why[256]; /**< Its sentence. */
} RdmaMpiVerdict;

/** \name For the functions below
 * \{ */

/** The sentence of the last call here that failed in this thread; "": it is rdmaErrorDetail's. */
static inline char* rdmaMpiText(void) {
#ifdef __cplusplus
  static thread_local char text[512];
#else
  static _Thread_local char text[512];
#endif
  return text;
}

/** Sets the sentence and returns the code. */
static inline int rdmaMpiFail(int code, const char* what, const char* why) {
  snprintf(rdmaMpiText(), 512, "%s%s", what, why);
  return code;
}

/** MPI's answer to `call` as a code. */
static inline int rdmaMpiResult(const char* call, int answer) {
  if (answer == MPI_SUCCESS) return RDMA_OK;
  char why[MPI_MAX_ERROR_STRING] = "an unknown error";
  int length = 0;
  (void)MPI_Error_string(answer, why, &length);
  return rdmaMpiFail(RDMA_ERR_SYSTEM, call, why);
}

/** Waits until the request that a nonblocking call of MPI has started is complete. */
static inline int rdmaMpiFinish(const char* call, int started, MPI_Request* request, unsigned timeout_ms) {
  int code = rdmaMpiResult(call, started), is_complete = 0;
  const double deadline = MPI_Wtime() + timeout_ms / 1000.0;
  while (code == RDMA_OK) {
    code = rdmaMpiResult(call, MPI_Test(request, &is_complete, MPI_STATUS_IGNORE));
    if (code != RDMA_OK || is_complete != 0) break;
    if (MPI_Wtime() > deadline)
      return rdmaMpiFail(RDMA_ERR_TIMED_OUT, call,
                         "not all ranks have made the same call in time: look for one that ended, or raise timeout_ms");
    (void)sched_yield();
  }
  return code;
}

/** MPI_Allgather with a deadline. When it passes, MPI keeps the buffers, since it cannot cancel a collective call. */
static inline int rdmaMpiGather(const RdmaMpi* mpi, const void* mine, void* all, size_t bytes) {
  const size_t count = (size_t)mpi->size;
  char* buffers = (char*)malloc((count + 1) * bytes);
  MPI_Request* request = (MPI_Request*)malloc(sizeof *request);
  int code = RDMA_ERR_NO_MEMORY;
  if (buffers != NULL && request != NULL) {
    memcpy(buffers, mine, bytes);
    code = rdmaMpiFinish(
        "MPI_Iallgather: ",
        MPI_Iallgather(buffers, (int)bytes, MPI_BYTE, buffers + bytes, (int)bytes, MPI_BYTE, mpi->comm, request),
        request, mpi->timeout_ms);
    if (code == RDMA_ERR_TIMED_OUT) return code;
    if (code == RDMA_OK) memcpy(all, buffers + bytes, count * bytes);
  } else {
    (void)rdmaMpiFail(code, "", "there is no memory for what the ranks tell each other");
  }
  free(buffers);
  free(request);
  return code;
}

/** Lets all ranks know each other's code, and returns the one for all. */
static inline int rdmaMpiAgree(const RdmaMpi* mpi, int code) {
  RdmaMpiVerdict mine;
  memset(&mine, 0, sizeof mine);
  mine.code = code;
  strncat(mine.why, rdmaMpiText()[0] != 0 ? rdmaMpiText() : rdmaErrorDetail(), sizeof mine.why - 1);
  RdmaMpiVerdict* all = (RdmaMpiVerdict*)calloc((size_t)mpi->size, sizeof *all);
  if (all == NULL) return rdmaMpiFail(RDMA_ERR_NO_MEMORY, "", "there is no memory for the codes of all ranks");
  int verdict = rdmaMpiGather(mpi, &mine, all, sizeof mine);
  for (int rank = 0; verdict == RDMA_OK && rank < mpi->size; ++rank) {
    verdict = all[rank].code;
    if (verdict != RDMA_OK) snprintf(rdmaMpiText(), 512, "rank %d: %s", rank, all[rank].why);
  }
  free(all);
  return verdict;
}

/** Frees all that this rank has. */
static inline void rdmaMpiFree(RdmaMpi* mpi, int is_comm_idle) {
  for (int rank = 0; mpi->conns != NULL && rank < mpi->size; ++rank) rdmaConnClose(mpi->conns[rank]);
  rdmaServerRelease(mpi->listener);
  if (mpi->owns_node) rdmaNodeRelease(mpi->node);
  if (is_comm_idle && mpi->comm != MPI_COMM_NULL) (void)MPI_Comm_free(&mpi->comm);
  free(mpi->conns);
  free(mpi->is_connected);
  free(mpi->places);
  free(mpi);
}

/** Opens this rank's node, unless there is one, and its listener. */
static inline int rdmaMpiListen(RdmaMpi* mpi, const RdmaMpiOptions* options, RdmaOptions* conn, RdmaMpiPlace* place) {
  int code = RDMA_OK;
  mpi->node = conn->node;
  if (mpi->node == NULL) {
    RdmaNodeOptions node;
    rdmaNodeOptionsInit(&node);
    node.device = conn->device;
    node.bootstrap = conn->bootstrap;
    node.gid_index = conn->gid_index;
    node.address = options->address;
    node.allowed_uids = conn->allowed_uids;
    node.allowed_uid_count = conn->allowed_uid_count;
    if (node.connections < (unsigned)mpi->size) node.connections = (unsigned)mpi->size;
    code = rdmaNode(&mpi->node, &node);
    mpi->owns_node = code == RDMA_OK;
    conn->node = mpi->node;
  }
  if (code == RDMA_OK) code = rdmaServer(&mpi->listener, options->address, 0);
  if (code == RDMA_OK) code = rdmaServerSetOptions(mpi->listener, conn);
  if (code == RDMA_OK && options->on_message != NULL)
    code = rdmaServerOnMessage(mpi->listener, options->on_message, options->user);
  if (code == RDMA_OK) code = rdmaServerStart(mpi->listener);
  if (code == RDMA_OK) code = rdmaServerAddress(mpi->listener, place->address, sizeof place->address);
  if (code == RDMA_OK) place->port = rdmaServerPort(mpi->listener);
  return code;
}

/** Makes a connection to each rank, not connected yet. */
static inline int rdmaMpiMakeConns(RdmaMpi* mpi, const RdmaOptions* conn) {
  const size_t count = (size_t)mpi->size;
  mpi->conns = (RdmaConn**)calloc(count, sizeof *mpi->conns);
  mpi->is_connected = (unsigned char*)calloc(count, 1);
  mpi->places = (RdmaMpiPlace*)calloc(count, sizeof *mpi->places);
  if (mpi->conns == NULL || mpi->is_connected == NULL || mpi->places == NULL)
    return rdmaMpiFail(RDMA_ERR_NO_MEMORY, "", "there is no memory for the connections to all ranks");
  for (int rank = 0; rank < mpi->size; ++rank) {
    mpi->conns[rank] = rdmaConn();
    if (mpi->conns[rank] == NULL)
      return rdmaMpiFail(RDMA_ERR_NO_MEMORY, "", "there is no memory for the connections to all ranks");
    const int code = rdmaConnSetOptions(mpi->conns[rank], conn);
    if (code != RDMA_OK) return code;
  }
  return RDMA_OK;
}
/** \} */

/** \name Calls
 * \{ */

/** One sentence about the last call of this header that failed in this thread; it names the rank that failed. Valid
 * until the next call. */
static inline const char* rdmaMpiErrorDetail(void) { return rdmaMpiText()[0] != 0 ? rdmaMpiText() : rdmaErrorDetail(); }

/** Sets all of `options` to the defaults. Call it first: fields may be added. */
static inline void rdmaMpiOptionsInit(RdmaMpiOptions* options) {
  memset(options, 0, sizeof *options);
  rdmaOptionsInit(&options->conn);
  options->conn.window_bytes = 0;
  options->timeout_ms = 30000;
}

/** Collective. Opens a node and a listener in each rank of an intracommunicator, and tells all ranks where the others
 * listen. `*mpi` is null on failure. options null: the defaults. RDMA_ERR_BAD_ARGUMENT (MPI does not run, or `comm` is
 * null or an intercommunicator, which is not collective), and the errors of rdmaNode and rdmaServerStart. Release what
 * uses `*mpi` before rdmaMpiStop. */
static inline int rdmaMpiStart(MPI_Comm comm, const RdmaMpiOptions* options, RdmaMpi** mpi) {
  int is_running = 0, is_over = 0, is_inter = 0;
  RdmaMpiOptions defaults;
  *mpi = NULL;
  rdmaMpiText()[0] = 0;
  (void)MPI_Initialized(&is_running);
  (void)MPI_Finalized(&is_over);
  if (is_running == 0 || is_over != 0)
    return rdmaMpiFail(RDMA_ERR_BAD_ARGUMENT, "", "MPI is not running: call it between MPI_Init and MPI_Finalize");
  if (comm == MPI_COMM_NULL) return rdmaMpiFail(RDMA_ERR_BAD_ARGUMENT, "", "comm must not be MPI_COMM_NULL");
  (void)MPI_Comm_test_inter(comm, &is_inter);
  if (is_inter != 0)
    return rdmaMpiFail(RDMA_ERR_BAD_ARGUMENT, "",
                       "comm is an intercommunicator: merge it first by MPI_Intercomm_merge");
  if (options == NULL) {
    rdmaMpiOptionsInit(&defaults);
    options = &defaults;
  }
  if (options->timeout_ms < 1 || options->timeout_ms > 1U << 30)
    return rdmaMpiFail(RDMA_ERR_BAD_ARGUMENT, "", "timeout_ms must be 1 to 2^30");
  RdmaMpi* made = (RdmaMpi*)calloc(1, sizeof *made);
  if (made == NULL) return rdmaMpiFail(RDMA_ERR_NO_MEMORY, "", "there is no memory for the ranks");
  (void)MPI_Comm_rank(comm, &made->rank);
  (void)MPI_Comm_size(comm, &made->size);
  made->timeout_ms = options->timeout_ms;
  made->comm = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  int code = rdmaMpiFinish("MPI_Comm_idup: ", MPI_Comm_idup(comm, &made->comm, &request), &request, made->timeout_ms);
  /* On a timeout MPI may yet write into *made. */
  if (code != RDMA_OK) return code;
  (void)MPI_Comm_set_errhandler(made->comm, MPI_ERRORS_RETURN);

  RdmaMpiPlace mine;
  RdmaOptions conn = options->conn;
  memset(&mine, 0, sizeof mine);
  code = rdmaMpiListen(made, options, &conn, &mine);
  if (code == RDMA_OK) code = rdmaMpiMakeConns(made, &conn);
  code = rdmaMpiAgree(made, code);
  if (code == RDMA_OK) code = rdmaMpiGather(made, &mine, made->places, sizeof mine);
  if (code != RDMA_OK) {
    rdmaMpiFree(made, code != RDMA_ERR_TIMED_OUT);
    return code;
  }
  *mpi = made;
  return RDMA_OK;
}

/** The connection by which this rank sends to `rank`, reads and writes its windows; this rank itself has one, too.
 * Connects at the first call. Null on failure: rdmaMpiErrorDetail, and the code in `*code` unless null; you may call it
 * again. The connection belongs to `mpi`. */
static inline RdmaConn* rdmaMpiConn(RdmaMpi* mpi, int rank, int* code) {
  int result = RDMA_OK;
  rdmaMpiText()[0] = 0;
  if (rank < 0 || rank >= mpi->size) {
    snprintf(rdmaMpiText(), 512, "rank must be 0 to %d; got %d", mpi->size - 1, rank);
    result = RDMA_ERR_BAD_ARGUMENT;
  } else if (mpi->is_connected[rank] == 0) {
    result = rdmaConnect(mpi->conns[rank], mpi->places[rank].address, mpi->places[rank].port);
    mpi->is_connected[rank] = result == RDMA_OK;
  }
  if (code != NULL) *code = result;
  return result == RDMA_OK ? mpi->conns[rank] : NULL;
}

/** Collective. Connects each rank to all others and to itself. */
static inline int rdmaMpiConnectAll(RdmaMpi* mpi) {
  int code = RDMA_OK;
  /* Each rank begins with the one behind it, so that they do not all ask the same one. */
  for (int step = 1; code == RDMA_OK && step <= mpi->size; ++step)
    (void)rdmaMpiConn(mpi, (mpi->rank + step) % mpi->size, &code);
  return rdmaMpiAgree(mpi, code);
}

/** Collective. Publishes memory that mpi->node has registered, and gets the windows of all ranks: windows[rank] is for
 * rdmaSync... and rdmaStart... with rdmaMpiConn(mpi, rank). memory null: this rank publishes none, and its window has
 * the length 0. `windows` has room for mpi->size of them. Keep the memory registered while others use it. */
static inline int rdmaMpiPublish(RdmaMpi* mpi, const RdmaMemory* memory, RdmaWindow* windows) {
  RdmaWindow mine;
  memset(&mine, 0, sizeof mine);
  rdmaMpiText()[0] = 0;
  if (memory != NULL) {
    mine.addr = (uint64_t)(uintptr_t)memory->addr;
    mine.length = memory->length;
    mine.rkey = memory->rkey;
    mine.access = memory->access;
    mine.memory_id = memory->memory_id;
  }
  return rdmaMpiGather(mpi, &mine, windows, sizeof mine);
}

/** Collective. Waits until all ranks call it, so that nobody's memory goes while others use it; then closes all
 * connections and frees `mpi`, also on failure. null is fine. Deregister the node's memory afterwards if the node is
 * yours; that of its own node goes with it. */
static inline int rdmaMpiStop(RdmaMpi* mpi) {
  if (mpi == NULL) return RDMA_OK;
  rdmaMpiText()[0] = 0;
  const int code = rdmaMpiAgree(mpi, RDMA_OK);
  rdmaMpiFree(mpi, code != RDMA_ERR_TIMED_OUT);
  return code;
}
/** \} */

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif
#pragma GCC visibility pop
/* NOLINTEND */
#endif
