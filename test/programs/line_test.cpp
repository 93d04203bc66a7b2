#include "programs/line.hpp"

#include "result.hpp"

#include <algorithm>
#include <vector>

namespace verbena::programs {
namespace {

TEST(Median, TakesTheMiddle) {
  EXPECT_EQ(median({}), 0.0);
  EXPECT_EQ(median({3.0}), 3.0);
  EXPECT_EQ(median({9.0, 1.0, 5.0}), 5.0);
  EXPECT_EQ(median({4.0, 1.0, 3.0, 2.0}), 2.0);
}

TEST(Line, NeedsTwoCpus) {
  const unsigned cpu = allowed_cpus().front();
  EXPECT_STATUS(measure_line(cpu, cpu, std::chrono::milliseconds{1}), Status::kUnsupported);
}

TEST(Line, CpusAreDistinct) {
  std::vector<unsigned> cpus = allowed_cpus();
  ASSERT_FALSE(cpus.empty());
  std::ranges::sort(cpus);
  EXPECT_EQ(std::ranges::adjacent_find(cpus), cpus.end());
}

TEST(Line, MeasuresBetweenTwoCpus) {
  const std::vector<unsigned> cpus = allowed_cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "needs two cpus, and this process may run on one";
  const auto line = measure_line(cpus.front(), cpus.back(), std::chrono::milliseconds{5});
  ASSERT_OK(line);
  EXPECT_EQ(line->first_cpu, cpus.front());
  EXPECT_EQ(line->second_cpu, cpus.back());
  // Light needs longer than this for a millimetre: zero would mean that nothing was measured.
  EXPECT_GT(line->one_way_ns, 0.01);
}

TEST(Line, RefusesACpuThatIsNotThere) {
  constexpr unsigned kNoSuchCpu = 1'000'000;
  EXPECT_FALSE(measure_line(allowed_cpus().front(), kNoSuchCpu, std::chrono::milliseconds{1}));
}

TEST(Memcpy, HasARate) {
  EXPECT_GT(measure_memcpy(std::size_t{64} << 10, {}, std::chrono::milliseconds{1}), 0.0);
  EXPECT_GT(measure_memcpy(std::size_t{64} << 10, {.sources = 4, .targets = 3}, std::chrono::milliseconds{1}), 0.0);
}

}  // namespace
}  // namespace verbena::programs
