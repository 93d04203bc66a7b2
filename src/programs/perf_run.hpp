// The client's end of a run of verbena-perf: its connections, and what is measured on them.
#pragma once

#include "programs/perf.hpp"

#include <verbena/rdma.hpp>

#include <memory>
#include <vector>

namespace verbena::programs {

/// One connection that is measured, with what its operations take.
struct PerfPeer {
  std::unique_ptr<rdma::Connection> connection;
  rdma::Memory own;              ///< This side's operations are from here, or to here,
  rdma::Local local;             ///< all of it.
  rdma::Remote remote;           ///< Where they are in the server's window,
  rdma::Physical physical;       ///< or by physical address.
  std::vector<std::byte> inbox;  ///< Answers are received here.
  std::uint32_t in_flight = 0;

  /// What the next messages ask for.
  void ask_for(perf_wire::Ask ask) noexcept { local.bytes().front() = static_cast<std::byte>(ask); }
};

struct PerfRun {
  perf_wire::Serving serving = perf_wire::Serving::kHandler;
  std::vector<PerfPeer> peers;  ///< The first thread's, then the next one's.
};

/// Connects, and asks the server for a run. Errors: those of rdma::Connection::connect; kRejected with the server's
/// reason; kProtocol, kTimedOut. \thread main
[[nodiscard]] Result<PerfRun> open_run(const PerfArguments& arguments, std::uint32_t bytes);
/// Runs the arguments' test on all connections, each thread's in a thread of its own, and adds what they measured to
/// `result`. Errors: kLimit (threads), kBadArgument (a cpu), and why the run broke. \thread main
[[nodiscard]] Result<void> measure_run(PerfRun& run, PerfResult& result);
/// Tells the server that this was all; its answer, where one comes in time, goes to `result`. \thread main
void end_run(PerfRun& run, PerfResult& result) noexcept;

}  // namespace verbena::programs
