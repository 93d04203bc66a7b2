// Which values a call of all takes, and which lives of a process get in.
#include "fixture.hpp"

namespace verbena::mesh::test {
namespace {

[[nodiscard]] wire::GatherFrame frame(std::uint32_t number, std::uint32_t bytes = 8) {
  return {.number = number, .bytes = bytes};
}

TEST(Gathering, TakesValuesOfThisCallAndTheNext) {
  Gathering all(3);
  EXPECT_TRUE(all.take(1, frame(1))) << "one that is a call ahead";
  EXPECT_FALSE(all.take(1, frame(1))) << "twice";
  EXPECT_FALSE(all.take(1, frame(3)));
  EXPECT_FALSE(all.take(2, frame(1, kMaxGatherBytes + 1)));
  EXPECT_EQ(all.begin(), 1U);
  EXPECT_TRUE(all.has(1));
  EXPECT_FALSE(all.has(2));
  EXPECT_TRUE(all.take(2, frame(1)));
  EXPECT_TRUE(all.take(2, frame(2)));
  all.end();
  EXPECT_EQ(all.begin(), 2U);
  EXPECT_TRUE(all.has(2));
  EXPECT_FALSE(all.has(1)) << "of the call before";
}

TEST(Gathering, ValuesOfACallThatWasGivenUpDisappear) {
  Gathering all(2);
  EXPECT_EQ(all.begin(), 1U);
  all.end();
  EXPECT_TRUE(all.take(1, frame(1))) << "late, and no fault";
  EXPECT_EQ(all.begin(), 2U);
  EXPECT_TRUE(all.take(1, frame(2)));
  all.end();
  EXPECT_EQ(all.begin(), 3U);
  EXPECT_FALSE(all.has(1));
}

TEST(Gathering, ValuesOfACallThatWasGivenUpMayComeDuringTheNext) {
  Gathering all(2);
  EXPECT_EQ(all.begin(), 1U);
  all.end();
  EXPECT_EQ(all.begin(), 2U);
  EXPECT_TRUE(all.take(1, frame(1))) << "repeated by the NIC for long, and no fault";
  EXPECT_FALSE(all.has(1));
  EXPECT_TRUE(all.take(1, frame(2)));
}

TEST(Roster, TakesOneLifeAtATime) {
  Roster roster(4, 2);
  ASSERT_OK(roster.enter(2, 0, 10));
  EXPECT_STATUS(roster.enter(2, 0, 10), Status::kBusy);
  ASSERT_OK(roster.enter(2, 1, 10));
  roster.joined(2, 0, 10);
  EXPECT_STATUS(roster.enter(2, 0, 11), Status::kBusy) << "while the earlier life is connected";
  EXPECT_STATUS(roster.enter(2, 0, 9), Status::kRejected);
  roster.left(2, 0, 10);
  EXPECT_STATUS(roster.enter(2, 0, 11), Status::kBusy) << "by one lane still";
  roster.left(2, 1, 10);
  ASSERT_OK(roster.enter(2, 0, 11));
  roster.left(2, 0, 10);
  EXPECT_FALSE(roster.is_free(2, 0)) << "what an earlier life leaves is not the new one's";
  EXPECT_STATUS(roster.enter(2, 1, 10), Status::kRejected);
  EXPECT_EQ(roster.missing(0), (std::vector<unsigned>{1, 2, 3}));
  roster.joined(2, 0, 11);
  ASSERT_OK(roster.enter(2, 1, 11));
  roster.joined(2, 1, 11);
  EXPECT_EQ(roster.missing(0), (std::vector<unsigned>{1, 3}));
}

TEST(Blob, CarriesACardAndNothingElse) {
  const wire::Card card{.id = 7, .port = 65535, .incarnation = ~std::uint64_t{0}, .address = "fe80::1"};
  auto blob = wire::encode(card);
  ASSERT_OK(blob);
  const auto back = wire::decode(*blob);
  ASSERT_OK(back);
  EXPECT_EQ(back->id, card.id);
  EXPECT_EQ(back->port, card.port);
  EXPECT_EQ(back->incarnation, card.incarnation);
  EXPECT_EQ(back->address, card.address);
  EXPECT_STATUS(wire::encode({.port = 1, .address = std::string(201, 'x')}), Status::kTooLong);
  EXPECT_STATUS(wire::decode(Blob{}), Status::kProtocol);
  // Each byte may be anything: it is refused or it is a card, and never more than the blob is read.
  for (std::size_t at = 0; at < kBlobBytes; ++at) {
    Blob spoiled = *blob;
    spoiled[at] ^= std::byte{0xff};
    const auto decoded = wire::decode(spoiled);
    if (decoded) {
      EXPECT_LE(decoded->address.size(), wire::kMaxAddressBytes);
    } else {
      EXPECT_EQ(decoded.error().status(), Status::kProtocol);
    }
  }
}

}  // namespace
}  // namespace verbena::mesh::test
