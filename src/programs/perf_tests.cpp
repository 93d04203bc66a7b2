#include "programs/perf_tests.hpp"

#include "base/check.hpp"

#include <array>

namespace verbena::programs {
namespace {

using enum PerfBy;
using enum PerfPace;

constexpr std::uint32_t kKi = 1024, kWord = 8, kMost = kPerfMostWindow, kMessageMost = kPerfMostMessage;

constexpr std::array kTests{
    PerfTestFacts{"read", "blocking reads of the server's memory", kWindow, kCall, kWord, kMost, 10'000},
    PerfTestFacts{"write", "blocking writes to the server's memory", kWindow, kCall, kWord, kMost, 10'000},
    PerfTestFacts{"pingpong", "writes to and fro, seen by polling memory", kWindow, kPingPong, kWord, kMost, 10'000},
    PerfTestFacts{"message", "messages to and fro", kMessages, kPingPong, kWord, kMessageMost, 10'000, 1, "send"},
    PerfTestFacts{"write-imm", "writes with an immediate to and fro", kWindow, kPingPong, kWord, kMost, 10'000},
    PerfTestFacts{"fetch-add", "blocking fetch-and-add on a word of the server's", kWindow, kCall, kWord, kWord,
                  10'000},
    PerfTestFacts{"compare-swap", "blocking compare-and-swap on a word of the server's", kWindow, kCall, kWord, kWord,
                  10'000},
    PerfTestFacts{"pa-read", "blocking reads of the server's memory by physical address", kPhysical, kCall, kWord,
                  kMessageMost, 10'000},
    PerfTestFacts{"pa-write", "blocking writes to the server's memory by physical address", kPhysical, kCall, kWord,
                  kMessageMost, 10'000},
    PerfTestFacts{"read-bw", "reads, several in flight", kWindow, kPipelined, 64 * kKi, kMost, 10'000, 16},
    PerfTestFacts{"write-bw", "writes, several in flight", kWindow, kPipelined, 64 * kKi, kMost, 10'000, 32},
    PerfTestFacts{"write-imm-bw", "writes with an immediate in a stream", kWindow, kStream, 64 * kKi, kMost, 10'000},
    PerfTestFacts{"message-bw", "messages in a stream, as fast as the server takes them", kMessages, kStream, kWord,
                  kMessageMost, 1'000'000, 1, "send-bw"},
    PerfTestFacts{"fetch-add-bw", "fetch-and-add on a word of the server's, several in flight", kWindow, kPipelined,
                  kWord, kWord, 10'000, 16},
    PerfTestFacts{"compare-swap-bw", "compare-and-swap on a word of the server's, several in flight", kWindow,
                  kPipelined, kWord, kWord, 10'000, 16},
    PerfTestFacts{"line", "the machine's limit: a cache line to and fro between two cpus", kNothing, kPingPong, kWord,
                  kWord, 200'000},
    PerfTestFacts{"memcpy", "the machine's limit: memcpy of a block", kNothing, kCall, kKi* kKi, kMost, 2'000},
    PerfTestFacts{"wake", "the machine's limit: waking a thread that sleeps on an eventfd", kNothing, kPingPong, kWord,
                  kWord, 1'000},
};
static_assert(kTests.size() == static_cast<std::size_t>(PerfTest::kWake) + 1);

}  // namespace

std::span<const PerfTestFacts> perf_tests() noexcept { return kTests; }

const PerfTestFacts& facts_of(PerfTest test) noexcept {
  VERBENA_CHECK(static_cast<std::size_t>(test) < kTests.size());
  return kTests[static_cast<std::size_t>(test)];
}

}  // namespace verbena::programs
