// Physical addresses: what page maps of all kinds say, and the kernel's own with the privilege and without.
#include "host/physical.hpp"
#include "child.hpp"

#include "host/arena.hpp"

#include <capability.hpp>
#include <page_map.hpp>
#include <result.hpp>

#include <gtest/gtest.h>

#include <sys/prctl.h>

#include <array>
#include <string>
#include <vector>

namespace verbena::host {
namespace {

using test::FakePageMap;
using test::in_child;

constexpr std::uint64_t kPresent = FakePageMap::kPresent;
constexpr std::uint64_t kSwapped = std::uint64_t{1} << 62;
constexpr std::uint64_t kSoftDirty = std::uint64_t{1} << 55;
constexpr std::uint64_t kOtherBits = std::uint64_t{0xF} << 55 | std::uint64_t{1} << 61;
constexpr std::size_t kAll = ~std::size_t{0};

/// Addresses that are only looked up.
[[nodiscard]] std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

struct Piece {
  std::uintptr_t data;
  std::uint64_t physical;
  std::size_t length;
  friend bool operator==(const Piece&, const Piece&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Piece& run) {
    return out << std::hex << run.data << " -> " << run.physical << " + " << run.length;
  }
};

[[nodiscard]] std::vector<Piece> runs_of(const PageMap& map, std::uintptr_t begin, std::size_t length) {
  const auto found = map.runs_of({at(begin), length}, kAll);
  EXPECT_OK(found);
  std::vector<Piece> runs;
  if (!found) return runs;
  EXPECT_EQ(found->count, found->runs.size());
  for (const PhysicalRun& run : found->runs)
    runs.push_back({reinterpret_cast<std::uintptr_t>(run.data), run.physical, run.length});
  return runs;
}

TEST(PageMap, TellsTheAddressOfAByte) {
  FakePageMap file;
  file.put(0x5000, 0x123);
  file.put(0x6000, (std::uint64_t{1} << 40) + 7);
  const PageMap map = file.open();
  const auto first = map.address_of(at(0x5000));
  const auto inside = map.address_of(at(0x5fff));
  const auto high = map.address_of(at(0x6008));
  ASSERT_OK(first);
  ASSERT_OK(inside);
  ASSERT_OK(high);
  EXPECT_EQ(*first, 0x123000u);
  EXPECT_EQ(*inside, 0x123fffu);
  EXPECT_EQ(*high, (std::uint64_t{1} << 52) + 0x7008);
}

TEST(PageMap, SaysWhatIsWrongWithAPage) {
  struct Case {
    std::uint64_t entry;
    Status status;
    const char* text;
  };
  const Case cases[] = {
      {kPresent | 0x77, Status::kOk, ""},
      {kPresent | kSoftDirty | 0x77, Status::kOk, ""},
      {kPresent | kOtherBits | 0x77, Status::kOk, ""},
      {0, Status::kNotFound, "never touched"},
      {kSoftDirty, Status::kNotFound, "never touched"},
      {0x77, Status::kNotFound, "never touched"},  // A frame number without a page is none.
      {kSwapped | 0x77, Status::kNotFound, "swapped out"},
      {kPresent, Status::kPermission, "CAP_SYS_ADMIN"},
      {kPresent | kOtherBits, Status::kPermission, "CAP_SYS_ADMIN"},
  };
  for (const Case& wanted : cases) {
    SCOPED_TRACE(wanted.entry);
    FakePageMap file;
    file.put_entry(0x5000, wanted.entry);
    file.put(0x4000, 0x76);
    const PageMap map = file.open();
    const auto one = map.address_of(at(0x5010));
    const auto both = map.runs_of({at(0x4000), 0x2000}, kAll);
    if (wanted.status == Status::kOk) {
      ASSERT_OK(one);
      ASSERT_OK(both);
      EXPECT_EQ(*one, 0x77010u);
      EXPECT_EQ(both->count, 1u);
      continue;
    }
    ASSERT_STATUS(one, wanted.status);
    ASSERT_STATUS(both, wanted.status);
    EXPECT_NE(std::string(one.error().text()).find(wanted.text), std::string::npos) << one.error().text();
    EXPECT_LT(std::string(one.error().text()).size(), Error::kTextBytes - 1) << "cut";
    EXPECT_STREQ(both.error().text(), one.error().text());
  }
}

TEST(PageMap, MergesWhatLiesTogether) {
  FakePageMap file;
  const std::array<std::uint64_t, 7> frames{0x10, 0x11, 0x12, 0x30, 0x31, 0x20, 0x1f};
  file.put_all(at(0x100000), frames);
  const PageMap map = file.open();
  EXPECT_EQ(runs_of(map, 0x100000, 0x7000), (std::vector<Piece>{{0x100000, 0x10000, 0x3000},
                                                                {0x103000, 0x30000, 0x2000},
                                                                {0x105000, 0x20000, 0x1000},
                                                                {0x106000, 0x1f000, 0x1000}}));
  // Unaligned ends, in one page and in several.
  EXPECT_EQ(runs_of(map, 0x100010, 0x20), (std::vector<Piece>{{0x100010, 0x10010, 0x20}}));
  EXPECT_EQ(runs_of(map, 0x100ff8, 0x10), (std::vector<Piece>{{0x100ff8, 0x10ff8, 0x10}}));
  EXPECT_EQ(runs_of(map, 0x101800, 0x2001),
            (std::vector<Piece>{{0x101800, 0x11800, 0x1800}, {0x103000, 0x30000, 0x801}}));
  EXPECT_EQ(runs_of(map, 0x102fff, 2), (std::vector<Piece>{{0x102fff, 0x12fff, 1}, {0x103000, 0x30000, 1}}));
  EXPECT_TRUE(runs_of(map, 0x100000, 0).empty());
  EXPECT_TRUE(runs_of(map, 0x900000, 0).empty()) << "nothing is looked up";
}

TEST(PageMap, OfHugepagesAreLongRuns) {
  FakePageMap file;
  constexpr std::size_t kHuge = 512;
  std::vector<std::uint64_t> frames(2 * kHuge);
  for (std::size_t i = 0; i < frames.size(); ++i) frames[i] = (i < kHuge ? 0x80000 : 0x40000) + i % kHuge;
  file.put_all(at(0x40000000), frames);
  EXPECT_EQ(runs_of(file.open(), 0x40000000, 2 * kHuge * 4096),
            (std::vector<Piece>{{0x40000000, 0x80000000, kHuge * 4096},
                                {0x40000000 + kHuge * 4096, 0x40000000, kHuge * 4096}}));
}

TEST(PageMap, HasPagesOfTheirOwnSize) {
  FakePageMap file(65536);
  file.put(0x10000, 0x5);
  file.put(0x20000, 0x6);
  file.put(0x30000, 0x9);
  const PageMap map = file.open();
  const auto inside = map.address_of(at(0x2abcd));
  ASSERT_OK(inside);
  EXPECT_EQ(*inside, 0x6abcdu);
  EXPECT_EQ(runs_of(map, 0x18000, 0x20000),
            (std::vector<Piece>{{0x18000, 0x58000, 0x18000}, {0x30000, 0x90000, 0x8000}}));
}

TEST(PageMap, KeepsAsManyRunsAsWereAskedForAndCountsAll) {
  FakePageMap file;
  // More than one read's worth, so that runs go on over its border.
  constexpr std::size_t kPages = 5000;
  std::vector<std::uint64_t> frames(kPages);
  for (std::size_t i = 0; i < kPages; ++i) frames[i] = 0x1000 + i + i / 2;  // Pairs.
  file.put_all(at(0x10000000), frames);
  const PageMap map = file.open();
  EXPECT_EQ(runs_of(map, 0x10000000, kPages * 4096).size(), kPages / 2);
  for (const std::size_t most : {0U, 1U, 7U, 2500U}) {
    const auto found = map.runs_of({at(0x10000000), kPages * 4096}, most);
    ASSERT_OK(found);
    EXPECT_EQ(found->count, kPages / 2);
    ASSERT_EQ(found->runs.size(), most);
    for (const PhysicalRun& run : found->runs) EXPECT_EQ(run.length, 8192u);
  }
}

TEST(PageMap, EndsWhereTheAddressSpaceEnds) {
  FakePageMap file;
  file.put(0x5000, 0x1);
  const PageMap map = file.open();
  EXPECT_STATUS(map.address_of(at(0x6000)), Status::kBadArgument);
  EXPECT_STATUS(map.runs_of({at(0x5000), 0x1001}, kAll), Status::kBadArgument);
  EXPECT_STATUS(map.runs_of({at(~std::uintptr_t{0} - 10), 20}, kAll), Status::kBadArgument);
}

TEST(PageMap, SaysWhyItCannotBeOpened) {
  EXPECT_STATUS(PageMap::open({.path = "/proc/self/no such file"}), Status::kUnsupported);
  EXPECT_STATUS(PageMap::open({.page_bytes = 5000}), Status::kBadArgument);
}

// --- the kernel's

TEST(KernelPageMap, TellsOrSaysWhatIsMissing) {
  auto arena = Arena::create({.size_bytes = 1 << 20, .prefault_threads = 1});
  ASSERT_OK(arena);
  const auto map = PageMap::open();
  ASSERT_OK(map);
  const auto found = map->runs_of(arena->bytes(), kAll);
  if (!test::may_see_frames()) {
    EXPECT_STATUS(found, Status::kPermission);
    return;
  }
  ASSERT_OK(found);
  std::size_t length = 0;
  for (const PhysicalRun& run : found->runs) {
    EXPECT_EQ(run.data, arena->data() + length);
    for (std::size_t in = 0; in < run.length; in += 4096) {
      const auto one = map->address_of(run.data + in + 100);
      ASSERT_OK(one);
      EXPECT_EQ(*one, run.physical + in + 100);
    }
    length += run.length;
  }
  EXPECT_EQ(length, arena->size());
}

TEST(KernelPageMap, OfOneHugepageIsOneRun) {
  auto arena = Arena::create({.size_bytes = 2 << 20, .huge = HugePolicy::kRequire, .prefault_threads = 1});
  if (!arena) GTEST_SKIP() << arena.error().text();
  if (!test::may_see_frames()) GTEST_SKIP() << "without CAP_SYS_ADMIN";
  const auto map = PageMap::open();
  ASSERT_OK(map);
  const auto found = map->runs_of(arena->bytes(), kAll);
  ASSERT_OK(found);
  ASSERT_EQ(found->count, 1u);
  EXPECT_EQ(found->runs[0].physical % (2 << 20), 0u);
  EXPECT_EQ(found->runs[0].length, std::size_t{2} << 20);
}

TEST(KernelPageMap, NamesThePageThatIsNotThere) {
  auto* page = static_cast<std::byte*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(page, MAP_FAILED);
  const auto map = PageMap::open();
  ASSERT_OK(map);
  EXPECT_STATUS(map->address_of(page), Status::kNotFound);
  munmap(page, 8192);
}

[[nodiscard]] std::string expect_permission(const Result<std::uint64_t>& result, const char* text) {
  if (result) return "an address was told";
  if (result.error().status() != Status::kPermission) return result.error().text();
  return std::string(result.error().text()).contains(text) ? "" : result.error().text();
}
[[nodiscard]] Result<std::uint64_t> address_of(const void* of) {
  const auto map = PageMap::open();
  return map ? map->address_of(of) : std::unexpected(map.error());
}

TEST(KernelPageMap, WithoutTheCapabilityItNamesIt) {
  int local = 1;
  EXPECT_TRUE(in_child([&]() -> std::string {
    if (test::has_capability(CAP_SYS_ADMIN) && !test::drop_capability(CAP_SYS_ADMIN)) return "it cannot be dropped";
    return expect_permission(address_of(&local), "CAP_SYS_ADMIN");
  }));
}

TEST(KernelPageMap, GoesOnTellingWhenTheCapabilityIsDroppedLater) {
  if (!test::may_see_frames()) GTEST_SKIP() << "without CAP_SYS_ADMIN";
  int local = 1;
  EXPECT_TRUE(in_child([&]() -> std::string {
    const auto map = PageMap::open();
    if (!map || !test::drop_capability(CAP_SYS_ADMIN)) return "no map, or it cannot be dropped";
    const auto address = map->address_of(&local);
    return address ? "" : address.error().text();
  }));
}

TEST(KernelPageMap, OfAProcessThatChangedItsUserSaysHow) {
  if (geteuid() != 0) GTEST_SKIP() << "not root";
  int local = 1;
  EXPECT_TRUE(in_child([&]() -> std::string {
    constexpr uid_t kNobody = 65534;
    if (setresuid(kNobody, kNobody, kNobody) != 0) return "setresuid failed";
    const std::string closed = expect_permission(address_of(&local), "PR_SET_DUMPABLE");
    if (!closed.empty()) return closed;
    if (prctl(PR_SET_DUMPABLE, 1) != 0) return "prctl failed";
    return expect_permission(address_of(&local), "setcap");
  }));
}

}  // namespace
}  // namespace verbena::host
