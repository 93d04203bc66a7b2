/* A histogram that is spread over all ranks: each rank counts its numbers by atomics in the rank that has the bin.
 * usage: mpirun -np N mpi_windows      VERBENA_NIC: device; VERBENA_ADDRESS: this host's address for the others */
#include <verbena/mpi.h>

enum { BINS = 64, NUMBERS = 10000 }; /* Bins of each rank, numbers that each rank counts. */

static void check(const char* what, int code) {
  if (code == RDMA_OK) return;
  fprintf(stderr, "%s: %s\n", what, rdmaMpiErrorDetail());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  RdmaMpiOptions options;
  rdmaMpiOptionsInit(&options);
  options.conn.device = getenv("VERBENA_NIC");
  options.address = getenv("VERBENA_ADDRESS");
  RdmaMpi* mpi;
  check("rdmaMpiStart", rdmaMpiStart(MPI_COMM_WORLD, &options, &mpi));

  const RdmaMemory* memory = rdmaNodeRegMem(mpi->node, BINS * sizeof(uint64_t));
  RdmaWindow* windows = calloc((size_t)mpi->size, sizeof *windows);
  if (memory == NULL || windows == NULL) check("memory", RDMA_ERR_NO_MEMORY);
  check("rdmaMpiPublish", rdmaMpiPublish(mpi, memory, windows));

  unsigned seed = (unsigned)mpi->rank;
  for (int i = 0; i < NUMBERS; ++i) {
    const int bin = rand_r(&seed) % (BINS * mpi->size), owner = bin / BINS;
    RdmaConn* conn = rdmaMpiConn(mpi, owner, NULL); /* Connects the first time. */
    if (conn == NULL) check("rdmaMpiConn", RDMA_ERR);
    check("rdmaSyncFetchAdd",
          rdmaSyncFetchAdd(conn, windows[owner].addr + 8 * (uint64_t)(bin % BINS), windows[owner].rkey, 1, NULL));
  }
  MPI_Barrier(MPI_COMM_WORLD);

  uint64_t mine = 0, all = 0;
  for (int bin = 0; bin < BINS; ++bin) mine += ((const uint64_t*)memory->addr)[bin];
  MPI_Reduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  if (mpi->rank == 0) printf("%d ranks counted %lu numbers\n", mpi->size, (unsigned long)all);
  free(windows);
  check("rdmaMpiStop", rdmaMpiStop(mpi));
  MPI_Finalize();
  return 0;
}
