#include "host/arena.hpp"
#include "base/units.hpp"
#include "host/topology.hpp"

#include "child.hpp"
#include "deny.hpp"
#include "pattern.hpp"
#include "process.hpp"
#include "result.hpp"
#include "setting.hpp"
#include "temporary_directory.hpp"

#include <verbena/deadline.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace verbena::host {
namespace {

constexpr char kHugepages[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/";

std::size_t small_page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

/// Fails the test when descriptors or mappings of memfds are more than before.
class ArenaTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(test::open_descriptors(), descriptors_);
    EXPECT_EQ(test::memfd_mappings(), mappings_);
  }
  std::size_t descriptors_ = test::open_descriptors();
  std::size_t mappings_ = test::memfd_mappings();
};

TEST_F(ArenaTest, OfOneByteIsOneZeroedPage) {
  auto arena = Arena::create({.size_bytes = 1});
  ASSERT_OK(arena);
  EXPECT_EQ(arena->size(), small_page());
  EXPECT_EQ(arena->page_report().page_bytes, small_page());
  EXPECT_EQ(arena->page_report().pages, Pages::kSmall);
  EXPECT_STREQ(arena->page_report().reason, "");
  EXPECT_TRUE(test::all_are(arena->bytes(), std::byte{0}));
  EXPECT_TRUE(arena->contains(arena->data(), arena->size()));
  EXPECT_FALSE(arena->contains(arena->data() + 1, arena->size()));
  EXPECT_FALSE(arena->contains(arena->data() - 1, 1));
}

TEST_F(ArenaTest, IsPresentAndWritableAllOver) {
  for (const unsigned threads : {0U, 1U, 3U, 64U}) {
    auto arena = Arena::create({.size_bytes = 40 * kMebi + 5, .share = Share::kReadWrite, .prefault_threads = threads});
    ASSERT_OK(arena);
    EXPECT_EQ(arena->size() % arena->page_report().page_bytes, 0U);
    EXPECT_GE(arena->size(), 40 * kMebi + 5);
    std::vector<unsigned char> present(arena->size() / small_page());
    ASSERT_EQ(mincore(arena->data(), arena->size(), present.data()), 0);
    for (std::size_t i = 0; i < present.size(); ++i) ASSERT_EQ(present[i] & 1, 1) << "page " << i;
    test::fill(arena->bytes(), threads);
    EXPECT_TRUE(test::matches(arena->bytes(), threads));
  }
}

TEST_F(ArenaTest, PagesAreThereAsTheyAreUsedIfAskedForSo) {
  for (const Share share : {Share::kNone, Share::kReadOnly, Share::kReadWrite}) {
    auto arena = Arena::create({.size_bytes = 40 * kMebi + 5, .share = share, .populate = Populate::kAsUsed});
    ASSERT_OK(arena);
    EXPECT_EQ(arena->populate(), Populate::kAsUsed);
    EXPECT_EQ(arena->page_report().pages, Pages::kSmall);
    EXPECT_EQ(arena->page_report().page_bytes, small_page());
    const auto present = [&] {
      std::vector<unsigned char> pages(arena->size() / small_page());
      EXPECT_EQ(mincore(arena->data(), arena->size(), pages.data()), 0);
      return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
    };
    EXPECT_EQ(present(), 0);
    test::fill(arena->bytes().subspan(3 * small_page(), 2 * small_page()), 1);
    EXPECT_EQ(present(), 2);
    EXPECT_TRUE(test::matches(arena->bytes().subspan(3 * small_page(), 2 * small_page()), 1));
    EXPECT_EQ(arena->bytes()[0], std::byte{0});
    const Arena moved = std::move(*arena);
    EXPECT_EQ(moved.populate(), Populate::kAsUsed);
  }
  // More than the machine has: nothing of it is there yet.
  EXPECT_OK(Arena::create({.size_bytes = std::size_t{1} << 39, .populate = Populate::kAsUsed}));
  EXPECT_STATUS(Arena::create({.size_bytes = 4 * kMebi, .huge = HugePolicy::kRequire, .populate = Populate::kAsUsed}),
                Status::kBadArgument);
}

