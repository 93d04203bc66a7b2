// The protocols that rely on an order of memory, as litmus tests on the machine of weak_memory.hpp. Each shows no bad
// outcome with the fences that the code has, and one without each of them: so neither a fence nor its test is idle.
// Names of fences are those of src/base/fences.hpp; other names are of an acquire or release on one word.
#include "base/weak_memory.hpp"
#include "paths.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::weak {
namespace {

/// The fences of a protocol, all but one if one is taken out.
class Fences {
 public:
  explicit Fences(std::string missing = {}) : missing_(std::move(missing)) {}

  [[nodiscard]] bool has(std::string_view name) {
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.emplace_back(name);
    return name != missing_;
  }
  [[nodiscard]] Order acquire(std::string_view name) { return has(name) ? Order::kAcquire : Order::kRelaxed; }
  [[nodiscard]] Order release(std::string_view name) { return has(name) ? Order::kRelease : Order::kRelaxed; }
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }

 private:
  std::string missing_;
  std::vector<std::string> names_;
};

struct Litmus {
  std::vector<Program> threads;
  std::array<std::uint8_t, kPlaces> memory{};
  Machine::Bad bad;
};
using Protocol = std::function<Litmus(Fences&)>;

[[nodiscard]] bool goes_wrong(const Protocol& protocol, Fences& fences) {
  Litmus litmus = protocol(fences);
  Machine machine(std::move(litmus.threads), litmus.memory);
  const bool is_bad = machine.reaches(litmus.bad);
  EXPECT_GT(machine.states(), 4U);
  return is_bad;
}

/// Fences that a test has taken out of a protocol.
std::set<std::string>& tried() {
  static std::set<std::string> names;
  return names;
}

void check(const Protocol& protocol) {
  Fences all;
  EXPECT_FALSE(goes_wrong(protocol, all)) << "with all fences";
  EXPECT_FALSE(all.names().empty());
  for (const std::string& name : all.names()) {
    Fences others(name);
    EXPECT_TRUE(goes_wrong(protocol, others)) << "nothing goes wrong without " << name;
    tried().insert(name.substr(0, name.find(',')));
  }
}

// --- the machine itself, by shapes whose outcomes are known
// ------------------------------------------------------------

/// Two threads that each store a word and load the other's.
[[nodiscard]] bool both_miss(Order store, Order load, Order fence) {
  Machine machine({Program().store(0, 1, store).fence(fence).load(0, 1, load),
                   Program().store(1, 1, store).fence(fence).load(0, 0, load)},
                  {});
  return machine.reaches([](const State& end) { return end.registers[0][0] == 0 && end.registers[1][0] == 0; });
}

TEST(WeakMemory, StoresPassLoadsUnlessBothAreSequentiallyConsistent) {
  EXPECT_TRUE(both_miss(Order::kRelaxed, Order::kRelaxed, Order::kRelaxed));
  EXPECT_TRUE(both_miss(Order::kRelease, Order::kAcquire, Order::kRelaxed));
  EXPECT_TRUE(both_miss(Order::kSeqCst, Order::kAcquire, Order::kRelaxed));
  EXPECT_TRUE(both_miss(Order::kRelaxed, Order::kRelaxed, Order::kRelease));
  EXPECT_TRUE(both_miss(Order::kRelaxed, Order::kRelaxed, Order::kAcquire));
  EXPECT_FALSE(both_miss(Order::kSeqCst, Order::kSeqCst, Order::kRelaxed));
  EXPECT_FALSE(both_miss(Order::kRelaxed, Order::kRelaxed, Order::kSeqCst));
}

TEST(WeakMemory, ALoadPassesALaterStoreUnlessItIsReleased) {
  for (const Order order : {Order::kRelaxed, Order::kRelease}) {
    Machine machine({Program().load(0, 0).store(1, 1, order), Program().load(0, 1).store(0, 1, order)}, {});
    const bool reaches =
        machine.reaches([](const State& end) { return end.registers[0][0] == 1 && end.registers[1][0] == 1; });
    EXPECT_EQ(reaches, order == Order::kRelaxed);
  }
}

