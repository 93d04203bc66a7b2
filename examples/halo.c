/* The halo exchange of a grid whose rows are spread over MPI ranks in a ring: each rank writes its outer rows into its
 * neighbours' memory. Checked against MPI_Sendrecv, and timed beside MPI_Put with a fence.
 * usage: mpirun -np N halo [COLUMNS]      VERBENA_NIC: device; VERBENA_ADDRESS: this host's address for the others */
#include <mpi.h>
#include <verbena/rdma.h>

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 16, STEPS = 1000, ROUNDS = 5, TIMEOUT_S = 20 };
enum { UP, DOWN, SIDES }; /* The neighbour before this rank, and the one after it. */

/* What a rank tells the others, by MPI_Allgather. */
typedef struct {
  char address[64]; /* Empty: this host. */
  int port;
} Blob;

/* A neighbour writes this into this rank's window: a row for even steps and one for odd, so that it may be a step
 * ahead, and the last step whose row is there, each on a cache line of its own. */
typedef struct {
  _Alignas(64) _Atomic uint64_t step[2][8];
  double row[];
} Halo;

static int rank, ranks, columns, has_core;
static size_t row_bytes;
static int neighbour[SIDES];
static RdmaConn* to[SIDES];           /* This rank writes through these. */
static RdmaConn* _Atomic from[SIDES]; /* And the neighbours into the windows of these. */
static Halo* halo[SIDES];
static RdmaWindow window[SIDES];     /* The neighbours' halos. */
static const RdmaMemory* own[SIDES]; /* The grids, and the step, as registered for each connection. */
static uint64_t* own_step;
static MPI_Win win; /* For MPI_Put: two sides, two rows each. */
static double* win_rows;

static void die(const char* what, const char* why) {
  fprintf(stderr, "rank %d: %s: %s %s\n", rank, what, why, rdmaErrorDetail());
  MPI_Abort(MPI_COMM_WORLD, 1);
}
static void check(const char* what, int code) {
  if (code != RDMA_OK) die(what, rdmaErrorString(code));
}

/* --- setup. The callbacks are the listener's thread's. --- */

static void accepted(RdmaConn* conn, void* user) {
  (void)user;
  rdmaConnKeep(conn);
}
/* A neighbour says which side it is. */
static void greeted(RdmaConn* conn, const RdmaMessage* message, void* user) {
  (void)user;
  if (message->imm < SIDES) from[message->imm] = conn;
  rdmaConnSend(conn, "", 1);
}

static RdmaListener* connect_ring(void* memory, size_t bytes) {
  RdmaOptions options;
  rdmaOptionsInit(&options);
  options.device = getenv("VERBENA_NIC");
  options.window_bytes = sizeof(Halo) + 2 * row_bytes;
  options.timeout_ms = options.connect_timeout_ms = TIMEOUT_S * 1000;

  Blob mine = {"", 0}, *all = calloc((size_t)ranks, sizeof *all);
  if (all == NULL) die("calloc", "no memory");
  const char* address = getenv("VERBENA_ADDRESS");
  if (address != NULL) snprintf(mine.address, sizeof mine.address, "%s", address);
  RdmaListener* listener;
  check("rdmaServer", rdmaServer(&listener, address, 0));
  check("rdmaServerSetOptions", rdmaServerSetOptions(listener, &options));
  check("rdmaServerOnAccept", rdmaServerOnAccept(listener, accepted, NULL));
  check("rdmaServerOnMessage", rdmaServerOnMessage(listener, greeted, NULL));
  check("rdmaServerStart", rdmaServerStart(listener));
  mine.port = rdmaServerPort(listener);
  MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, MPI_COMM_WORLD);

  for (int side = 0; side < SIDES; ++side) {
    const Blob* peer = &all[neighbour[side]];
    char answer;
    to[side] = rdmaConn();
    if (to[side] == NULL) die("rdmaConn", "no memory");
    check("rdmaConnSetOptions", rdmaConnSetOptions(to[side], &options));
    check("rdmaConnect", rdmaConnect(to[side], peer->address, peer->port));
    /* To the neighbour below this rank is the one above. */
    if (rdmaConnSendWithImm(to[side], side == UP ? DOWN : UP, "", 1) == 0) check("greeting", rdmaConnError(to[side]));
    check("answer", rdmaConnRecv(to[side], &answer, 1, NULL, -1));
    check("rdmaConnPeerWindow", rdmaConnPeerWindow(to[side], &window[side]));
    own[side] = rdmaConnRegister(to[side], memory, bytes, RDMA_ACCESS_LOCAL);
    if (own[side] == NULL) check("rdmaConnRegister", rdmaConnError(to[side]));
  }
  free(all);
  MPI_Barrier(MPI_COMM_WORLD); /* All have been answered: `from` is set everywhere. */
  for (int side = 0; side < SIDES; ++side) halo[side] = rdmaConnWindow(from[side], NULL);
  return listener;
}

