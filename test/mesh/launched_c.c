/* Started by mpirun: launched_c MODE, as at the end. launched.py looks at what they print. */
#include <verbena/mpi.h>

static int rank, ranks;

static void check(int is, const char* what) {
  if (is) return;
  fprintf(stderr, "process %d: %s: %s\n", rank, what, rdmaMpiErrorDetail());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static RdmaMpiOptions on_the_nic(void) {
  RdmaMpiOptions options;
  rdmaMpiOptionsInit(&options);
  const char* nic = getenv("VERBENA_NIC");
  options.conn.device = nic != NULL ? nic : "soft";
  options.conn.timeout_ms = options.conn.connect_timeout_ms = options.timeout_ms = 60000;
  return options;
}

static void echo(RdmaConn* conn, const RdmaMessage* message, void* user) {
  (void)user;
  (void)rdmaConnSendWithImm(conn, message->imm + 1, message->data, message->length);
}

/* Each rank writes its number into all others' windows, adds to rank 0's, and gets an answer from the next. */
static void use(RdmaMpi* mpi) {
  const RdmaMemory* memory = rdmaNodeRegMem(mpi->node, 4096);
  check(memory != NULL, "rdmaNodeRegMem");
  uint64_t* words = (uint64_t*)memory->addr;
  RdmaWindow* windows = (RdmaWindow*)calloc((size_t)ranks, sizeof *windows);
  check(windows != NULL, "calloc");
  words[511] = (uint64_t)rank + 1;
  check(rdmaMpiPublish(mpi, memory, windows) == RDMA_OK, "rdmaMpiPublish");
  for (int peer = 0; peer < ranks; ++peer) {
    RdmaConn* conn = rdmaMpiConn(mpi, peer, NULL);
    check(conn != NULL && conn == rdmaMpiConn(mpi, peer, NULL), "rdmaMpiConn");
    check(windows[peer].length == 4096, "the window has another length");
    check(rdmaSyncWriteSignaled(conn, (uint64_t)(uintptr_t)&words[511], memory->lkey,
                                windows[peer].addr + 8 * (uint64_t)rank, windows[peer].rkey, 8) == RDMA_OK,
          "rdmaSyncWriteSignaled");
  }
  uint64_t old;
  check(rdmaSyncFetchAdd(rdmaMpiConn(mpi, 0, NULL), windows[0].addr + 2048, windows[0].rkey, 10, &old) == RDMA_OK,
        "rdmaSyncFetchAdd");
  MPI_Barrier(MPI_COMM_WORLD);
  for (int peer = 0; peer < ranks; ++peer) check(words[peer] == (uint64_t)peer + 1, "a rank wrote something else");
  check(rank != 0 || words[256] == 10 * (uint64_t)ranks, "not all ranks have added");

  RdmaConn* next = rdmaMpiConn(mpi, (rank + 1) % ranks, NULL);
  RdmaMessage message;
  char text[8];
  check(rdmaConnSendWithImm(next, 40, "a word", 7) == 7, "rdmaConnSendWithImm");
  check(rdmaConnRecv(next, text, sizeof text, &message, -1) == RDMA_OK, "rdmaConnRecv");
  check(message.imm == 41 && strcmp(text, "a word") == 0, "another answer came");
  free(windows);
}

static void join(void) {
  RdmaMpiOptions options = on_the_nic();
  options.on_message = echo;
  RdmaMpi* mpi;
  check(rdmaMpiStart(MPI_COMM_WORLD, &options, &mpi) == RDMA_OK, "rdmaMpiStart");
  check(mpi->rank == rank && mpi->size == ranks, "it has other ranks");
  int code;
  check(rdmaMpiConn(mpi, ranks, &code) == NULL && code == RDMA_ERR_BAD_ARGUMENT, "there is one rank more");
  check(strstr(rdmaMpiErrorDetail(), "rank must be 0 to 3; got 4") != NULL, "the detail is another");
  use(mpi);
  check(rdmaMpiStop(mpi) == RDMA_OK, "rdmaMpiStop");
}

/* Connections of all beforehand, a node of the user's, and ranks that publish nothing. */
static void join_at_once(void) {
  RdmaMpiOptions options = on_the_nic();
  RdmaNodeOptions of_node;
  RdmaMpi* mpi;
  rdmaNodeOptionsInit(&of_node);
  of_node.device = options.conn.device;
  check(rdmaNode(&options.conn.node, &of_node) == RDMA_OK, "rdmaNode");
  check(rdmaMpiStart(MPI_COMM_WORLD, &options, &mpi) == RDMA_OK, "rdmaMpiStart");
  check(mpi->node == options.conn.node, "it has another node");
  check(rdmaMpiConnectAll(mpi) == RDMA_OK, "rdmaMpiConnectAll");
  for (int peer = 0; peer < ranks; ++peer)
    check(rdmaConnIsConnected(rdmaMpiConn(mpi, peer, NULL)), "a rank is not connected");
  RdmaWindow windows[4];
  const RdmaMemory* memory = rank % 2 == 0 ? rdmaNodeRegMem(mpi->node, 64) : NULL;
  check(rdmaMpiPublish(mpi, memory, windows) == RDMA_OK, "rdmaMpiPublish");
  for (int peer = 0; peer < ranks; ++peer)
    check(windows[peer].length == (peer % 2 == 0 ? 64 : 0), "a window has another length");
  check(rdmaMpiStop(mpi) == RDMA_OK, "rdmaMpiStop");
  if (memory != NULL) check(rdmaNodeDeregMem(options.conn.node, memory) == RDMA_OK, "rdmaNodeDeregMem");
  rdmaNodeRelease(options.conn.node);
}

/* Rank 2 has no such device: all get its code and its sentence, and may try again. */
static void fail_together(void) {
  RdmaMpiOptions options = on_the_nic();
  if (rank == 2) options.conn.device = "no such device";
  RdmaMpi* mpi;
  const int code = rdmaMpiStart(MPI_COMM_WORLD, &options, &mpi);
  int of_rank_2 = code;
  MPI_Bcast(&of_rank_2, 1, MPI_INT, 2, MPI_COMM_WORLD);
  check(code != RDMA_OK && code == of_rank_2 && mpi == NULL, "it starts, or with another code");
  check(strncmp(rdmaMpiErrorDetail(), "rank 2: ", 8) == 0, "the detail names another rank");
  check(strstr(rdmaMpiErrorDetail(), "no such device") != NULL, "the detail lacks the device");
  join();
}

/* Rank 1 comes when the others have given up. */
static void be_late(void) {
  RdmaMpiOptions options = on_the_nic();
  RdmaMpi* mpi;
  options.timeout_ms = 200;
  if (rank == 1) MPI_Barrier(MPI_COMM_WORLD);
  const int code = rdmaMpiStart(MPI_COMM_WORLD, &options, &mpi);
  if (rank != 1) MPI_Barrier(MPI_COMM_WORLD);
  check(code == RDMA_ERR_TIMED_OUT && mpi == NULL, "process 1 was not late");
}

static void refuse(void) {
  RdmaMpiOptions options = on_the_nic();
  RdmaMpi* mpi;
  check(rdmaMpiStart(MPI_COMM_NULL, &options, &mpi) == RDMA_ERR_BAD_ARGUMENT, "MPI_COMM_NULL was taken");
  options.timeout_ms = 0;
  check(rdmaMpiStart(MPI_COMM_WORLD, &options, &mpi) == RDMA_ERR_BAD_ARGUMENT, "no time was enough");
  check(rdmaMpiStop(NULL) == RDMA_OK, "null was not fine");
  MPI_Comm half, between;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 0, &between);
  check(rdmaMpiStart(between, NULL, &mpi) == RDMA_ERR_BAD_ARGUMENT, "an intercommunicator was taken");
  options.timeout_ms = 60000;
  check(rdmaMpiStart(half, &options, &mpi) == RDMA_OK && mpi->size == 2 && mpi->rank == rank / 2, "ranks of a half");
  check(rdmaMpiConnectAll(mpi) == RDMA_OK && rdmaMpiStop(mpi) == RDMA_OK, "a half");
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}

int main(int argc, char** argv) {
  RdmaMpi* mpi;
  const char* mode = argc > 1 ? argv[1] : "";
  check(rdmaMpiStart(MPI_COMM_WORLD, NULL, &mpi) == RDMA_ERR_BAD_ARGUMENT, "it starts before MPI_Init");
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (strcmp(mode, "lazily") == 0) join();
  if (strcmp(mode, "at_once") == 0) join_at_once();
  if (strcmp(mode, "failing") == 0) fail_together();
  if (strcmp(mode, "late") == 0) be_late();
  if (strcmp(mode, "refusals") == 0) refuse();
  printf("process %d of %d saw it\n", rank, ranks);
  MPI_Finalize();
  return 0;
}
