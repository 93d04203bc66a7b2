// What one thread uses at a time: it may come again, others may come afterwards, and a debug build finds two.
#include "base/one_at_a_time.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <type_traits>

namespace verbena {
namespace {

TEST(OneAtATime, OneThreadComesAgainAndOthersAfterwards) {
  OneAtATime used;
  {
    const OneAtATime::Use outer(used);
    { const OneAtATime::Use inner(used); }
    used.check();
  }
  std::thread([&] { const OneAtATime::Use other(used); }).join();
  used.check();
}

TEST(OneAtATime, ASecondThreadEndsTheProcess) {
#ifdef NDEBUG
  static_assert(std::is_empty_v<OneAtATime>);
  GTEST_SKIP() << "release builds check nothing here";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  OneAtATime used;
  const OneAtATime::Use mine(used);
  EXPECT_DEATH(std::thread([&] { const OneAtATime::Use other(used); }).join(), "this_thread");
  EXPECT_DEATH(std::thread([&] { used.check(); }).join(), "this_thread");
#endif
}

}  // namespace
}  // namespace verbena
