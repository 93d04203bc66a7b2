// The checker of histories: what it must reject and what it must accept, and a comparison with trying all orders.
#include "history.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace verbena::kv::history {
namespace {

constexpr std::uint64_t kNever = 0;  // Of a return: no answer.

/// Calls on one key, each with its client, invocation and return.
class History {
 public:
  History& get(unsigned client, std::uint64_t from, std::uint64_t to, std::uint64_t value, std::uint64_t version) {
    return add({.op = Op::kGet, .value = value, .version = version}, client, from, to, End::kOk);
  }
  History& miss(unsigned client, std::uint64_t from, std::uint64_t to) {
    return add({.op = Op::kGet}, client, from, to, End::kNotFound);
  }
  History& torn(unsigned client, std::uint64_t from, std::uint64_t to) {
    return add({.op = Op::kGet}, client, from, to, End::kTorn);
  }
  History& put(unsigned client, std::uint64_t from, std::uint64_t to, std::uint64_t value, std::uint64_t version) {
    return add({.op = Op::kPut, .value = value, .version = version}, client, from, to, End::kOk);
  }
  History& cas(unsigned client, std::uint64_t from, std::uint64_t to, std::uint64_t expected, std::uint64_t value,
               std::uint64_t version, End end = End::kOk) {
    return add({.op = Op::kCas, .value = value, .version = version, .expected = expected}, client, from, to, end);
  }
  /// `version` is the current one that it was told.
  History& lost_cas(unsigned client, std::uint64_t from, std::uint64_t to, std::uint64_t expected, std::uint64_t value,
                    std::uint64_t version) {
    return cas(client, from, to, expected, value, version, version == 0 ? End::kNotFound : End::kMismatch);
  }
  History& erase(unsigned client, std::uint64_t from, std::uint64_t to, std::uint64_t version) {
    return add({.op = Op::kErase, .version = version}, client, from, to, End::kOk);
  }
  History& erase_nothing(unsigned client, std::uint64_t from, std::uint64_t to) {
    return add({.op = Op::kErase}, client, from, to, End::kNotFound);
  }
  History& cell_read(unsigned client, std::uint64_t from, std::uint64_t to, std::uint64_t found) {
    return add({.op = Op::kCellRead, .value = found}, client, from, to, End::kOk);
  }
  History& cell_add(unsigned client, std::uint64_t from, std::uint64_t to, std::uint64_t addend, std::uint64_t found) {
    return add({.op = Op::kCellAdd, .value = found, .argument = addend}, client, from, to, End::kOk);
  }
  History& cell_swap(unsigned client, std::uint64_t from, std::uint64_t to, std::uint64_t expected,
                     std::uint64_t desired, std::uint64_t found) {
    return add({.op = Op::kCellSwap, .value = found, .expected = expected, .argument = desired}, client, from, to,
               End::kOk);
  }
  [[nodiscard]] const std::vector<Call>& calls() const noexcept { return calls_; }

