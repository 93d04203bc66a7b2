// Started by mpirun: launched_mpi MODE, as at the end. launched.py looks at what they print.
#include "launched.hpp"

#include <verbena/mesh_mpi.hpp>

namespace {

bool gathering_fails = false;

}  // namespace

// MPI's profiling interface lets a program take the place of a call.
extern "C" int MPI_Iallgather(const void* send, int send_count, MPI_Datatype send_type, void* receive,
                              int receive_count, MPI_Datatype receive_type, MPI_Comm comm, MPI_Request* request) {
  if (gathering_fails) return MPI_ERR_NO_MEM;
  return PMPI_Iallgather(send, send_count, send_type, receive, receive_count, receive_type, comm, request);
}

namespace verbena::mesh::test {
namespace {

Result<std::unique_ptr<Carrier>> of_all(Options& options) { return mpi_carrier(MPI_COMM_WORLD, options); }

Blob blob_of(unsigned id) {
  Blob blob;
  blob.fill(static_cast<std::byte>(id + 1));
  return blob;
}

/// Process 1 gathers after the others have given up.
int be_late() {
  Options options;
  const auto carrier = of_all(options);
  VERBENA_EXPECT(carrier, "%s", carrier.error().text());
  if (options.id == 1) MPI_Barrier(MPI_COMM_WORLD);
  const auto published = (*carrier)->publish(options.id, blob_of(options.id), Deadline::after(200ms));
  VERBENA_EXPECT(!published && published.error().status() == Status::kTimedOut, "process 1 was not late");
  if (options.id != 1) MPI_Barrier(MPI_COMM_WORLD);
  std::printf("process %u of %u saw it\n", options.id, options.processes);
  return 0;
}

int refuse() {
  Options options;
  const auto none = mpi_carrier(MPI_COMM_NULL, options);
  VERBENA_EXPECT(!none && none.error().status() == Status::kBadArgument, "MPI_COMM_NULL was taken");

  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 0, &between);
  const auto inter = mpi_carrier(between, options);
  VERBENA_EXPECT(!inter && inter.error().status() == Status::kBadArgument, "an intercommunicator was taken");

  // Half of the processes are a mesh of their own, with ids of their own.
  const auto carrier = mpi_carrier(half, options);
  VERBENA_EXPECT(carrier && options.processes == 2 && options.id == static_cast<unsigned>(rank) / 2, "ids of a half");
  gathering_fails = true;
  const auto failed = (*carrier)->publish(options.id, blob_of(options.id), launch_patience());
  gathering_fails = false;
  VERBENA_EXPECT(!failed && failed.error().status() == Status::kSystem, "MPI's error is not told");
  char why[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(MPI_ERR_NO_MEM, why, &length);
  VERBENA_EXPECT(std::string_view(failed.error().text()).find(why) != std::string_view::npos, "\"%s\" lacks \"%s\"",
                 failed.error().text(), why);

  // MPI goes on after its error.
  const auto published = (*carrier)->publish(options.id, blob_of(options.id), launch_patience());
  VERBENA_EXPECT(published, "%s", published.error().text());
  for (unsigned id = 0; id < options.processes; ++id)
    VERBENA_EXPECT((*carrier)->find(id).value_or(Blob{}) == blob_of(id), "the blob of %u is another", id);
  const auto stranger = (*carrier)->find(2);
  VERBENA_EXPECT(!stranger && stranger.error().status() == Status::kBadArgument, "there is a process 2 of 2");
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
  std::printf("process %d of 4 saw it\n", rank);
  return 0;
}

int run(std::string_view mode) {
  if (mode == "join") return join(of_all);
  if (mode == "twice") return join(of_all) + join(of_all);
  if (mode == "late") return be_late();
  return refuse();
}

int run_all(int argc, char** argv) {
  Options options;
  const auto early = of_all(options);
  VERBENA_EXPECT(!early && early.error().status() == Status::kBadArgument, "a carrier before MPI_Init");
  MPI_Init(&argc, &argv);
  const int code = run(argc > 1 ? argv[1] : "");
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  const auto late = of_all(options);
  VERBENA_EXPECT(!late && late.error().status() == Status::kBadArgument, "a carrier after MPI_Finalize");
  return 0;
}

}  // namespace
}  // namespace verbena::mesh::test

int main(int argc, char** argv) { return verbena::mesh::test::run_all(argc, argv); }
