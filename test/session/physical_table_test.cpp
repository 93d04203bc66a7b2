// The table of physical addresses: its bytes, what is refused, and look-ups.
#include "session/physical_table.hpp"

#include "base/hash.hpp"

#include <result.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace verbena::session {
namespace {

constexpr std::uint32_t kAll = PhysicalTable::kRights;
constexpr std::uint64_t kTop = ~std::uint64_t{0};

[[nodiscard]] PhysicalTable make(std::vector<PhysicalRun> runs) {
  auto table = PhysicalTable::make(std::move(runs), kAll, 7);
  EXPECT_OK(table);
  return std::move(*table);
}

TEST(PhysicalTable, TravelsAsBytes) {
  const PhysicalTable table = make({{0x30000, 0x2000, 3}, {0x1000, 0x1000, 1}, {0x2000, 0x800, 2}});
  const std::vector<std::byte> bytes = table.encode();
  EXPECT_EQ(bytes.size(), PhysicalTable::kHeadBytes + 3 * PhysicalTable::kRunBytes + PhysicalTable::kChecksumBytes);
  const auto got = PhysicalTable::decode(bytes);
  ASSERT_OK(got);
  ASSERT_EQ(got->size(), 3u);
  EXPECT_EQ(got->access(), kAll);
  const nic::Window window = got->window(2);
  EXPECT_EQ(window.address, 0x30000u);
  EXPECT_EQ(window.length, 0x2000u);
  EXPECT_EQ(window.rkey, 3u);
  EXPECT_EQ(window.access, kAll);
  EXPECT_EQ(window.memory_id, 7u);
  EXPECT_EQ(got->run(0).rkey, 1u) << "in the order of their addresses";
  EXPECT_EQ(got->encode(), bytes);
  // Written down once, as the header of physical_table.hpp has it: what a peer of another build sends.
  const unsigned char front[] = {'V', 'P', 'H', 'Y', 1,    0, 0, 0, 3, 0, 0, 0, kAll, 0, 0, 0, 7, 0, 0, 0, 0,
                                 0,   0,   0,   0,   0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 1};
  EXPECT_EQ(std::memcmp(bytes.data(), front, sizeof front), 0);
}

TEST(PhysicalTable, OfTheMostRunsFitsItsMaximum) {
  std::vector<PhysicalRun> runs(PhysicalTable::kMaxRuns);
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i] = {.address = i * 8192, .length = 4096, .rkey = 1};
  const std::vector<std::byte> bytes = make(runs).encode();
  EXPECT_EQ(bytes.size(), PhysicalTable::kMaxBytes);
  EXPECT_OK(PhysicalTable::decode(bytes));
  runs.push_back({.address = kTop - 8192, .length = 4096, .rkey = 1});
  EXPECT_STATUS(PhysicalTable::make(runs, kAll, 0), Status::kBadArgument);
}

TEST(PhysicalTable, IsNotMadeOfWhatItCannotHave) {
  const auto refused = [](std::vector<PhysicalRun> runs, std::uint32_t access) {
    return PhysicalTable::make(std::move(runs), access, 0);
  };
  EXPECT_STATUS(refused({}, kAll), Status::kBadArgument);
  EXPECT_STATUS(refused({{4096, 0, 1}}, kAll), Status::kBadArgument);
  EXPECT_STATUS(refused({{kTop - 4095, 4096, 1}}, kAll), Status::kBadArgument);
  EXPECT_OK(refused({{kTop - 4096, 4096, 1}}, kAll));
  EXPECT_STATUS(refused({{4096, 4096, 1}, {8191, 4096, 2}}, kAll), Status::kBadArgument);
  EXPECT_STATUS(refused({{4096, 4096, 1}, {4096, 4096, 2}}, kAll), Status::kBadArgument);
  EXPECT_STATUS(refused({{0, 1 << 20, 1}, {4096, 16, 2}}, kAll), Status::kBadArgument);
  EXPECT_STATUS(refused({{4096, 4096, 1}}, kAll | IBV_ACCESS_LOCAL_WRITE), Status::kBadArgument);
}

/// A table's bytes with one field changed, and the checksum made right again.
template <class T>
[[nodiscard]] std::vector<std::byte> with(std::vector<std::byte> bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  const std::uint64_t sum = hash64(std::span(bytes).first(bytes.size() - PhysicalTable::kChecksumBytes));
  std::memcpy(bytes.data() + bytes.size() - sizeof sum, &sum, sizeof sum);
  return bytes;
}