/* --- three ways to exchange. Row 0 and row ROWS+1 of a grid are the neighbours'. --- */

static double* row_of(double* grid, int row) { return grid + (size_t)row * (size_t)columns; }
static double* outer_row(double* grid, int side) { return row_of(grid, side == UP ? 1 : ROWS); }
static double* halo_row(double* grid, int side) { return row_of(grid, side == UP ? 0 : ROWS + 1); }

static void wait_for(int side, uint64_t step) {
  double deadline = 0;
  for (unsigned polls = 1; atomic_load_explicit(&halo[side]->step[step % 2][0], memory_order_acquire) < step; ++polls) {
    if (has_core) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      sched_yield(); /* Whom this rank waits for may need the core. */
    }
    if (polls % 4096 != 0) continue;
    if (deadline == 0) deadline = MPI_Wtime() + TIMEOUT_S;
    if (!rdmaConnIsConnected(from[side])) check("the neighbour", rdmaConnError(from[side]));
    if (MPI_Wtime() > deadline) die("the neighbour", "writes nothing");
  }
}

static void write_to(int side, size_t offset, const void* data, size_t bytes) {
  check("rdmaSyncWriteSignaled", rdmaSyncWriteSignaled(to[side], (uintptr_t)data, own[side]->lkey,
                                                       window[side].addr + offset, window[side].rkey, (uint32_t)bytes));
}

static void by_writes(double* grid, uint64_t step) {
  *own_step = step;
  for (int side = 0; side < SIDES; ++side) {
    write_to(side, sizeof(Halo) + step % 2 * row_bytes, outer_row(grid, side), row_bytes);
    write_to(side, offsetof(Halo, step) + step % 2 * 64, own_step, sizeof step); /* The row is there: a write blocks. */
  }
  for (int side = 0; side < SIDES; ++side) {
    wait_for(side, step);
    memcpy(halo_row(grid, side), halo[side]->row + step % 2 * (size_t)columns, row_bytes);
  }
}

static void by_put(double* grid, uint64_t step) {
  for (int side = 0; side < SIDES; ++side) {
    MPI_Aint there = ((side == UP ? DOWN : UP) * 2 + (MPI_Aint)(step % 2)) * columns;
    MPI_Put(outer_row(grid, side), columns, MPI_DOUBLE, neighbour[side], there, columns, MPI_DOUBLE, win);
  }
  MPI_Win_fence(0, win);
  for (int side = 0; side < SIDES; ++side)
    memcpy(halo_row(grid, side), win_rows + (size_t)(side * 2 + (int)(step % 2)) * (size_t)columns, row_bytes);
}

