// Rules about threads that debug builds check: whoever breaks one does not get far. ThreadSanitizer may be first.
#include "typed_fixture.hpp"

#include <thread>

namespace verbena::typed {
namespace {

class TypedThreads : public TypedTest {
 protected:
  void SetUp() override {
#ifdef NDEBUG
    GTEST_SKIP() << "release builds check nothing here";
#else
    // A process of its own, which has the threads of this one.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    TypedTest::SetUp();
#endif
  }
};

TEST_F(TypedThreads, AnOperationIsOneThreadsAtATime) {
  auto region = region_of<std::uint64_t>(10);
  EXPECT_DEATH(
      {
        // No message comes.
        auto receiving = peer.start_receive(taken(region));
        const Deadline limit = patience();
        const std::jthread other([&] { (void)receiving.wait(limit); });
        while (!limit.passed()) (void)receiving.poll();
      },
      "this_thread|ThreadSanitizer: data race");
}

TEST_F(TypedThreads, AnOperationIsNotDestroyedWhileAnotherThreadWaits) {
  auto region = region_of<std::uint64_t>(10);
  EXPECT_DEATH(
      {
        auto receiving = std::optional(link.start_receive(taken(region)));
        const Deadline limit = patience();
        // Again where this thread was in a call.
        const std::jthread other([&] {
          while (!limit.passed()) (void)receiving->wait(limit);
        });
        // The link is busy once the other thread waits.
        while (link.start_receive(Segment<std::uint64_t>()).status() != Status::kBusy && !limit.passed()) continue;
        receiving.reset();
      },
      "this_thread|ThreadSanitizer: data race");
}

TEST_F(TypedThreads, AConnectionIsNotClosedUnderACallOfAnotherThread) {
  std::array<std::byte, 8> bytes;
  std::array<std::byte, 8> others;
  EXPECT_DEATH(
      {
        rdma::Connection& connection = link.unsafe_connection();
        const Deadline limit = patience();
        // Again where this thread was in a call.
        const std::jthread other([&] {
          while (!limit.passed()) (void)connection.receive(others, limit);
        });
        while (!limit.passed()) {
          const auto received = connection.receive(bytes, Deadline::now());
          if (!received && received.error() == Status::kBusy) break;
        }
        connection.close();
      },
      "is_alone|ThreadSanitizer: data race");
}

}  // namespace
}  // namespace verbena::typed
