#include "pattern.hpp"

#include <algorithm>

namespace verbena::test {

void fill(std::span<std::byte> bytes, std::uint64_t seed) noexcept {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern_byte(seed, i);
}

testing::AssertionResult matches(std::span<const std::byte> bytes, std::uint64_t seed, std::size_t first) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == pattern_byte(seed, first + i)) continue;
    return testing::AssertionFailure() << "byte " << i << " of " << bytes.size() << " is "
                                       << std::to_integer<int>(bytes[i]) << ", not "
                                       << std::to_integer<int>(pattern_byte(seed, first + i)) << " (pattern " << seed
                                       << ")";
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult all_are(std::span<const std::byte> bytes, std::byte value) {
  const auto other = std::find_if(bytes.begin(), bytes.end(), [&](std::byte b) { return b != value; });
  if (other == bytes.end()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "byte " << (other - bytes.begin()) << " of " << bytes.size() << " is "
                                     << std::to_integer<int>(*other) << ", not " << std::to_integer<int>(value);
}

}  // namespace verbena::test