static void by_sendrecv(double* grid, uint64_t step) {
  (void)step;
  for (int side = 0; side < SIDES; ++side)
    MPI_Sendrecv(outer_row(grid, side), columns, MPI_DOUBLE, neighbour[side], side, halo_row(grid, !side), columns,
                 MPI_DOUBLE, neighbour[!side], side, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

typedef void (*Exchange)(double* grid, uint64_t step);

/* Each point becomes the mean of itself and its four neighbours. */
static void relax(double* grid, double* next) {
  for (int r = 1; r <= ROWS; ++r) {
    const double *above = row_of(grid, r - 1), *row = row_of(grid, r), *below = row_of(grid, r + 1);
    double* out = row_of(next, r);
    for (int c = 0; c < columns; ++c) {
      double left = row[c == 0 ? columns - 1 : c - 1], right = row[c == columns - 1 ? 0 : c + 1];
      out[c] = (row[c] + left + right + above[c] + below[c]) / 5;
    }
  }
}

/* The grid after `steps`, from a start that differs in each point. `grids`: room for two. */
static double* run(Exchange exchange, uint64_t* step, int steps, double* grids) {
  double *grid = grids, *next = row_of(grids, ROWS + 2);
  for (int r = 1; r <= ROWS; ++r)
    for (int c = 0; c < columns; ++c) row_of(grid, r)[c] = (double)((rank * ROWS + r) * 7919 % 1000 + c * 104729 % 997);
  for (int i = 0; i < steps; ++i) {
    exchange(grid, ++*step);
    relax(grid, next);
    double* swap = grid;
    grid = next;
    next = swap;
  }
  return grid;
}

/* Microseconds of an exchange, of the slowest rank. */
static double time_of(Exchange exchange, double* grid, uint64_t* step) {
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  for (int i = 0; i < STEPS; ++i) exchange(grid, ++*step);
  double mine = (MPI_Wtime() - begin) / STEPS * 1e6, slowest;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  columns = argc > 1 ? atoi(argv[1]) : 1024;
  if (columns < 1 || columns > 1 << 20) die("COLUMNS", "1 to 1048576");
  row_bytes = (size_t)columns * sizeof(double);
  neighbour[UP] = (rank + ranks - 1) % ranks;
  neighbour[DOWN] = (rank + 1) % ranks;
  MPI_Comm node;
  int on_node;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &on_node);
  has_core = on_node <= sysconf(_SC_NPROCESSORS_ONLN);

  /* Two grids for each way, and the step; the NIC reads those of the writes. */
  size_t bytes = 64 + 2 * (ROWS + 2) * row_bytes;
  char* memory[3];
  for (int i = 0; i < 3; ++i)
    if ((memory[i] = calloc(1, bytes)) == NULL) die("calloc", "no memory");
  own_step = (uint64_t*)memory[0];
  RdmaListener* listener = connect_ring(memory[0], bytes);
  MPI_Win_allocate((MPI_Aint)(2 * SIDES * row_bytes), sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &win_rows, &win);
  MPI_Win_fence(0, win);

  uint64_t writes = 0, puts = 0, pairs = 0; /* Steps so far. */
  size_t inner = ROWS * row_bytes;
  double* grid = run(by_writes, &writes, 100, (double*)(memory[0] + 64));
  double* put = run(by_put, &puts, 100, (double*)(memory[1] + 64));
  double* sent = run(by_sendrecv, &pairs, 100, (double*)(memory[2] + 64));
  int same =
      memcmp(row_of(grid, 1), row_of(sent, 1), inner) == 0 && memcmp(row_of(put, 1), row_of(sent, 1), inner) == 0;
  if (!same) die("the grid", "is not what MPI_Sendrecv makes");

  /* In turn, so that all see the same machine; the best of each. */
  double best[3] = {1e9, 1e9, 1e9};
  for (int round = 0; round < ROUNDS; ++round) {
    double times[3] = {time_of(by_writes, grid, &writes), time_of(by_put, put, &puts),
                       time_of(by_sendrecv, sent, &pairs)};
    for (int i = 0; i < 3; ++i)
      if (times[i] < best[i]) best[i] = times[i];
  }
  if (rank == 0)
    printf(
        "%d ranks, rows of %zu bytes: writes %.2f us, MPI_Put and fence %.2f us (%.2f times), MPI_Sendrecv %.2f us\n",
        ranks, row_bytes, best[0], best[1], best[1] / best[0], best[2]);

  MPI_Win_free(&win);
  MPI_Comm_free(&node);
  MPI_Barrier(MPI_COMM_WORLD); /* Nobody writes any more. */
  for (int side = 0; side < SIDES; ++side) rdmaConnClose(to[side]), rdmaConnClose(from[side]);
  rdmaServerRelease(listener);
  for (int i = 0; i < 3; ++i) free(memory[i]);
  MPI_Finalize();
}