TEST(PhysicalTable, OfAPeerIsCheckedInEveryField) {
  const std::vector<std::byte> good = make({{0x1000, 0x1000, 1}, {0x4000, 0x1000, 2}}).encode();
  const auto expect = [](const std::vector<std::byte>& bytes, const char* text) {
    const auto got = PhysicalTable::decode(bytes);
    ASSERT_STATUS(got, Status::kProtocol) << text;
    EXPECT_NE(std::string(got.error().text()).find(text), std::string::npos) << got.error().text();
  };
  ASSERT_OK(PhysicalTable::decode(good));
  ASSERT_OK(PhysicalTable::decode(with(good, 0, std::uint32_t{0x59485056})));
  expect(with(good, 0, std::uint32_t{0x59485057}), "magic");
  expect(with(good, 4, std::uint16_t{2}), "version");
  expect(with(good, 6, std::uint16_t{1}), "reserved");
  expect(with(good, 8, std::uint32_t{1}), "length");
  expect(with(good, 8, std::uint32_t{3}), "length");
  expect(with(good, 8, ~std::uint32_t{0}), "length");
  expect(with(good, 12, std::uint32_t{IBV_ACCESS_LOCAL_WRITE}), "rights");
  expect(with(good, 24 + 20, std::uint32_t{1}), "reserved");
  expect(with(good, 24 + 8, std::uint64_t{0}), "empty");
  expect(with(good, 24 + 8, std::uint64_t{0x3001}), "overlap");
  expect(with(good, 24 + 8, kTop), "wraps");
  expect(with(good, 48, std::uint64_t{0x1fff}), "overlap");
  expect(with(good, 48, std::uint64_t{0}), "out of order");
  expect(with(good, 48 + 8, kTop - 0x4000 + 1), "wraps");
  ASSERT_OK(PhysicalTable::decode(with(good, 48 + 8, kTop - 0x4000)));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<std::byte> bad = good;
    bad[i] ^= std::byte{0x10};
    EXPECT_STATUS(PhysicalTable::decode(bad), Status::kProtocol) << "byte " << i;
    EXPECT_STATUS(PhysicalTable::decode(std::span(good).first(i)), Status::kProtocol) << "cut at " << i;
  }
  std::vector<std::byte> longer = good;
  longer.push_back({});
  expect(longer, "length");
  // No runs at all, and more than there may be.
  std::vector<std::byte> none(PhysicalTable::kHeadBytes + PhysicalTable::kChecksumBytes);
  std::ranges::copy(std::span(good).first(none.size()), none.begin());
  EXPECT_STATUS(PhysicalTable::decode(with(none, 8, std::uint32_t{0})), Status::kProtocol);
  std::vector<std::byte> many(PhysicalTable::kMaxBytes + PhysicalTable::kRunBytes);
  std::ranges::copy(std::span(good).first(PhysicalTable::kHeadBytes), many.begin());
  expect(with(many, 8, static_cast<std::uint32_t>(PhysicalTable::kMaxRuns + 1)), "length");
}

TEST(PhysicalTable, FindsARunAndWhatItReaches) {
  //                                0        1                   2                  3
  const PhysicalTable table = make({{0x1000, 0x1000, 1}, {0x2000, 0x800, 2}, {0x2800, 0x800, 3}, {0x8000, 0x100, 4}});
  struct Case {
    std::uint64_t address;
    std::uint64_t length;
    int run;  // -1: out of range
  };
  const Case cases[] = {
      {0x1000, 1, 0},     {0x1fff, 1, 0},       {0x1fff, 2, 0},       {0x2000, 0x800, 1},
      {0x27ff, 2, 1},     {0x2800, 0x800, 2},   {0x1000, 0x2000, 0},  {0x1000, 0x2001, -1},
      {0x0fff, 1, -1},    {0x0fff, 2, -1},      {0, 0, -1},           {0x1000, 0, 0},
      {0x3000, 0, 2},     {0x3000, 1, -1},      {0x3001, 0, -1},      {0x8000, 0x100, 3},
      {0x80ff, 1, 3},     {0x80ff, 2, -1},      {0x8100, 0, 3},       {0x8101, 0, -1},
      {kTop, 0, -1},      {kTop, 1, -1},        {0x1000, kTop, -1},   {0x1800, kTop - 0x1800, -1},
      {0x5000, 0x10, -1}, {0x5000, 0x4000, -1}, {0x2fff, 0x6000, -1},
  };
  for (const Case& wanted : cases) {
    // From wherever it looks first.
    for (std::size_t start = 0; start < table.size(); ++start) {
      std::size_t found = start;
      const Status status = table.find(wanted.address, wanted.length, found);
      EXPECT_EQ(status, wanted.run < 0 ? Status::kOutOfRange : Status::kOk)
          << std::hex << wanted.address << " + " << wanted.length << " from " << start;
      EXPECT_LT(found, table.size());
      if (wanted.run < 0) continue;
      EXPECT_EQ(found, static_cast<std::size_t>(wanted.run)) << std::hex << wanted.address;
    }
  }
}

}  // namespace
}  // namespace verbena::session