TEST(WeakMemory, OneWordNeverGoesBack) {
  Machine machine({Program().store(0, 1).store(0, 2), Program().load(0, 0).load(1, 0)}, {});
  EXPECT_FALSE(machine.reaches([](const State& end) { return end.registers[1][0] > end.registers[1][1]; }));
  EXPECT_TRUE(machine.reaches([](const State& end) { return end.registers[1][0] == 1 && end.registers[1][1] == 2; }));
}

// --- the store: src/kv/store.cpp and reader.cpp
// -------------------------------------------------------------------------

enum : std::uint8_t { kNotLive = 0, kLive = 1, kSuperseded = 2 };

// A PUT over an item, small or large: the worker marks the old one superseded, makes the new one live and answers. One
// reader finds the new item at one place and then looks at the old place, another one looks there after the answer.
TEST(Litmus, NobodyTakesTheOldItemAfterTheNewOneOrTheAnswer) {
  check([](Fences& fences) {
    enum : std::uint8_t { kOldState, kNewState, kReply };
    Program worker;
    worker.store(kOldState, kSuperseded)
        .store(kNewState, kLive, fences.release("live, released"))
        .store(kReply, 1, fences.release("reply, released"));
    Program reader;
    reader.load(0, kNewState).fence(fences.acquire("read_before_next")).load(1, kOldState);
    Program told;
    told.load(0, kReply, fences.acquire("reply, acquired")).load(1, kOldState);
    return Litmus{{worker, reader, told}, {kLive, kNotLive, 0}, [](const State& end) {
                    const bool was_after_new = end.registers[1][0] == kLive && end.registers[1][1] == kLive;
                    const bool was_after_reply = end.registers[2][0] == 1 && end.registers[2][1] == kLive;
                    return was_after_new || was_after_reply;
                  }};
  });
}

// A large value: bytes 1 belong to the item, 0 were there before, and 2 are of who uses the block again. The reader
// READs the item, its value, and the item's state once more. The mark is an exchange, as in the code.
TEST(Litmus, AValueBetweenTwoLooksAtItsLiveItemIsItsOwn) {
  check([](Fences& fences) {
    enum : std::uint8_t { kState, kValue };
    Program worker;
    worker.store(kValue, 1)
        .store(kState, kLive, fences.release("live, released"))
        .exchange(0, kState, kSuperseded)
        .fence(fences.release("superseded_before_reuse"))
        .store(kValue, 2);
    Program reader;
    reader.load(0, kState)
        .fence(fences.acquire("read_before_next, from the item to its value"))
        .load(1, kValue)
        .fence(fences.acquire("read_before_next, from the value to the second look"))
        .load(2, kState);
    return Litmus{{worker, reader}, {kNotLive, 0}, [](const State& end) {
                    const Registers& saw = end.registers[1];
                    return saw[0] == kLive && saw[2] == kLive && saw[1] != 1;
                  }};
  });
}

// A small item of a store with guarded readers: bytes 1 are the item's, and 2 are of who uses its block again. The
// reader has found the item in the index, READs it, and READs the index once more.
TEST(Litmus, AnItemThatTheIndexStillNamesIsItsOwn) {
  check([](Fences& fences) {
    enum : std::uint8_t { kItem, kIndex };
    Program worker;
    worker.store(kIndex, 0).fence(fences.release("unindexed_before_reuse")).store(kItem, 2);
    Program reader;
    reader.load(0, kItem).fence(fences.acquire("read_before_next, from the item to the index")).load(1, kIndex);
    return Litmus{{worker, reader}, {1, 1}, [](const State& end) {
                    return end.registers[1][0] == 2 && end.registers[1][1] == 1;
                  }};
  });
}

// --- the software NIC: src/nic/soft
// -------------------------------------------------------------------------------------

