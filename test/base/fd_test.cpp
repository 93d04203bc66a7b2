#include "base/fd.hpp"

#include "cancelled.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

namespace verbena {
namespace {

using test::runs_while_cancelled;

// They are noexcept, and the data path reaches some of them: a cancellation inside would end the process.
TEST(Fd, NoCallIsACancellationPoint) {
  auto event = make_eventfd();
  ASSERT_OK(event);
  const int fd = event->get();
  EXPECT_TRUE(runs_while_cancelled([fd] { signal_eventfd(fd); }));
  EXPECT_TRUE(runs_while_cancelled([fd] { EXPECT_TRUE(is_signalled(fd)); }));
  EXPECT_TRUE(runs_while_cancelled([fd] { EXPECT_TRUE(wait_readable(fd, Deadline::now())); }));
  EXPECT_TRUE(runs_while_cancelled([fd] { EXPECT_TRUE(drain_eventfd(fd)); }));
  EXPECT_TRUE(runs_while_cancelled([&] { event->reset(); }));
  EXPECT_FALSE(*event);
}

}  // namespace
}  // namespace verbena
