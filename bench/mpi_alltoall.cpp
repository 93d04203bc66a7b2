// MPI_Alltoall between the processes that mpirun starts: what compare.sh puts the mesh beside.
// usage: mpi_alltoall BYTES ROUNDS WARM-UP     process 0 prints JSON: the mean of a round, in ns
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void run_rounds(long rounds, const std::vector<char>& from, std::vector<char>& to, int bytes) {
  for (long i = 0; i < rounds; ++i)
    MPI_Alltoall(from.data(), bytes, MPI_CHAR, to.data(), bytes, MPI_CHAR, MPI_COMM_WORLD);
}

}  // namespace

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  int processes = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int bytes = count == 4 ? std::atoi(arguments[1]) : 0;
  const long rounds = count == 4 ? std::atol(arguments[2]) : 0;
  if (bytes <= 0 || rounds <= 0) {
    std::fputs("usage: mpi_alltoall BYTES ROUNDS WARM-UP\n", stderr);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const std::size_t all = static_cast<std::size_t>(bytes) * static_cast<std::size_t>(processes);
  const std::vector<char> from(all, static_cast<char>(rank));
  std::vector<char> to(all);
  run_rounds(std::atol(arguments[3]), from, to, bytes);
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  run_rounds(rounds, from, to, bytes);
  const double mine = MPI_Wtime() - start;
  double longest = 0;
  MPI_Reduce(&mine, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  for (int i = 0; i < processes; ++i) {
    if (to[static_cast<std::size_t>(i) * static_cast<std::size_t>(bytes)] == static_cast<char>(i)) continue;
    std::fputs("mpi_alltoall: the bytes are not those of the other process\n", stderr);
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  for (int i = 0; i < length; ++i)
    if (version[i] == ',' || version[i] == '"' || version[i] == '\\') version[i] = '\0';
  if (rank == 0)
    std::printf("{\"ns\":%.3f,\"processes\":%d,\"mpi\":\"%s\"}\n", longest * 1e9 / static_cast<double>(rounds),
                processes, version);
  MPI_Finalize();
  return 0;
}
