// How polling threads wait between two looks: by the length of a pause, and by the environment.
#include "base/relax.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

namespace verbena {
namespace {

TEST(Looks, AShortPauseIsTaken) {
  EXPECT_EQ(looks_for(10, "").pauses, 1u);
  EXPECT_EQ(looks_for(24, "").pauses, 1u);
  EXPECT_EQ(looks_for(45, "").pauses, 0u) << "nops are quicker there";
  EXPECT_FALSE(looks_for(24, "").is_set);
}

TEST(Looks, TheEnvironmentDecides) {
  for (const auto& [wanted, pauses] : {std::pair{"0", 0u}, {"1", 1u}, {"4", 4u}, {"64", 64u}}) {
    const Looks looks = looks_for(45, wanted);
    EXPECT_TRUE(looks.is_set) << wanted;
    EXPECT_EQ(looks.pauses, pauses);
  }
  for (const char* wanted : {"65", "-1", "two", "1 ", " 1", "1.5", "99999999999", "+1"}) {
    EXPECT_FALSE(looks_for(24, wanted).is_set) << wanted;
    EXPECT_EQ(looks_for(24, wanted).pauses, 1u) << wanted;
  }
}

TEST(Looks, AreToldInWords) {
  EXPECT_EQ(describe({.pauses = 1, .pause_ns = 24.3}), "one pause between two looks; a pause takes 24 ns");
  EXPECT_EQ(describe({.pauses = 0, .pause_ns = 45}), "96 nops between two looks; a pause takes 45 ns");
  EXPECT_EQ(describe({.pauses = 3, .pause_ns = 9, .is_set = true}),
            "3 pauses between two looks, as VERBENA_PAUSES in the environment asks; a pause takes 9 ns");
}

TEST(Looks, AreChosenOnceAndUsed) {
  const Looks& chosen = choose_looks();
  EXPECT_GE(chosen.pause_ns, 0) << "0 where 64 pauses take less than a tick, as under qemu";
  EXPECT_LT(chosen.pause_ns, 100'000);
  EXPECT_EQ(&choose_looks(), &chosen);
  EXPECT_EQ(detail::pauses.load(), chosen.pauses);
  if (std::getenv("VERBENA_PAUSES") == nullptr) {
    EXPECT_EQ(chosen.pauses, looks_for(chosen.pause_ns, "").pauses);
  }
  relax();
}

}  // namespace
}  // namespace verbena