TEST_F(ArenaTest, NamesItsMapping) {
  auto arena = Arena::create({.size_bytes = 1, .name = "a-name-of-more-than-thirty-two-characters"});
  ASSERT_OK(arena);
  EXPECT_EQ(test::memfd_mappings("/memfd:verbena-a-name-of-more-than-thirty-two-c (deleted)"), 1U);
}

TEST_F(ArenaTest, Moves) {
  auto first = Arena::create({.size_bytes = 10'000, .share = Share::kReadOnly});
  auto second = Arena::create({.size_bytes = 20'000});
  ASSERT_OK(first);
  ASSERT_OK(second);
  std::byte* const data = first->data();
  const int fd = first->fd();
  const std::size_t size = first->size();
  Arena moved = std::move(*first);
  EXPECT_EQ(first->data(), nullptr);
  EXPECT_EQ(first->fd(), -1);
  EXPECT_EQ(first->size(), 0U);
  EXPECT_EQ(moved.data(), data);
  *second = std::move(moved);
  EXPECT_EQ(second->data(), data);
  EXPECT_EQ(second->fd(), fd);
  EXPECT_EQ(second->size(), size);
  EXPECT_EQ(second->share(), Share::kReadOnly);
  EXPECT_EQ(test::memfd_mappings(), mappings_ + 1) << "the memory that was assigned to is still there";
  Arena& self = *second;
  *second = std::move(self);
  EXPECT_EQ(second->data(), data);
  data[size - 1] = std::byte{1};
}

TEST_F(ArenaTest, RefusesOptionsThatCannotWork) {
  EXPECT_STATUS(Arena::create({.size_bytes = 0}), Status::kBadArgument);
  EXPECT_STATUS(Arena::create({.size_bytes = (std::size_t{1} << 40) + 1}), Status::kBadArgument);
  EXPECT_STATUS(Arena::create({.size_bytes = ~std::size_t{0}}), Status::kBadArgument);
  EXPECT_STATUS(Arena::create({.size_bytes = 1, .prefault_threads = 65}), Status::kBadArgument);
  for (const unsigned node : {63U, 1023U, 1024U, ~0U})
    EXPECT_STATUS(Arena::create({.size_bytes = 1, .node = node}), Status::kBadArgument);
  EXPECT_STATUS(Arena::create({.size_bytes = 1, .huge = HugePolicy::kRequire, .share = Share::kReadWrite}),
                Status::kBadArgument);
}

TEST_F(ArenaTest, MoreThanTheMachineHasIsAnErrorAndNotTheOomKiller) {
  const auto arena = Arena::create({.size_bytes = std::size_t{1} << 40});
  if (arena) GTEST_SKIP() << "this machine has a TiB to give";
  EXPECT_EQ(arena.error().status(), Status::kNoMemory) << arena.error().text();
}

TEST_F(ArenaTest, BindsToNodeZero) {
  auto arena = Arena::create({.size_bytes = 3 * kMebi, .node = 0});
  if (!arena && arena.error().status() == Status::kPermission) GTEST_SKIP() << arena.error().text();
  ASSERT_OK(arena);
  arena->bytes().back() = std::byte{1};
}

/// The line of numa_maps of the mapping that starts at `address`.
std::string numa_map_of(const void* address) {
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);)
    if (std::strtoull(line.c_str(), nullptr, 16) == reinterpret_cast<std::uintptr_t>(address)) return line;
  return "";
}

TEST_F(ArenaTest, LandsOnTheNodeAskedForAsTheKernelCounts) {
  const auto topology = Topology::read();
  ASSERT_OK(topology);
  if (topology->node_count() < 2) GTEST_SKIP() << "this machine has one NUMA node (scripts/softroce.sh --numa has two)";
  for (unsigned node = 0; node < 2; ++node) {
    for (const Share share : {Share::kNone, Share::kReadOnly, Share::kReadWrite}) {
      const auto arena = Arena::create({.size_bytes = 4 * kMebi, .node = node, .share = share});
      ASSERT_OK(arena);
      const std::string line = numa_map_of(arena->data());
      const std::size_t pages = arena->size() / arena->page_report().page_bytes;
      EXPECT_NE((line + ' ').find(" N" + std::to_string(node) + '=' + std::to_string(pages) + ' '), line.npos) << line;
      EXPECT_EQ(line.find(" N" + std::to_string(1 - node) + '='), line.npos) << line;
    }
  }
}

// ---- Seals, as a peer that got the descriptor would meet them

void expect_sealed_size(const Arena& arena) {
  const auto size = static_cast<off_t>(arena.size());
  EXPECT_EQ(ftruncate(arena.fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(arena.fd(), 2 * size), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(arena.fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
  const int seals = fcntl(arena.fd(), F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_EQ((seals & F_SEAL_FUTURE_WRITE) != 0, arena.share() == Share::kReadOnly);
}

void expect_read_only_for_peers(const Arena& arena) {
  const std::string path = "/proc/self/fd/" + std::to_string(arena.fd());
  for (const int fd : {dup(arena.fd()), open(path.c_str(), O_RDWR | O_CLOEXEC)}) {
    ASSERT_GE(fd, 0);
    EXPECT_EQ(mmap(nullptr, arena.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_EQ(errno, EPERM);
    void* const mapped = mmap(nullptr, arena.size(), PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    EXPECT_EQ(mprotect(mapped, arena.size(), PROT_READ | PROT_WRITE), -1) << "upgraded to writable";
    EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(arena.size())), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(write(fd, "x", 1), -1);
    arena.data()[7] = std::byte{77};
    EXPECT_EQ(static_cast<const std::byte*>(mapped)[7], std::byte{77}) << "not the owner's memory";
    munmap(mapped, arena.size());
    close(fd);
  }
}

TEST_F(ArenaTest, SealsItsSizeWhateverItsShare) {
  for (const Share share : {Share::kNone, Share::kReadOnly, Share::kReadWrite}) {
    auto arena = Arena::create({.size_bytes = 3 * kMebi, .share = share});
    ASSERT_OK(arena);
    EXPECT_EQ(arena->share(), share);
    expect_sealed_size(*arena);
    EXPECT_EQ(fcntl(arena->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
}

TEST_F(ArenaTest, ReadOnlyShareCannotBeWrittenByPeers) {
  auto arena = Arena::create({.size_bytes = 3 * kMebi, .share = Share::kReadOnly});
  ASSERT_OK(arena);
  expect_read_only_for_peers(*arena);
}

TEST_F(ArenaTest, ReadWriteShareSurvivesHoles) {
  auto arena = Arena::create({.size_bytes = 3 * kMebi, .share = Share::kReadWrite});
  ASSERT_OK(arena);
  void* const mapped = mmap(nullptr, arena->size(), PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  static_cast<std::byte*>(mapped)[9] = std::byte{9};
  EXPECT_EQ(arena->data()[9], std::byte{9});
  munmap(mapped, arena->size());
  (void)fallocate(arena->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(arena->size()));
  test::fill(arena->bytes(), 3);
  EXPECT_TRUE(test::matches(arena->bytes(), 3));
}

TEST_F(ArenaTest, AForkedChildHasItsParentsNotMapped) {
  auto arena = Arena::create({.size_bytes = 10'000});
  ASSERT_OK(arena);
  arena->data()[1] = std::byte{5};
  EXPECT_TRUE(test::in_child([&]() -> std::string {
    // msync touches no page: it fails for one that is not mapped.
    if (msync(arena->data(), small_page(), MS_ASYNC) == 0) return "the child has the arena mapped";
    return errno == ENOMEM ? "" : "msync fails for another reason";
  }));
  EXPECT_EQ(arena->data()[1], std::byte{5});
}

// ---- The ladder

TEST_F(ArenaTest, RequiredHugepagesThatAreNotThereNameTheSysctl) {
  // More than can be reserved here: as many bytes as the machine has.
  const std::size_t size = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * small_page();
  const auto arena = Arena::create({.size_bytes = size, .huge = HugePolicy::kRequire});
  EXPECT_STATUS(arena, Status::kLimit);
  ASSERT_FALSE(arena);
  EXPECT_NE(std::strstr(arena.error().text(), "hugepages"), nullptr);
  if (access(kHugepages, F_OK) == 0) {
    const std::string text = arena.error().text();
    EXPECT_TRUE(text.find("vm.nr_hugepages=") != text.npos || text.find("/nr_hugepages") != text.npos) << text;
  }
}

// A rung of the ladder that fails must give back what it mapped and nothing else: another thread may have mapped there.
TEST_F(ArenaTest, HugepagesThatAreNotThereTakeNothingFromOtherThreads) {
  constexpr std::size_t kSize = 6 * kMebi;
  constexpr int kRounds = 4000;
  EXPECT_TRUE(test::in_child([]() -> std::string {
    std::atomic<bool> done = false;
    std::atomic<std::size_t> mapped = 0;
    std::thread neighbour([&] {
      while (!done.load(std::memory_order_relaxed)) {
        void* const at =
            mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) continue;
        for (std::size_t i = 0; i < kSize; i += kSize / 8) static_cast<volatile std::byte*>(at)[i] = std::byte{1};
        munmap(at, kSize);
        mapped.fetch_add(1, std::memory_order_relaxed);
      }
    });
    const Deadline patience = Deadline::after(std::chrono::seconds{10});
    while (mapped.load() == 0 && !patience.passed()) std::this_thread::yield();
    // Where hugepages are free these succeed, and one is enough.
    bool fails = true;
    for (int i = 0; i < kRounds && fails; ++i)
      fails = !Arena::create({.size_bytes = kSize, .huge = HugePolicy::kRequire, .prefault_threads = 1});
    done = true;
    neighbour.join();
    return mapped.load() != 0 ? "" : "the other thread mapped nothing";
  }));
}

TEST_F(ArenaTest, SaysWhyBetterPagesWereNotTaken) {
  auto arena = Arena::create({.size_bytes = 16 * kMebi, .share = Share::kReadWrite});
  ASSERT_OK(arena);
  EXPECT_TRUE(arena->page_report().pages == Pages::kSmall || arena->page_report().pages == Pages::kTransparent);
  EXPECT_NE(std::strstr(arena->page_report().reason, "hugetlb"), nullptr) << arena->page_report().reason;
  EXPECT_EQ(arena->page_report().page_bytes, small_page());
}

std::size_t number(const std::string& text) { return text.empty() ? 0 : std::stoul(text); }

/// Reserves 2 MiB pages on top of those in use; false when this process may not, or the memory is fragmented.
bool reserve(test::Setting& setting, std::size_t pages) {
  const std::string before = setting.read();
  const test::Setting unused(std::string(kHugepages) + "free_hugepages");
  if (before.empty() || !setting.set(std::to_string(number(before) + pages), before)) return false;
  return number(unused.read()) >= pages;
}

// A setting comes back also when the test that made it is killed.
TEST(Settings, ComeBackWhenTheirProcessIsKilled) {
  const test::TemporaryDirectory scratch;
  const std::string path = scratch.path() + "/setting";
  std::ofstream(path) << "12";
  const pid_t victim = ::fork();
  if (victim == 0) {
    test::Setting setting(path);
    if (setting.set("34", "12")) ::kill(::getpid(), SIGKILL);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(victim, &status, 0), victim);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  const test::Setting after(path);
  for (const Deadline deadline = Deadline::after(std::chrono::seconds{60}); after.read() != "12";) {
    ASSERT_FALSE(deadline.passed()) << after.read();
    ::sched_yield();
  }
  {
    test::Setting setting(path);
    ASSERT_TRUE(setting.set("56", "12"));
    EXPECT_EQ(setting.read(), "56");
    ASSERT_TRUE(setting.set("78", "12"));
    EXPECT_EQ(setting.read(), "78");
  }
  EXPECT_EQ(after.read(), "12");
}

TEST_F(ArenaTest, TakesHugepagesThatAreThere) {
  test::Setting reserved(std::string(kHugepages) + "nr_hugepages");
  if (!reserve(reserved, 4)) GTEST_SKIP() << "2 MiB pages cannot be reserved here (root, and free memory, can)";
  for (const auto& options : {ArenaOptions{.size_bytes = 8 * kMebi, .share = Share::kReadOnly},
                              ArenaOptions{.size_bytes = 1, .huge = HugePolicy::kRequire, .share = Share::kReadOnly}}) {
    auto arena = Arena::create(options);
    ASSERT_OK(arena);
    EXPECT_EQ(arena->page_report().pages, Pages::kHuge2M) << arena->page_report().reason;
    EXPECT_EQ(arena->page_report().page_bytes, 2 * kMebi);
    EXPECT_STREQ(arena->page_report().reason, "");
    EXPECT_EQ(arena->size() % (2 * kMebi), 0U);
    EXPECT_TRUE(test::all_are(arena->bytes(), std::byte{0}));
    expect_sealed_size(*arena);
    expect_read_only_for_peers(*arena);
  }
  auto writable = Arena::create({.size_bytes = 8 * kMebi, .share = Share::kReadWrite});
  ASSERT_OK(writable);
  EXPECT_NE(writable->page_report().pages, Pages::kHuge2M) << "peers could punch holes";
}

TEST_F(ArenaTest, BestEffortDoesWithoutHugepagesWhereTheyAreTooFew) {
  test::Setting reserved(std::string(kHugepages) + "nr_hugepages");
  if (!reserve(reserved, 4)) GTEST_SKIP() << "2 MiB pages cannot be reserved here (root, and free memory, can)";
  const std::size_t unused = number(test::Setting(std::string(kHugepages) + "free_hugepages").read());
  if (unused > 256) GTEST_SKIP() << unused << " 2 MiB pages are free, and an arena of more small ones is a lot";
  auto larger = Arena::create({.size_bytes = (unused + 8) * 2 * kMebi, .share = Share::kReadOnly});
  ASSERT_OK(larger);
  EXPECT_NE(larger->page_report().pages, Pages::kHuge2M);
  const std::string needed = "2 MiB pages: " + std::to_string(unused + 8) + " needed";
  EXPECT_NE(std::strstr(larger->page_report().reason, needed.c_str()), nullptr) << larger->page_report().reason;
}

TEST_F(ArenaTest, TakesTransparentPagesWhereMemfdsMayHaveThem) {
  test::Setting enabled("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const std::string choices = enabled.read();
  const auto open = choices.find('[');
  const auto close = choices.find(']');
  if (open == choices.npos || close == choices.npos) GTEST_SKIP() << "no transparent hugepages in this kernel";
  const std::string before = choices.substr(open + 1, close - open - 1);
  if (!enabled.set("advise", before)) GTEST_SKIP() << "shmem_enabled is " << before << " and only root may change it";
  auto arena = Arena::create({.size_bytes = 16 * kMebi, .share = Share::kReadWrite});
  ASSERT_OK(arena);
  if (arena->page_report().pages == Pages::kSmall) {
    EXPECT_NE(std::strstr(arena->page_report().reason, "fragmented"), nullptr) << arena->page_report().reason;
    GTEST_SKIP() << arena->page_report().reason;
  }
  EXPECT_EQ(arena->page_report().pages, Pages::kTransparent);
  ASSERT_TRUE(enabled.set("never", before));
  auto small = Arena::create({.size_bytes = 16 * kMebi, .share = Share::kReadWrite});
  ASSERT_OK(small);
  EXPECT_EQ(small->page_report().pages, Pages::kSmall);
  EXPECT_NE(std::strstr(small->page_report().reason, "shmem_enabled"), nullptr) << small->page_report().reason;
}

// ---- Limits

std::string expect_failure(const ArenaOptions& options, Status status, const char* word) {
  const std::size_t descriptors = test::open_descriptors();
  const std::size_t mappings = test::memfd_mappings();
  const auto arena = Arena::create(options);
  if (arena) return "succeeded";
  const std::string text = arena.error().text();
  if (arena.error().status() != status) return std::string(to_string(arena.error().status())) + ": " + text;
  if (text.find(word) == text.npos) return std::string(word) + " is not in: " + text;
  if (test::open_descriptors() != descriptors) return "a descriptor was left behind";
  if (test::memfd_mappings() != mappings) return "a mapping was left behind";
  return "";
}

std::string limit_to(int resource, std::size_t value) {
  const rlimit limit{value, value};
  return setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0 ? "" : "setrlimit failed";
}

TEST_F(ArenaTest, AddressSpaceLimitIsNamed) {
  for (const HugePolicy huge : {HugePolicy::kBestEffort, HugePolicy::kRequire}) {
    EXPECT_TRUE(test::in_child([huge]() -> std::string {
      std::FILE* statm = std::fopen("/proc/self/statm", "re");
      std::size_t pages = 0;
      if (statm == nullptr || std::fscanf(statm, "%zu", &pages) != 1) return "no statm";
      std::fclose(statm);
      // Room for what a sanitizer maps meanwhile, and not for the arena.
      if (auto wrong = limit_to(RLIMIT_AS, pages * small_page() + 64 * kMebi); !wrong.empty()) return wrong;
      return expect_failure({.size_bytes = 256 * kMebi, .huge = huge}, Status::kNoMemory, "RLIMIT_AS");
    }));
  }
}

TEST_F(ArenaTest, FileSizeLimitIsAnErrorAndNotASignal) {
  EXPECT_TRUE(test::in_child([]() -> std::string {
    if (auto wrong = limit_to(RLIMIT_FSIZE, kMebi); !wrong.empty()) return wrong;
    return expect_failure({.size_bytes = 2 * kMebi}, Status::kLimit, "RLIMIT_FSIZE");
  }));
}

TEST_F(ArenaTest, OpenFilesLimitIsNamed) {
  EXPECT_TRUE(test::in_child([]() -> std::string {
    const int lowest_free = dup(0);
    if (lowest_free < 0) return "dup failed";
    close(lowest_free);
    const auto create = [] { return Arena::create({.size_bytes = 16 * kMebi}); };
    if (auto wrong = limit_to(RLIMIT_NOFILE, static_cast<std::size_t>(lowest_free)); !wrong.empty()) return wrong;
    const auto arena = create();
    if (arena) return "succeeded";
    if (arena.error().status() != Status::kLimit) return arena.error().text();
    return std::strstr(arena.error().text(), "ulimit -n") != nullptr ? "" : arena.error().text();
  }));
}

constexpr unsigned kPopulateWrite = 23;  // MADV_POPULATE_WRITE.

TEST_F(ArenaTest, ComesUpOnKernelsWithoutPopulate) {
  EXPECT_TRUE(test::in_child([]() -> std::string {
    if (!test::deny(SYS_madvise, kPopulateWrite, EINVAL)) return "no seccomp";
    auto arena = Arena::create({.size_bytes = 33 * kMebi, .prefault_threads = 2});
    if (!arena) return arena.error().text();
    std::vector<unsigned char> present(arena->size() / small_page());
    if (mincore(arena->data(), arena->size(), present.data()) != 0) return "mincore failed";
    for (const unsigned char page : present)
      if ((page & 1) == 0) return "a page is not there";
    return test::all_are(arena->bytes(), std::byte{0}) ? "" : "not zero";
  }));
}

TEST_F(ArenaTest, PopulateThatFailsIsNoMemoryAndLeavesNothing) {
  for (const unsigned error : {unsigned{ENOMEM}, unsigned{EFAULT}}) {
    EXPECT_TRUE(test::in_child([error]() -> std::string {
      if (!test::deny(SYS_madvise, kPopulateWrite, error)) return "no seccomp";
      return expect_failure({.size_bytes = 40 * kMebi, .share = Share::kReadWrite}, Status::kNoMemory, "MiB");
    }));
  }
}

TEST_F(ArenaTest, MemoryIsNotBoundWhereThatIsDenied) {
  EXPECT_TRUE(test::in_child([]() -> std::string {
    // Its third argument is the policy: the default one changes nothing.
    if (!test::deny(SYS_mbind, 0, EPERM)) return "no seccomp";
    if (memory_can_be_bound()) return "denied calls are believed to work";
    const auto topology = Topology::read();
    if (!topology) return topology.error().text();
    if (topology->can_bind_memory()) return "the topology does not know";
    const auto arena = Arena::create({.size_bytes = kMebi});
    return arena ? "" : arena.error().text();
  }));
}

}  // namespace
}  // namespace verbena::host