// One slot of the ring, which is used twice. The producer's acquire of the consumer's progress is not among the fences:
// here, as on every processor, its store waits for the load that allows it. In C++ that takes the acquire.
TEST(Litmus, AMessageIsWholeAndItsSlotUsedAgainOnlyAfterwards) {
  check([](Fences& fences) {
    enum : std::uint8_t { kHeader, kPayload, kConsumed };
    // The producer's slot has been consumed; the consumer's message is there.
    const Condition is_one{.of = {0}, .holds = [](const Registers& known) { return known[0] == 1; }};
    Program producer;
    producer.store(kPayload, 1)
        .store(kHeader, 1, fences.release("header, released"))
        .load(0, kConsumed, Order::kAcquire)
        .store(kPayload, 2, Order::kRelaxed, is_one)
        .store(kHeader, 2, Order::kRelease, is_one);
    Program consumer;
    consumer.load(0, kHeader, fences.acquire("header, acquired"))
        .load(1, kPayload)
        .store(kConsumed, 1, fences.release("progress, released"), is_one);
    return Litmus{{producer, consumer}, {}, [](const State& end) {
                    return end.registers[1][0] == 1 && end.registers[1][1] != 1;
                  }};
  });
}

// RDMA_WRITE_WITH_IMM, or a SEND behind a WRITE: the bytes, then the slot.
TEST(Litmus, WrittenBytesAreThereBeforeTheImmediate) {
  check([](Fences& fences) {
    enum : std::uint8_t { kBytes, kHeader };
    Program initiator;
    initiator.store(kBytes, 1).store(kHeader, 1, fences.release("header, released"));
    Program target;
    target.load(0, kHeader, fences.acquire("header, acquired")).load(1, kBytes);
    return Litmus{
        {initiator, target}, {}, [](const State& end) { return end.registers[1][0] == 1 && end.registers[1][1] == 0; }};
  });
}

// Two WRITEs, the second of a word that the target's program polls, by a load that acquires.
TEST(Litmus, WritesOfOneInitiatorComeInOrder) {
  check([](Fences& fences) {
    enum : std::uint8_t { kBytes, kWord };
    Program initiator;
    initiator.store(kBytes, 1).fence(fences.release("writes_in_order")).store(kWord, 1);
    Program target;
    target.load(0, kWord, fences.acquire("word, acquired by the program")).load(1, kBytes);
    return Litmus{
        {initiator, target}, {}, [](const State& end) { return end.registers[1][0] == 1 && end.registers[1][1] == 0; }};
  });
}

// An owner takes a key back while an initiator is about to READ what the owner will reuse, and to WRITE bytes that the
// owner looks at afterwards. It has left when the word is even, or another one at the second look.
TEST(Litmus, NoAccessGoesOnAfterItsKeyWasRevoked) {
  check([](Fences& fences) {
    enum : std::uint8_t { kKey, kWord, kReused, kBytes };
    const auto has_left = [](const Registers& known) { return known[0] != 1 || known[1] != 1; };
    const auto holds = [](const Registers& known) { return known[0] == 1; };
    Program owner;
    owner.store(kKey, 0)
        .heavy(fences.has("membarrier of the owner"))
        .load(0, kWord, fences.acquire("word, acquired"))
        .load(1, kWord, fences.acquire("word, acquired"))
        .load(2, kBytes)
        .store(kReused, 9, Order::kRelaxed, {.of = {0, 1}, .holds = has_left});
    Program initiator;
    initiator.store(kWord, 1, Order::kRelease)
        .light(fences.has("access_before_key"))
        .load(0, kKey, Order::kAcquire)
        .load(1, kReused)
        .store(kBytes, 5, Order::kRelaxed, {.of = {0}, .holds = holds})
        .store(kWord, 2, fences.release("even word, released"));
    return Litmus{{owner, initiator}, {1, 0, 0, 0}, [=](const State& end) {
                    const bool has_read_reused = holds(end.registers[1]) && end.registers[1][1] == 9;
                    const bool has_written_late = end.memory[kBytes] != end.registers[0][2];
                    return has_left(end.registers[0]) && (has_read_reused || has_written_late);
                  }};
  });
}

/// One agent stores its word and looks at the other's, and pays nothing; the other one does the same, with membarrier
/// in between. At least one of them sees the other.
void check_asymmetric(const std::string& light) {
  check([&](Fences& fences) {
    enum : std::uint8_t { kMine, kTheirs };
    Program often;
    often.store(kMine, 1, Order::kRelease).light(fences.has(light)).load(0, kTheirs);
    Program seldom;
    seldom.store(kTheirs, 1, Order::kRelease).heavy(fences.has("membarrier")).load(0, kMine, Order::kAcquire);
    return Litmus{
        {often, seldom}, {}, [](const State& end) { return end.registers[0][0] == 0 && end.registers[1][0] == 0; }};
  });
}

