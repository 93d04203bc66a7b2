/// \file
/// A mesh of the processes of an MPI communicator. The archive has no part of it, because the ABIs of MPIs differ: you
/// compile this header with your MPI.
#pragma once

#include <verbena/mesh.hpp>

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace verbena::mesh {

namespace detail {

[[nodiscard]] inline Result<void> mpi_result(const char* call, int code) {
  if (code == MPI_SUCCESS) return {};
  char why[MPI_MAX_ERROR_STRING] = "an unknown error";
  int length = 0;
  (void)MPI_Error_string(code, why, &length);
  char text[Error::kTextBytes];
  const int written = std::snprintf(
      text, sizeof text, "MPI cannot gather the blobs: %s; check that all ranks of the communicator still run", why);
  return std::unexpected(Error(Status::kSystem, call, 0, written > 0 ? text : why));
}

/// The carrier that mpi_carrier returns.
class MpiCarrier final : public Carrier {
 public:
  /// `comm` is the user's communicator, with `processes` processes.
  MpiCarrier(MPI_Comm comm, unsigned processes)
      : comm_(comm), gathered_(gather_carrier(processes, &MpiCarrier::gather, this)) {}
  MpiCarrier(const MpiCarrier&) = delete;
  MpiCarrier& operator=(const MpiCarrier&) = delete;

  Result<void> publish(unsigned id, const Blob& blob, Deadline deadline) override {
    deadline_ = deadline;
    return gathered_->publish(id, blob, deadline);
  }
  Result<Blob> find(unsigned id) override { return gathered_->find(id); }

 private:
  /// MPI reads and writes these until its calls are complete.
  struct Buffers {
    Blob mine;
    std::vector<Blob> all;
    MPI_Comm comm = MPI_COMM_NULL;  ///< A duplicate, so that messages and errors do not mix with the user's.
    MPI_Request request = MPI_REQUEST_NULL;
  };

  // Uses the nonblocking calls, because MPI_Comm_dup and MPI_Allgather have no deadline.
  static Result<void> gather(const Blob& mine, std::span<Blob> all, void* context) {
    const MpiCarrier& self = *static_cast<const MpiCarrier*>(context);
    auto buffers = std::make_unique<Buffers>(mine, std::vector<Blob>(all.size()));
    auto done = self.finish(buffers, "MPI_Comm_idup", MPI_Comm_idup(self.comm_, &buffers->comm, &buffers->request));
    if (!done) return done;
    (void)MPI_Comm_set_errhandler(buffers->comm, MPI_ERRORS_RETURN);
    done = self.finish(buffers, "MPI_Iallgather",
                       MPI_Iallgather(buffers->mine.data(), static_cast<int>(kBlobBytes), MPI_BYTE, buffers->all.data(),
                                      static_cast<int>(kBlobBytes), MPI_BYTE, buffers->comm, &buffers->request));
    if (!buffers) return done;
    (void)MPI_Comm_free(&buffers->comm);
    if (done) std::ranges::copy(buffers->all, all.begin());
    return done;
  }

  /// Waits for the request that `call` has started. Leaves `buffers` to MPI when the deadline passes, because MPI can't
  /// cancel a collective call.
  [[nodiscard]] Result<void> finish(std::unique_ptr<Buffers>& buffers, const char* call, int started) const {
    auto result = mpi_result(call, started);
    for (int is_complete = 0; result && is_complete == 0;) {
      result = mpi_result(call, MPI_Test(&buffers->request, &is_complete, MPI_STATUS_IGNORE));
      if (!result || is_complete != 0) break;
      if (deadline_.passed()) {
        (void)buffers.release();
        return std::unexpected(Error(Status::kTimedOut, call, 0,
                                     "not all ranks of the communicator have called Mesh::join in time: let all of "
                                     "them join, or raise join_timeout"));
      }
      (void)sched_yield();
    }
    return result;
  }

  const MPI_Comm comm_;
  Deadline deadline_ = Deadline::now();
  const std::unique_ptr<Carrier> gathered_;
};

}  // namespace detail

/// A carrier by MPI_Iallgather, for Mesh::join in all processes of an intracommunicator. Sets Options::id to the rank
/// and Options::processes to the size. Keep `comm` until Mesh::join returns; Mesh::join gathers on a duplicate of it,
/// which it frees. Only Mesh::join calls MPI, in the thread that calls it, so the mesh may outlive MPI_Finalize. If a
/// process does not join, Mesh::join in the others returns kTimedOut: end the job by MPI_Abort then, because MPI still
/// waits for that process. Errors here: kBadArgument. Errors of Mesh::join: kSystem (what MPI says), kTimedOut. If the
/// duplication fails, MPI calls the error handler of `comm`. \thread as MPI was initialized for \alloc setup
[[nodiscard]] inline Result<std::unique_ptr<Carrier>> mpi_carrier(MPI_Comm comm, Options& options) {
  const auto refuse = [](const char* why) {
    return std::unexpected(Error(Status::kBadArgument, "mpi_carrier", 0, why));
  };
  int is_running = 0, is_over = 0, is_inter = 0, rank = 0, size = 0;
  (void)MPI_Initialized(&is_running);
  (void)MPI_Finalized(&is_over);
  if (is_running == 0 || is_over != 0) return refuse("MPI is not running: call it between MPI_Init and MPI_Finalize");
  if (comm == MPI_COMM_NULL) return refuse("comm must not be MPI_COMM_NULL");
  (void)MPI_Comm_test_inter(comm, &is_inter);
  if (is_inter != 0) return refuse("comm is an intercommunicator: merge it first by MPI_Intercomm_merge");
  (void)MPI_Comm_rank(comm, &rank);
  (void)MPI_Comm_size(comm, &size);
  options.id = static_cast<unsigned>(rank);
  options.processes = static_cast<unsigned>(size);
  return std::make_unique<detail::MpiCarrier>(comm, options.processes);
}

}  // namespace verbena::mesh

#pragma GCC visibility pop
