#include "programs/perf_tests.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <array>

namespace verbena::programs {
namespace {

constexpr std::uint32_t kKi = 1024;
constexpr std::uint32_t kLinkMost = 64 * kKi * kKi;
constexpr std::uint32_t kMessageMost = 16 * kKi;  // The channel's limit of an eager message.
constexpr std::uint32_t kLargeMost = kKi * kKi;   // The lease holds many.
constexpr std::uint32_t kWord = 8;

constexpr PerfBy kNothing = PerfBy::kNothing, kLink = PerfBy::kLink, kPhysical = PerfBy::kPhysical,
                 kChannel = PerfBy::kChannel;
constexpr PerfPace kCall = PerfPace::kCall, kToAndFro = PerfPace::kPingPong, kPipelined = PerfPace::kPipelined;

// In the order of the help.
constexpr std::array<PerfTestFacts, 19> kTests{{
    {PerfTest::kRead, "read", "blocking reads of the server's memory", kLink, kCall, false, 8, kLinkMost, 1, 10'000},
    {PerfTest::kWrite, "write", "blocking writes to the server's memory", kLink, kCall, false, 8, kLinkMost, 1, 10'000},
    {PerfTest::kPingPong, "pingpong", "writes to and fro, seen by polling memory", kLink, kToAndFro, true, 8, kLinkMost,
     1, 10'000},
    {PerfTest::kMessage, "message", "messages to and fro", kChannel, kToAndFro, true, 8, kMessageMost, 1, 10'000,
     "send"},
    {PerfTest::kWriteImm, "write-imm", "writes with an immediate to and fro", kLink, kToAndFro, true, 8, kLinkMost, 1,
     10'000},
    {PerfTest::kFetchAdd, "fetch-add", "blocking fetch-and-add on a word of the server's", kLink, kCall, false, kWord,
     kWord, 1, 10'000},
    {PerfTest::kCompareSwap, "compare-swap", "blocking compare-and-swap on a word of the server's", kLink, kCall, false,
     kWord, kWord, 1, 10'000},
    {PerfTest::kPaRead, "pa-read", "blocking reads of the server's memory by physical address", kPhysical, kCall, false,
     8, kLinkMost, 1, 10'000},
    {PerfTest::kPaWrite, "pa-write", "blocking writes to the server's memory by physical address", kPhysical, kCall,
     false, 8, kLinkMost, 1, 10'000},
    {PerfTest::kReadBw, "read-bw", "reads, several in flight", kLink, kPipelined, false, 64 * kKi, kLinkMost, 16,
     10'000},
    {PerfTest::kWriteBw, "write-bw", "writes, several in flight", kLink, kPipelined, false, 64 * kKi, kLinkMost, 32,
     10'000},
    {PerfTest::kWriteImmBw, "write-imm-bw", "writes with an immediate, several in flight", kLink, kPipelined, true,
     64 * kKi, kLinkMost, 32, 10'000},
    {PerfTest::kFetchAddBw, "fetch-add-bw", "fetch-and-add, several in flight", kLink, kPipelined, false, kWord, kWord,
     16, 100'000},
    {PerfTest::kCompareSwapBw, "compare-swap-bw", "compare-and-swap, several in flight", kLink, kPipelined, false,
     kWord, kWord, 16, 100'000},
    {PerfTest::kMessageBw, "message-bw", "messages in a stream, as fast as the server takes them", kChannel, kPipelined,
     true, 8, kMessageMost, 64, 1'000'000, "send-bw"},
    {PerfTest::kLargeBw, "large-bw", "large messages into the server's lease, several in flight", kChannel, kPipelined,
     true, 64 * kKi, kLargeMost, 32, 10'000},
    {PerfTest::kLine, "line", "the machine's limit: a cache line to and fro between two cpus", kNothing, kToAndFro,
     false, kWord, kWord, 1, 200'000},
    {PerfTest::kMemcpy, "memcpy", "the machine's limit: memcpy of a block", kNothing, kCall, false, kKi* kKi, kLinkMost,
     1, 2'000},
    {PerfTest::kWake, "wake", "the machine's limit: waking a thread that sleeps on an eventfd", kNothing, kToAndFro,
     false, kWord, kWord, 1, 1'000},
}};

}  // namespace

std::span<const PerfTestFacts> perf_tests() noexcept { return kTests; }

const PerfTestFacts* find_perf_test(PerfTest test) noexcept {
  const auto* const found = std::ranges::find(kTests, test, &PerfTestFacts::test);
  return found == kTests.end() ? nullptr : found;
}

const PerfTestFacts& facts_of(PerfTest test) noexcept {
  const PerfTestFacts* facts = find_perf_test(test);
  VERBENA_CHECK(facts != nullptr);
  return *facts;
}

const char* to_string(PerfTest test) noexcept {
  const PerfTestFacts* facts = find_perf_test(test);
  return facts == nullptr ? "unknown" : facts->name;
}

}  // namespace verbena::programs
