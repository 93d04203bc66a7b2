// The measured part of a run of verbena-perf.
#pragma once

#include "programs/perf.hpp"
#include "programs/perf_end.hpp"

namespace verbena::programs {

/// Runs the arguments' test in all lanes at once, each in a thread of its own, and adds what they measured to
/// `result`. Errors: kLimit (threads), kBadArgument (a cpu), and why the run broke. \thread main
[[nodiscard]] Result<void> measure_lanes(PerfEnd& end, PerfResult& result);
/// What an idle receiver costs, in the calling thread. Errors: why the connection broke.
[[nodiscard]] Result<void> measure_idle(PerfEnd& end, PerfIdle& idle);

/// A test without a peer. \thread main
[[nodiscard]] Result<void> measure_bare(PerfResult& result);

/// What reading the clock takes.
[[nodiscard]] double clock_reading_ns() noexcept;

}  // namespace verbena::programs