 private:
  History& add(Call call, unsigned client, std::uint64_t from, std::uint64_t to, End end) {
    call.client = static_cast<std::uint16_t>(client);
    call.key = 1;
    call.invoked_ns = from;
    call.returned_ns = to;
    call.end = to == kNever ? End::kOpen : end;
    // What had no answer told nothing.
    if (to == kNever && call.op != Op::kCellAdd && call.op != Op::kCellSwap) call.version = 0;
    calls_.push_back(call);
    return *this;
  }
  std::vector<Call> calls_;
};

struct Bad {
  const char* what;
  History history;
  const char* why = "no order explains";
};

// Values are A = 10, B = 20, C = 30.
const std::array kBad{
    Bad{"stale read after an acknowledged put", History().put(1, 1, 2, 10, 1).put(1, 3, 4, 20, 2).get(2, 5, 6, 10, 1)},
    Bad{"stale read after an acknowledged cas",
        History().put(1, 1, 2, 10, 1).cas(1, 3, 4, 1, 20, 2).get(2, 5, 6, 10, 1)},
    Bad{"an acknowledged put is gone", History().put(1, 1, 2, 10, 1).miss(2, 3, 4)},
    Bad{"lost update: both swap the same version",
        History().put(1, 1, 2, 10, 1).cas(1, 3, 6, 1, 20, 2).cas(2, 4, 7, 1, 30, 3)},
    Bad{"two winners insert", History().cas(1, 1, 4, 0, 10, 1).cas(2, 2, 5, 0, 20, 2)},
    Bad{"lost update: the put between is overwritten unseen",
        History().put(1, 1, 2, 10, 1).put(2, 3, 4, 20, 2).cas(1, 5, 6, 1, 30, 3)},
    Bad{"torn value", History().put(1, 1, 2, 10, 1).torn(2, 3, 4), "torn"},
    Bad{"resurrected after an acknowledged erase", History().put(1, 1, 2, 10, 1).erase(1, 3, 4, 1).get(2, 5, 6, 10, 1)},
    Bad{"resurrected: not found, then found again",
        History().put(1, 1, 2, 10, 1).erase(1, 3, 9, 1).miss(2, 4, 5).get(2, 6, 7, 10, 1)},
    Bad{"a value that nobody stored", History().put(1, 1, 2, 10, 1).get(2, 3, 4, 99, 1), "nobody stored"},
    Bad{"a value before it was stored", History().get(2, 1, 2, 10, 1).put(1, 3, 4, 10, 1)},
    Bad{"the value of a cas that lost", History().put(1, 1, 2, 10, 2).lost_cas(1, 3, 4, 1, 20, 2).get(2, 5, 6, 20, 3),
        "nobody stored"},
    Bad{"version goes back from put to put", History().put(1, 1, 2, 10, 5).put(1, 3, 4, 20, 4)},
    Bad{"version goes back after an erase", History().put(1, 1, 2, 10, 5).erase(1, 3, 4, 5).put(1, 5, 6, 20, 4)},
    Bad{"put tells one version and get another", History().put(1, 1, 2, 10, 5).get(2, 3, 4, 10, 6), "two versions"},
    Bad{"two gets tell two versions of one value",
        History().put(1, 1, kNever, 10, 0).get(2, 3, 4, 10, 5).get(2, 5, 6, 10, 6), "two versions"},
    Bad{"one version for two values", History().put(1, 1, 2, 10, 5).put(1, 3, 4, 20, 5), "one version"},
    Bad{"new, then old, by two readers, while the put is under way",
        History().put(1, 1, 2, 10, 1).put(1, 3, 20, 20, 2).get(2, 4, 6, 20, 2).get(3, 7, 9, 10, 1)},
    Bad{"new, then old, and the put has no answer",
        History().put(1, 1, 2, 10, 1).put(1, 3, kNever, 20, 0).get(2, 4, 6, 20, 2).get(3, 7, 9, 10, 1)},
    Bad{"two readers see two puts in two orders", History()
                                                      .put(1, 1, 20, 10, 1)
                                                      .put(2, 1, 20, 20, 2)
                                                      .get(3, 2, 3, 10, 1)
                                                      .get(3, 6, 7, 20, 2)
                                                      .get(4, 2, 3, 20, 2)
                                                      .get(4, 6, 7, 10, 1)},
    Bad{"a put without an answer takes effect twice",
        History().put(1, 1, kNever, 10, 0).get(2, 2, 3, 10, 1).put(3, 4, 5, 20, 2).get(2, 6, 7, 10, 1)},
    Bad{"an erase without an answer takes effect twice",
        History().put(1, 1, 2, 10, 1).erase(1, 3, kNever, 0).miss(2, 4, 5).put(3, 6, 7, 20, 2).miss(2, 8, 9)},
    Bad{"cas finds a version that was replaced before",
        History().put(1, 1, 2, 10, 1).put(1, 3, 4, 20, 2).lost_cas(2, 5, 6, 7, 30, 1)},
    Bad{"cas is refused although its version is the current one",
        History().put(1, 1, 2, 10, 1).lost_cas(2, 3, 4, 1, 30, 1)},
    Bad{"insert is refused although nothing is there",
        History().put(1, 1, 2, 10, 1).erase(1, 3, 4, 1).lost_cas(2, 5, 6, 0, 30, 1)},
    Bad{"cas finds nothing although a key is there", History().put(1, 1, 2, 10, 1).lost_cas(2, 3, 4, 5, 30, 0)},
    Bad{"a cas without an answer swaps what another has swapped",
        History().put(1, 1, 2, 10, 1).cas(1, 3, kNever, 1, 20, 0).cas(2, 4, 5, 1, 30, 2).get(3, 6, 7, 20, 3)},
    Bad{"two clients erase one item", History().put(1, 1, 2, 10, 1).erase(1, 3, 6, 1).erase(2, 4, 7, 1)},
    Bad{"erase finds nothing although a key is there", History().put(1, 1, 2, 10, 1).erase_nothing(2, 3, 4)},
    Bad{"erase tells the version of an older item",
        History().put(1, 1, 2, 10, 1).put(1, 3, 4, 20, 2).erase(2, 5, 6, 1)},
    Bad{"cell: one addition is lost", History().cell_add(1, 1, 4, 1, 0).cell_add(2, 2, 5, 1, 0)},
    Bad{"cell: two winners of one swap", History().cell_swap(1, 1, 4, 0, 5, 0).cell_swap(2, 2, 5, 0, 6, 0)},
    Bad{"cell: stale read", History().cell_add(1, 1, 2, 3, 0).cell_read(2, 3, 4, 0)},
    Bad{"cell: new, then old", History().cell_add(1, 1, 20, 3, 0).cell_read(2, 2, 4, 3).cell_read(3, 5, 7, 0)},
    Bad{"cell: an addition without an answer counts twice",
        History().cell_add(1, 1, kNever, 3, 0).cell_read(2, 2, 4, 3).cell_read(2, 5, 7, 6)},
};

struct Good {
  const char* what;
  History history;
};

const std::array kGood{
    Good{"nothing", History()},
    Good{"one after the other", History()
                                    .miss(1, 1, 2)
                                    .put(1, 3, 4, 10, 1)
                                    .get(1, 5, 6, 10, 1)
                                    .cas(1, 7, 8, 1, 20, 2)
                                    .erase(1, 9, 10, 2)
                                    .erase_nothing(1, 11, 12)
                                    .cas(1, 13, 14, 0, 30, 3)},
    Good{"old and new while a put is under way",
         History().put(1, 1, 2, 10, 1).put(1, 3, 20, 20, 2).get(2, 4, 6, 10, 1).get(3, 7, 9, 20, 2)},
    Good{"two readers that overlap see new and old",
         History().put(1, 1, 2, 10, 1).put(1, 3, 20, 20, 2).get(2, 4, 9, 20, 2).get(3, 5, 8, 10, 1)},
    Good{"touching is overlapping", History().put(1, 1, 5, 10, 1).miss(2, 5, 6)},
    Good{"the later put has the lower version, because they overlap",
         History().put(1, 1, 9, 10, 2).put(2, 2, 8, 20, 1).get(3, 10, 11, 10, 2)},
    Good{"a put without an answer takes effect much later",
         History().put(1, 1, kNever, 10, 0).miss(2, 2, 3).put(2, 4, 5, 20, 1).get(2, 6, 7, 20, 1).get(2, 8, 9, 10, 2)},
    Good{"a put without an answer never takes effect",
         History().put(1, 1, kNever, 10, 0).put(2, 4, 5, 20, 1).get(2, 6, 7, 20, 1).erase(2, 8, 9, 1).miss(2, 10, 11)},
    Good{"a put without an answer that only a cas shows",
         History().put(1, 1, kNever, 10, 0).lost_cas(2, 4, 5, 0, 20, 7).cas(2, 6, 7, 7, 20, 8).get(2, 8, 9, 20, 8)},
    Good{"a put without an answer that only an erase shows",
         History().put(1, 1, kNever, 10, 0).erase(2, 4, 5, 7).put(2, 6, 7, 20, 9).get(2, 8, 9, 20, 9)},
    Good{"an erase without an answer between two gets",
         History().put(1, 1, 2, 10, 1).erase(1, 3, kNever, 0).get(2, 4, 5, 10, 1).miss(2, 6, 7)},
    Good{"a cas without an answer that wins, and one that loses",
         History().put(1, 1, 2, 10, 1).cas(1, 3, kNever, 1, 20, 0).cas(2, 4, kNever, 1, 30, 0).get(3, 6, 7, 30, 4)},
    Good{"two without an answer in the order of their versions",
         History().put(1, 1, kNever, 10, 0).put(2, 1, kNever, 20, 0).get(3, 3, 4, 20, 3).get(3, 5, 6, 10, 8)},
    Good{"a chain of swaps that overlap, told in reverse",
         History().cas(1, 1, 20, 2, 30, 3).cas(2, 1, 20, 1, 20, 2).cas(3, 1, 20, 0, 10, 1)},
    Good{"erase and insert race, and both win",
         History().put(1, 1, 2, 10, 1).erase(1, 3, 9, 1).cas(2, 4, 8, 0, 20, 2).get(3, 10, 11, 20, 2)},
    Good{"erase and insert race the other way",
         History().put(1, 1, 2, 10, 1).erase(1, 3, 9, 1).lost_cas(2, 4, 8, 0, 20, 1).miss(3, 10, 11)},
    Good{"a get without an answer says nothing", History().put(1, 1, 2, 10, 1).get(2, 3, kNever, 99, 9)},
    Good{"cell: additions that overlap, told in reverse",
         History().cell_add(1, 1, 9, 1, 3).cell_add(2, 1, 9, 2, 1).cell_add(3, 1, 9, 1, 0).cell_read(1, 10, 11, 4)},
    Good{"cell: a swap that finds another word changes nothing",
         History().cell_add(1, 1, 2, 5, 0).cell_swap(2, 3, 4, 0, 9, 5).cell_read(1, 5, 6, 5)},
    Good{"cell: an addition without an answer counts once",
         History().cell_add(1, 1, kNever, 3, 0).cell_read(2, 2, 4, 0).cell_read(2, 5, 7, 3)},
};

TEST(KvHistory, RejectsWhatIsWrong) {
  for (const Bad& bad : kBad) {
    const HistoryVerdict verdict = check(bad.history.calls());
    EXPECT_FALSE(verdict.is_linearizable()) << bad.what;
    EXPECT_NE(verdict.why.find(bad.why), std::string::npos) << bad.what << ": " << verdict.why;
  }
}

TEST(KvHistory, AcceptsWhatIsTrickyAndRight) {
  for (const Good& good : kGood) {
    std::vector<Call> calls = good.history.calls();
    EXPECT_EQ(check(calls).why, "") << good.what;
    std::ranges::reverse(calls);
    EXPECT_EQ(check(calls).why, "") << good.what << ", in another order";
  }
}

TEST(KvHistory, ValuesAreGoneByThemselvesInTheirTimeOnly) {
  // Stored at 100 to 110, for 640: gone from 730 to 760, as clocks are.
  const auto history_of = [](const Call& last, bool is_evicted = false) {
    std::vector<Call> calls = History().put(1, 100, 110, 10, 1).calls();
    calls.front().ttl_ns = is_evicted ? 0 : 640;
    calls.front().may_be_evicted = is_evicted;
    calls.push_back(last);
    return check(calls).why;
  };
  const auto get_at = [](std::uint64_t from) { return History().get(2, from, from + 5, 10, 1).calls().front(); };
  const auto miss_at = [](std::uint64_t from) { return History().miss(2, from, from + 5).calls().front(); };
  EXPECT_EQ(history_of(get_at(120)), "");
  EXPECT_EQ(history_of(get_at(760)), "");
  EXPECT_NE(history_of(get_at(761)), "");
  EXPECT_NE(history_of(miss_at(724)), "");
  EXPECT_EQ(history_of(miss_at(725)), "");
  EXPECT_EQ(history_of(miss_at(10'000)), "");
  EXPECT_EQ(history_of(get_at(10'000), true), "");
  EXPECT_EQ(history_of(miss_at(120), true), "");
  // What is gone does not come back.
  std::vector<Call> calls = History().put(1, 100, 110, 10, 1).miss(2, 740, 742).get(2, 744, 746, 10, 1).calls();
  calls.front().ttl_ns = 640;
  EXPECT_NE(check(calls).why, "");
}

TEST(KvHistory, CountsWhatOverlapsWithAnotherClient) {
  // 1 spans 2 and 3; 4 and 5 are of one client; 6 stands alone; 7 is open, and 8 comes after it.
  const History history = History()
                              .put(1, 1, 10, 10, 1)
                              .miss(2, 2, 3)
                              .get(3, 4, 5, 10, 1)
                              .get(4, 11, 14, 10, 1)
                              .get(4, 12, 13, 10, 1)
                              .get(5, 20, 21, 10, 1)
                              .put(6, 30, kNever, 20, 0)
                              .get(7, 40, 41, 10, 1);
  const HistoryVerdict verdict = check(history.calls());
  EXPECT_EQ(verdict.why, "");
  EXPECT_EQ(verdict.calls, 8u);
  EXPECT_EQ(verdict.open, 1u);
  EXPECT_EQ(verdict.overlapping, 5u);
  EXPECT_EQ(check(History().put(1, 1, 2, 10, 1).put(1, 3, 4, 20, 2).calls()).overlapping, 0u);
}

TEST(KvHistory, ManyCallsWithoutAnAnswerStaySmall) {
  History history;
  for (unsigned i = 0; i < 20; ++i) history.put(1, 1 + i, kNever, 1000 + i, 0);
  for (unsigned i = 1; i < 300; ++i) history.put(2, 100 * i, 100 * i + 5, i, i).get(3, 100 * i + 6, 100 * i + 7, i, i);
  const HistoryVerdict verdict = check(history.calls());
  EXPECT_EQ(verdict.why, "");
  EXPECT_LE(verdict.configurations, 2u) << "what need not have happened has not";
}

TEST(KvHistory, SaysWhenItGivesUp) {
  History history;
  for (unsigned i = 0; i < 65; ++i) history.put(i, 1, 1000, i + 1, i + 1);
  EXPECT_NE(check(history.calls()).why.find("not decided"), std::string::npos);
}

// --- against trying all orders

/// Whether the calls, one after the other in this order, are what a store would have answered. Told apart from the
/// checker: it keeps all versions there ever were, and looks at their order in the end.
bool explains(std::span<const Call* const> order) {
  std::vector<std::uint64_t> versions;  // Of the items made, in order; 0 while unknown.
  std::vector<std::uint64_t> values;
  bool is_there = false;
  const auto sees = [&](std::uint64_t version) {
    if (!is_there) return false;
    if (versions.back() == 0) versions.back() = version;
    return versions.back() == version;
  };
  for (const Call* call : order) {
    const bool is_open = call->end == End::kOpen;
    const bool is_change = call->end == End::kOk || is_open;
    bool fits = false;
    switch (call->op) {
      case Op::kGet:
        fits =
            call->end == End::kNotFound ? !is_there : is_there && values.back() == call->value && sees(call->version);
        break;
      case Op::kErase:
        fits = call->end == End::kNotFound ? !is_there : is_open ? is_there : sees(call->version);
        if (is_change) is_there = false;
        break;
      case Op::kCas:
        if (call->end == End::kNotFound) fits = !is_there && call->expected != 0;
        if (call->end == End::kMismatch) fits = call->expected != call->version && sees(call->version);
        if (is_change) fits = call->expected == 0 ? !is_there : sees(call->expected);
        break;
      default: fits = true;
    }
    if (!fits) return false;
    if (!is_change || (call->op != Op::kPut && call->op != Op::kCas)) continue;
    values.push_back(call->value);
    versions.push_back(is_open ? 0 : call->version);
    is_there = true;
  }
  std::erase(versions, 0);
  return std::ranges::adjacent_find(versions, std::greater_equal<>{}) == versions.end();
}

bool brute_force(std::span<const Call> calls, std::vector<const Call*>& order) {
  const auto is_placed = [&](const Call& call) { return std::ranges::find(order, &call) != order.end(); };
  if (std::ranges::all_of(calls, [&](const Call& call) { return call.end == End::kOpen || is_placed(call); }) &&
      explains(order))
    return true;
  for (const Call& call : calls) {
    const bool is_too_early = std::ranges::any_of(calls, [&](const Call& other) {
      return other.end != End::kOpen && !is_placed(other) && other.returned_ns < call.invoked_ns;
    });
    if (is_placed(call) || is_too_early) continue;
    order.push_back(&call);
    if (brute_force(calls, order)) return true;
    order.pop_back();
  }
  return false;
}

/// Seven calls of three clients as a right store may answer them, some without an answer.
std::vector<Call> random_history(std::mt19937_64& random) {
  struct Tick {
    std::uint64_t at;
    std::size_t call;
  };
  constexpr std::size_t kCalls = 7;
  std::vector<Call> calls;
  std::vector<Tick> ticks;
  std::array<std::uint64_t, 3> clocks{1, 2, 3};
  for (std::size_t i = 0; i < kCalls; ++i) {
    const std::size_t client = random() % clocks.size();
    Call call;
    call.op = static_cast<Op>(random() % 4);
    call.client = static_cast<std::uint16_t>(client);
    call.invoked_ns = clocks[client] + random() % 12;
    call.returned_ns = call.invoked_ns + 1 + random() % 24;
    clocks[client] = call.returned_ns + 1;
    const bool is_open = call.op != Op::kGet && random() % 6 == 0;
    const std::uint64_t at = call.invoked_ns + random() % (is_open ? 60 : call.returned_ns - call.invoked_ns + 1);
    call.end = is_open ? End::kOpen : End::kOk;
    call.value = call.op == Op::kPut || call.op == Op::kCas ? 10 + i : 0;
    calls.push_back(call);
    if (!is_open || random() % 2 == 0) ticks.push_back({at, i});
  }
  std::ranges::sort(ticks, {}, &Tick::at);
  std::uint64_t value = 0, version = 0, last = 0;
  for (const Tick& tick : ticks) {
    Call& call = calls[tick.call];
    const auto answer = [&](End end, std::uint64_t told) {
      if (call.end != End::kOpen) call.version = told, call.end = end;
    };
    if (call.op == Op::kCas) call.expected = random() % 3 == 0 ? random() % (last + 2) : version;
    if (call.op == Op::kGet) call.value = value;
    if (call.op == Op::kPut || (call.op == Op::kCas && call.expected == version)) {
      value = call.value;
      version = last += 1 + random() % 2;
      answer(End::kOk, version);
    } else {
      answer(version == 0 ? End::kNotFound : call.op == Op::kCas ? End::kMismatch : End::kOk, version);
      if (call.op == Op::kErase) value = version = 0;
    }
  }
  return calls;
}

/// One thing told differently.
void spoil(std::vector<Call>& calls, std::mt19937_64& random) {
  Call& call = calls[random() % calls.size()];
  const Call& other = calls[random() % calls.size()];
  if (call.end == End::kOpen) return;
  switch (random() % 5) {
    case 0:
      if (call.version != 0) call.version = std::max<std::uint64_t>(1, call.version + random() % 3 - 1);
      break;
    case 1:
      if (call.op == Op::kGet && other.op == Op::kPut) call.value = other.value, call.end = End::kOk, call.version = 3;
      break;
    case 2:
      if (call.op == Op::kGet || call.op == Op::kErase) call.end = End::kNotFound, call.version = 0;
      break;
    case 3: call.returned_ns = call.invoked_ns + random() % 8; break;
    default:
      if (call.op == Op::kGet && other.op == Op::kGet && other.end == End::kOk) {
        call.value = other.value;
        call.version = other.version;
        call.end = other.end;
      }
  }
}

TEST(KvHistory, AgreesWithTryingAllOrders) {
  constexpr int kHistories = 3000;
  std::mt19937_64 random(11);
  std::array<int, 2> verdicts{};
  for (int i = 0; i < kHistories; ++i) {
    std::vector<Call> calls = random_history(random);
    ASSERT_EQ(check(calls).why, "") << i;
    for (std::uint64_t changes = 1 + random() % 2; changes != 0; --changes) spoil(calls, random);
    std::vector<const Call*> order;
    const bool expected = brute_force(calls, order);
    const HistoryVerdict verdict = check(calls);
    std::string text = verdict.why + "\n";
    for (const Call& call : calls) text += to_text(call) + "\n";
    ASSERT_EQ(verdict.is_linearizable(), expected) << i << ": " << text;
    ++verdicts[expected ? 1 : 0];
  }
  EXPECT_GT(verdicts[0], kHistories / 10);
  EXPECT_GT(verdicts[1], kHistories / 10);
}

}  // namespace
}  // namespace verbena::kv::history
