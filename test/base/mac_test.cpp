// Message authentication codes against the published ones, and what secrets need besides.
#include "base/mac.hpp"
#include "base/random.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace verbena {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string hex_of(const Mac& mac) {
  std::string text;
  for (const std::byte byte : mac) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

class MacTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto can = check_mac(); !can && can.error().status() == Status::kUnsupported)
      GTEST_SKIP() << can.error().text();
  }
};

// RFC 4231, test cases 1, 2, 3 and 6.
TEST_F(MacTest, IsHmacSha256) {
  EXPECT_EQ(hex_of(mac_of(bytes_of(std::string(20, '\x0b')), {bytes_of("Hi There")})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex_of(mac_of(bytes_of("Jefe"), {bytes_of("what do ya want for nothing?")})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex_of(mac_of(bytes_of(std::string(20, '\xaa')), {bytes_of(std::string(50, '\xdd'))})),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hex_of(mac_of(bytes_of(std::string(131, '\xaa')),
                          {bytes_of("Test Using Larger Than Block-Size Key - Hash Key First")})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_F(MacTest, PartsAreOneText) {
  const auto whole = mac_of(bytes_of("Jefe"), {bytes_of("what do ya want for nothing?")});
  EXPECT_TRUE(is_same(whole, mac_of(bytes_of("Jefe"), {bytes_of("what do ya want"), {}, bytes_of(" for nothing?")})));
}

TEST_F(MacTest, EachBitOfTwoCodesCounts) {
  const Mac mac = mac_of(bytes_of("a"), {bytes_of("b")});
  EXPECT_TRUE(is_same(mac, Mac(mac)));
  for (std::size_t bit = 0; bit < 8 * kMacBytes; ++bit) {
    Mac other = mac;
    other[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(is_same(mac, other)) << bit;
  }
}

TEST(Secret, RandomBytesFillAllOfIt) {
  std::array<std::byte, 600> bytes{};  // More than one call of the kernel may give.
  ASSERT_TRUE(fill_random(bytes));
  std::set<std::vector<std::byte>> parts;
  for (std::size_t at = 0; at < bytes.size(); at += 30)
    parts.emplace(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                  bytes.begin() + static_cast<std::ptrdiff_t>(at + 30));
  EXPECT_EQ(parts.size(), 20U);  // One twice, or zeros: 1 to 2^240.
}

TEST(Secret, WipedIsZero) {
  std::array<std::byte, 64> bytes{};
  bytes.fill(std::byte{7});
  wipe(bytes);
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace
}  // namespace verbena