// The sender rings the bell, or the receiver sees the message at its last look before it sleeps.
TEST(Litmus, ASleepingReceiverIsWoken) { check_asymmetric("message_before_bell"); }
TEST(Litmus, ASleepingSenderIsWoken) { check_asymmetric("credit_before_bell"); }
// The owner stays out of its lists, or the control plane sees that it is inside.
TEST(Litmus, PollAndControlPlaneExcludeEachOther) { check_asymmetric("poll_before_control"); }
// src/base/exclusive.hpp: the thread sees that it is not the last any more, or the other one that it is inside.
TEST(Litmus, ThreadsOfAnExclusiveExcludeEachOther) { check_asymmetric("mark_before_last"); }

// --- the loop and its mailbox: src/engine
// -------------------------------------------------------------------------------

// A letter is put in by an exchange, and its sender looks whether the reader sleeps; the reader says so and looks.
TEST(Litmus, AReaderDoesNotSleepOverALetter) {
  check([](Fences& fences) {
    enum : std::uint8_t { kLast, kSleeping };
    const auto seq_cst = [&](std::string_view name) { return fences.has(name) ? Order::kSeqCst : Order::kAcquire; };
    Program sender;
    sender.exchange(0, kLast, 1).load(1, kSleeping, seq_cst("sender's look, sequentially consistent"));
    Program reader;
    reader.store(kSleeping, 1, Order::kSeqCst).load(0, kLast, seq_cst("reader's look, sequentially consistent"));
    return Litmus{
        {sender, reader}, {}, [](const State& end) { return end.registers[0][1] == 0 && end.registers[1][0] == 0; }};
  });
}

// A call is put in, in two stores, and finds the mailbox open; the mailbox is shut and read for the last time. Whoever
// found it open is read. `looks_at_last`: as Mailbox::shut does. Else it goes by the list, as it once did.
[[nodiscard]] Litmus shutting(Fences& fences, bool looks_at_last) {
  enum : std::uint8_t { kLast, kNext, kIsShut };
  const bool is_strong = fences.has("look at the last letter, sequentially consistent");
  Program sender;
  sender.exchange(0, kLast, 1).store(kNext, 1, Order::kRelease).load(1, kIsShut, Order::kSeqCst);
  Program reader;
  reader.store(kIsShut, 1, Order::kSeqCst)
      .load(0, looks_at_last ? kLast : kNext, looks_at_last && is_strong ? Order::kSeqCst : Order::kAcquire);
  return {{sender, reader}, {}, [](const State& end) { return end.registers[0][1] == 0 && end.registers[1][0] == 0; }};
}

TEST(Litmus, ACallThatFoundTheMailboxOpenIsRead) {
  check([](Fences& fences) { return shutting(fences, true); });
  Fences all;
  EXPECT_TRUE(goes_wrong([](Fences& fences) { return shutting(fences, false); }, all));
}

// --- the list of fences
// -------------------------------------------------------------------------------------------------

// Behind the others, whose fences it counts: run with a filter it has nothing to say.
TEST(LitmusList, EveryFenceOfTheHeaderIsTakenOutSomewhere) {
  if (tried().empty()) GTEST_SKIP() << "the tests of the single protocols were filtered out";
  const std::string header = test::path_in("VERBENA_FENCES");
  std::ifstream file(header);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t uses = text.find("\\name");
  ASSERT_NE(uses, std::string::npos) << header;
  const std::regex function("inline void (\\w+)\\(\\)");
  std::size_t found = 0;
  for (std::sregex_iterator at(text.begin() + static_cast<std::ptrdiff_t>(uses), text.end(), function), end; at != end;
       ++at, ++found)
    EXPECT_TRUE(tried().contains((*at)[1].str())) << (*at)[1] << " has no litmus test";
  EXPECT_GE(found, 8U);
}

}  // namespace
}  // namespace verbena::weak
