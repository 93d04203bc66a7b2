// The queue of one client's values that a server READs.
#include "kv/put_reads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::kv {
namespace {

constexpr std::uint64_t kPiece = PutReads::kPieceBytes;
constexpr std::uint32_t kLkey = 9;

wire::Request request(std::uint32_t id, std::uint64_t length) {
  static constexpr std::array<std::byte, 3> kKey{};
  wire::Request out;
  out.head.id = id;
  out.head.key_length = kKey.size();
  out.key = kKey;
  out.large = {.length = length, .address = 4096 * id, .rkey = id};
  return out;
}

TEST(PutReads, HaveALimitAndAnOrder) {
  SparePlace spare;
  PutReads reads(3, spare);
  EXPECT_TRUE(reads.empty());
  for (std::uint32_t id = 1; id <= 3; ++id) EXPECT_TRUE(reads.add(request(id, kEagerBytes), id));
  EXPECT_FALSE(reads.add(request(4, kEagerBytes), 4));
  for (std::uint32_t id = 1; id <= 20; ++id) {
    EXPECT_EQ(reads.first().id, id);
    EXPECT_EQ(reads.first().rkey, id);
    EXPECT_EQ(reads.first().address, 4096 * id);
    EXPECT_EQ(reads.first().began_ticks, id);
    reads.pop();
    EXPECT_TRUE(reads.add(request(id + 3, kEagerBytes), id + 3));
  }
  reads.stop();
  EXPECT_TRUE(reads.empty());
}

TEST(PutReads, AreInPiecesOfWhichAFewAreInFlight) {
  SparePlace spare;
  PutReads reads(2, spare);
  for (const std::uint64_t length : {kEagerBytes, kPiece, kPiece + 1, 2 * kPiece, 5 * kPiece - 1}) {
    SCOPED_TRACE(length);
    ASSERT_TRUE(reads.add(request(1, length), 0));
    std::vector<std::byte> block(length);
    reads.pending.value = block;
    std::uint64_t posted = 0;
    unsigned in_flight = 0;
    bool is_whole = false;
    while (!is_whole) {
      while (const auto piece = reads.next(kLkey)) {
        EXPECT_EQ(piece->to.data, block.data() + posted);
        EXPECT_EQ(piece->to.lkey, kLkey);
        EXPECT_EQ(piece->from.address, 4096 + posted);
        EXPECT_EQ(piece->from.rkey, 1u);
        EXPECT_EQ(piece->from.length, piece->to.length);
        EXPECT_EQ(piece->to.length, std::min(kPiece, length - posted));
        posted += piece->to.length;
        reads.posted(*piece);
        ASSERT_LE(++in_flight, PutReads::kMostPieces);
      }
      ASSERT_GT(in_flight, 0u);
      --in_flight;
      is_whole = reads.arrived();
      EXPECT_EQ(is_whole, in_flight == 0 && posted == length);
    }
    reads.pop();
  }
}

TEST(PutReads, OneHasTheSparePlace) {
  SparePlace spare;
  PutReads one(1, spare), other(1, spare);
  ASSERT_TRUE(one.add(request(1, SparePlace::kBytes), 0));
  ASSERT_TRUE(other.add(request(2, kEagerBytes), 0));
  EXPECT_TRUE(one.take_spare());
  EXPECT_FALSE(other.take_spare());
  EXPECT_FALSE(other.is_in_spare());
  other.stop();
  ASSERT_TRUE(other.add(request(2, kEagerBytes), 0));
  EXPECT_FALSE(other.take_spare()) << "who has not got it cannot give it back";
  one.pop();
  EXPECT_TRUE(other.take_spare());
  other.stop();
  ASSERT_TRUE(one.add(request(1, SparePlace::kBytes + 1), 0));
  EXPECT_FALSE(one.take_spare()) << "too long";
}

}  // namespace
}  // namespace verbena::kv
