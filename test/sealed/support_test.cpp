// The counters themselves: each kind of allocation is seen, and each system call, of this thread and of others.
#include "sealed.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

namespace verbena::test {
namespace {

/// What `body` makes this thread allocate. The compiler may leave out pairs of new and delete that it writes itself,
/// never calls of ::operator new: the body must call that.
template <class Body>
[[nodiscard]] Allocations made_by(Body&& body) {
  const Allocations before = thread_allocations();
  const Allocations all_before = process_allocations();
  body();
  const Allocations made = thread_allocations() - before;
  EXPECT_EQ(process_allocations() - all_before, made);
  return made;
}
[[nodiscard]] Allocations exactly(std::initializer_list<Allocation> kinds) {
  Allocations counts;
  for (const Allocation kind : kinds) ++counts.counts[static_cast<std::size_t>(kind)];
  return counts;
}

// Against what the compiler knows of malloc.
void* volatile kept = nullptr;
[[nodiscard]] void* keep(void* memory) {
  kept = memory;
  return kept;
}

TEST(AllocationCounts, SeeEveryKind) {
  VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
  constexpr std::align_val_t kLine{64};
  using enum Allocation;
  EXPECT_EQ(made_by([] { ::operator delete(::operator new(1)); }), exactly({kNew, kDelete}));
  EXPECT_EQ(made_by([] { ::operator delete[](::operator new[](1), 1); }), exactly({kNew, kDelete}));
  EXPECT_EQ(made_by([&] { ::operator delete(::operator new(1, kLine), kLine); }), exactly({kNew, kDelete}));
  EXPECT_EQ(made_by([&] { ::operator delete[](::operator new[](1, kLine), 1, kLine); }), exactly({kNew, kDelete}));
  EXPECT_EQ(made_by([] { ::operator delete(::operator new(1, std::nothrow), std::nothrow); }),
            exactly({kNew, kDelete}));
  EXPECT_EQ(made_by([] { ::operator delete[](::operator new[](1, std::nothrow), std::nothrow); }),
            exactly({kNew, kDelete}));
  EXPECT_EQ(made_by([&] { ::operator delete(::operator new(1, kLine, std::nothrow), kLine, std::nothrow); }),
            exactly({kNew, kDelete}));
  EXPECT_EQ(made_by([] { std::free(keep(std::malloc(8))); }), exactly({kMalloc, kFree}));
  EXPECT_EQ(made_by([] { std::free(keep(std::calloc(1, 8))); }), exactly({kCalloc, kFree}));
  EXPECT_EQ(made_by([] { std::free(keep(std::realloc(std::malloc(8), 800))); }), exactly({kMalloc, kRealloc, kFree}));
  EXPECT_EQ(made_by([] { std::free(keep(std::aligned_alloc(64, 64))); }), exactly({kAligned, kFree}));
  EXPECT_EQ(made_by([] {
              void* memory = nullptr;
              if (posix_memalign(&memory, 64, 64) == 0) std::free(keep(memory));
            }),
            exactly({kAligned, kFree}));
  EXPECT_EQ(made_by([] {
              void* const memory = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              (void)munmap(mremap(memory, 4096, 8192, MREMAP_MAYMOVE), 8192);
            }),
            exactly({kMap, kMap, kUnmap}));
  EXPECT_EQ(made_by([] { std::vector<int> grows(1000); }).of(kNew), 1u) << "of a library";
}

TEST(AllocationCounts, TellThreadsApartAndAddThemUp) {
  VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
  const Allocations mine = thread_allocations();
  const Allocations all = process_allocations();
  std::uint64_t theirs = 0;
  std::thread other([&] {
    const Allocations before = thread_allocations();
    for (int i = 0; i < 10; ++i) ::operator delete(::operator new(1));
    theirs = (thread_allocations() - before).total();
  });
  other.join();
  EXPECT_EQ(theirs, 20u);
  EXPECT_LT((thread_allocations() - mine).total(), 20u);
  EXPECT_GE((process_allocations() - all).total(), 20u);
}

// Named as the library names them.
TEST(AllocationCounts, TellAcceptorsApart) {
  VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
  const auto counted_of = [](const char* name) {
    Allocations counted;
    std::thread other([&] {
      ASSERT_EQ(pthread_setname_np(pthread_self(), name), 0);
      const Allocations before = process_allocations();
      ::operator delete(::operator new(1));
      counted = process_allocations() - before;
    });
    other.join();
    return counted;
  };
  EXPECT_EQ(counted_of("verbena-accept"), Allocations{});
  EXPECT_EQ(counted_of("verbena-poll"), exactly({Allocation::kNew, Allocation::kDelete}));
}

TEST(AllocationCounts, LiveBytesComeAndGo) {
  VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
  const std::int64_t before = live_heap_bytes();
  void* memory = ::operator new(1000);
  EXPECT_GE(live_heap_bytes(), before + 1000);
  ::operator delete(memory);
  EXPECT_EQ(live_heap_bytes(), before);
  kept = std::malloc(100);
  void* const larger = std::realloc(kept, 10'000);
  ASSERT_NE(larger, nullptr);
  kept = larger;
  EXPECT_GE(live_heap_bytes(), before + 10'000);
  std::free(kept);
  EXPECT_EQ(live_heap_bytes(), before);
}

TEST(SystemCalls, AreSeenInEveryThread) {
  if (!why_not_watched.empty()) GTEST_SKIP() << why_not_watched;
  SystemCallSection::begin();
  SystemCallSection::end();
  EXPECT_EQ(SystemCallSection::count(), 0u) << "the section itself makes none";
  SystemCallSection::begin();
  (void)syscall(SYS_getppid);
  SystemCallSection::end();
  ASSERT_EQ(SystemCallSection::count(), 1u);
  EXPECT_EQ(SystemCallSection::calls()[0], (SystemCall{.number = SYS_getppid, .thread = gettid()}));

  std::atomic<int> step = 0;
  pid_t id = 0;
  std::thread other([&] {
    id = gettid();
    step = 1;
    while (step != 2) {}
    (void)syscall(SYS_getppid);
    step = 3;
    while (step != 4) {}
  });
  while (step != 1) {}
  SystemCallSection::begin();
  step = 2;
  while (step != 3) {}
  SystemCallSection::end();
  step = 4;
  other.join();
  ASSERT_EQ(SystemCallSection::count(), 1u);
  EXPECT_EQ(SystemCallSection::calls()[0], (SystemCall{.number = SYS_getppid, .thread = id}));
}

}  // namespace
}  // namespace verbena::test

int main(int argc, char** argv) {
  // The first thing, so that every thread is watched. Under a sanitizer nothing is counted anyway.
  verbena::test::why_not_watched = verbena::test::why_allocations_are_not_counted() == nullptr
                                       ? verbena::test::watch_system_calls()
                                       : "nothing is counted under a sanitizer";
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
