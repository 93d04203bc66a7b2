// The client's end of a run of verbena-perf: its connections and the measurements on them.
#pragma once

#include "programs/perf.hpp"

#include <verbena/rdma.hpp>

#include <memory>
#include <vector>

namespace verbena::programs {

/// One measured connection, with the memory of its operations.
struct PerfPeer {
  std::unique_ptr<rdma::Connection> connection;
  rdma::Memory own;              ///< This side's operations read and write this memory,
  rdma::Local local;             ///< all of it.
  rdma::Remote remote;           ///< Their place in the server's window,
  rdma::Physical physical;       ///< or by physical address.
  std::vector<std::byte> inbox;  ///< Receives answers.
  std::uint32_t in_flight = 0;

  /// Sets what the next messages ask for.
  void ask_for(perf_wire::Ask ask) noexcept { local.bytes().front() = static_cast<std::byte>(ask); }
};

struct PerfRun {
  perf_wire::Serving serving = perf_wire::Serving::kHandler;
  std::vector<PerfPeer> peers;  ///< The first thread's, then the second one's, and so on.
};

/// Connects and requests a run from the server. Errors: those of rdma::Connection::connect, kRejected with the server's
/// reason, kProtocol, kTimedOut. \thread main
[[nodiscard]] Result<PerfRun> open_run(const PerfArguments& arguments, std::uint32_t bytes);
/// Runs the test on all connections, each thread's in a thread of its own, and adds the measurements to `result`.
/// Errors: kLimit (threads), kBadArgument (a cpu), and the reason why the run broke. \thread main
[[nodiscard]] Result<void> measure_run(PerfRun& run, PerfResult& result);
/// Tells the server that the run is over; its answer, if it comes in time, goes into `result`. \thread main
void end_run(PerfRun& run, PerfResult& result) noexcept;

}  // namespace verbena::programs
