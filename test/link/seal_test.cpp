// Seals of frames, without a network: each is good for one step of one handshake, on one side.
#include "link/seal.hpp"
#include "key_file.hpp"
#include "link/frames.hpp"
#include "result.hpp"
#include "support.hpp"

#include <memory>
#include <vector>

namespace verbena::link {
namespace {

using namespace test;
using namespace verbena::test;

constexpr SealedStep kSteps[] = {SealedStep::kChallenge, SealedStep::kClientHello, SealedStep::kServerHello,
                                 SealedStep::kClientReady, SealedStep::kServerReady};

class SealTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!verbena::test::has_keys()) GTEST_SKIP() << "this build has no keys";
  }
  [[nodiscard]] static std::shared_ptr<const Key> key_of(int seed, std::size_t bytes = kMinSecretBytes) {
    return std::make_shared<Key>("key", std::vector<std::byte>(bytes, static_cast<std::byte>(seed)));
  }
  [[nodiscard]] static Frame claim_of(int seed) {
    Nonce nonce{};
    nonce[0] = static_cast<std::byte>(seed);
    return encode_key("key", nonce);
  }
  [[nodiscard]] static Frame frame_of(SealedStep step) {
    if (step == SealedStep::kChallenge) return encode_challenge({});
    const bool is_ready = step == SealedStep::kClientReady || step == SealedStep::kServerReady;
    return is_ready ? encode_ready(7) : encode_hello(make_endpoint(1));
  }
  const std::shared_ptr<const Key> key_ = key_of(1);
  const Frame claim_ = claim_of(1);
};

TEST_F(SealTest, BothSidesAgreeStepByStep) {
  for (const std::size_t bytes : {kMinSecretBytes, kMaxSecretBytes}) {
    Seal mine(key_of(1, bytes), claim_.bytes()), theirs(key_of(1, bytes), claim_.bytes());
    for (const SealedStep step : kSteps) {
      const Frame frame = mine.put(step, frame_of(step));
      EXPECT_TRUE(decode_type(frame.bytes()));
      EXPECT_TRUE(theirs.check(step, frame.bytes()));
    }
  }
}

// Its label is the side's and the step's: what one side has sealed is never good as what the other side would seal.
TEST_F(SealTest, AStepsSealIsNoOthers) {
  for (const SealedStep sealed : kSteps)
    for (const SealedStep wanted : kSteps) {
      Seal mine(key_, claim_.bytes()), theirs(key_, claim_.bytes());
      EXPECT_EQ(theirs.check(wanted, mine.put(sealed, frame_of(sealed)).bytes()), sealed == wanted);
    }
}

TEST_F(SealTest, IsOverAllThatWasSaidBefore) {
  for (const SealedStep until : {SealedStep::kChallenge, SealedStep::kClientHello, SealedStep::kServerHello}) {
    Seal mine(key_, claim_.bytes()), theirs(key_, claim_.bytes());
    for (const SealedStep step : kSteps) {
      const bool differs = step == until;
      const Frame frame = frame_of(step);
      const Frame sealed = mine.put(step, frame);
      if (differs) {
        const bool is_challenge = step == SealedStep::kChallenge;
        (void)theirs.put(step, is_challenge ? encode_challenge({std::byte{1}}) : encode_hello(make_endpoint(2)));
      } else {
        EXPECT_EQ(theirs.check(step, sealed.bytes()), step < until);
      }
    }
  }
}

TEST_F(SealTest, AnotherSecretOrClaimIsRefused) {
  const auto sealed = Seal(key_, claim_.bytes()).put(SealedStep::kChallenge, encode_challenge({}));
  EXPECT_TRUE(Seal(key_, claim_.bytes()).check(SealedStep::kChallenge, sealed.bytes()));
  EXPECT_FALSE(Seal(key_of(2), claim_.bytes()).check(SealedStep::kChallenge, sealed.bytes()));
  EXPECT_FALSE(Seal(key_of(1, kMinSecretBytes + 1), claim_.bytes()).check(SealedStep::kChallenge, sealed.bytes()));
  EXPECT_FALSE(Seal(key_, claim_of(2).bytes()).check(SealedStep::kChallenge, sealed.bytes()));
}

TEST_F(SealTest, EachBitCounts) {
  for (const SealedStep step : kSteps) {
    const Frame sealed = Seal(key_, claim_.bytes()).put(step, frame_of(step));
    for (std::size_t bit = 0; bit < 8 * (sealed.size - kChecksumBytes); ++bit) {
      Frame changed = sealed;
      changed.data[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      EXPECT_FALSE(Seal(key_, claim_.bytes()).check(step, changed.bytes())) << bit;
    }
  }
}

}  // namespace
}  // namespace verbena::link
