#include "history.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

namespace verbena::kv::history {
namespace {

constexpr std::size_t kMostUnderWay = 64;

/// What a key is at one time.
struct State {
  bool is_there = false;
  std::uint64_t value = 0;
  std::uint64_t version = 0;                       ///< 0 while nobody has told it: the put that made it had no answer.
  std::uint64_t floor = 0;                         ///< The highest version so far: the next one is above it.
  std::uint64_t gone_from_ns = ~std::uint64_t{0};  ///< It may be gone by itself, but not earlier.
  std::uint64_t gone_by_ns = ~std::uint64_t{0};    ///< It is there no later than this.
  auto operator<=>(const State&) const = default;
};

/// Two clocks measure a time to live, and each may be wrong by this part.
constexpr std::uint64_t kClockPart = 64;

bool is_there_for(const State& state, const Call& call) {
  return state.is_there && call.invoked_ns <= state.gone_by_ns;
}

/// Whether the key may be absent for the call; then it is from now on.
bool is_absent_for(State& state, const Call& call) {
  const std::uint64_t latest_ns = call.end == End::kOpen ? ~std::uint64_t{0} : call.returned_ns;
  const bool stays = state.gone_from_ns == ~std::uint64_t{0};
  if (state.is_there && (stays || latest_ns < state.gone_from_ns)) return false;
  state = {.floor = state.floor};
  return true;
}

/// Whether the item that is there may be of this version; if so, it is.
bool takes_version(State& state, std::uint64_t version) {
  if (!state.is_there) return false;
  if (state.version != 0) return state.version == version;
  if (version <= state.floor) return false;
  state.version = state.floor = version;
  return true;
}

/// Version 0: not known.
bool store(State& state, const Call& call) {
  const std::uint64_t version = call.version;
  if (version != 0 && version <= state.floor) return false;
  state = {.is_there = true, .value = call.value, .version = version, .floor = std::max(version, state.floor)};
  if (call.may_be_evicted) state.gone_from_ns = 0;
  if (call.ttl_ns == 0) return true;
  const std::uint64_t wrong_ns = call.ttl_ns / kClockPart;
  state.gone_from_ns = std::min(state.gone_from_ns, call.invoked_ns + call.ttl_ns - wrong_ns);
  if (call.end != End::kOpen) state.gone_by_ns = call.returned_ns + call.ttl_ns + wrong_ns;
  return true;
}

bool get(State& state, const Call& call) {
  if (call.end == End::kNotFound) return is_absent_for(state, call);
  return call.end == End::kOk && is_there_for(state, call) && state.value == call.value &&
         takes_version(state, call.version);
}

bool compare_and_swap(State& state, const Call& call) {
  switch (call.end) {
    case End::kNotFound: return call.expected != 0 && is_absent_for(state, call);
    case End::kMismatch:
      return is_there_for(state, call) && call.version != call.expected && takes_version(state, call.version);
    case End::kOk:
    case End::kOpen:
      if (call.expected == 0 ? !is_absent_for(state, call)
                             : !is_there_for(state, call) || !takes_version(state, call.expected))
        return false;
      return store(state, call);
    default: return false;
  }
}

bool erase(State& state, const Call& call) {
  if (call.end == End::kNotFound) return is_absent_for(state, call);
  if (call.end != End::kOpen && !is_there_for(state, call)) return false;
  if (call.version != 0 ? !takes_version(state, call.version) : !state.is_there) return false;
  state = {.floor = state.floor};
  return true;
}

bool cell(State& state, const Call& call) {
  if (call.end == End::kOk && state.value != call.value) return false;
  if (call.op == Op::kCellAdd) state.value += call.argument;
  if (call.op == Op::kCellSwap && state.value == call.expected) state.value = call.argument;
  return true;
}

/// Lets a call take effect, if it can in this state.
bool apply(State& state, const Call& call) {
  switch (call.op) {
    case Op::kGet: return get(state, call);
    case Op::kPut: return store(state, call);
    case Op::kCas: return compare_and_swap(state, call);
    case Op::kErase: return erase(state, call);
    case Op::kCellRead:
    case Op::kCellAdd:
    case Op::kCellSwap: return cell(state, call);
  }
  return false;
}

bool is_cell(Op op) { return op >= Op::kCellRead; }
bool is_read(Op op) { return op == Op::kGet || op == Op::kCellRead; }
bool stores(const Call& call) {
  return (call.op == Op::kPut || call.op == Op::kCas) && (call.end == End::kOk || call.end == End::kOpen);
}

/// What says nothing about the object is left out.
std::vector<Call> telling(std::span<const Call> calls) {
  std::vector<Call> kept;
  for (const Call& call : calls)
    if (call.end != End::kNothing && !(call.end == End::kOpen && is_read(call.op))) kept.push_back(call);
  return kept;
}

/// What can be told without a search, in plain words. Open calls learn the version of their value from those who found
/// it, which keeps the search short.
std::string check_names(std::vector<Call>& calls) {
  std::unordered_map<std::uint64_t, Call*> by_value;
  std::unordered_map<std::uint64_t, const Call*> by_version;
  for (Call& call : calls) {
    if (is_cell(call.op)) return {};
    if (call.end == End::kTorn) return fmt::format("torn: {}", to_text(call));
    if (!stores(call)) continue;
    if (!by_value.emplace(call.value, &call).second) return fmt::format("stored twice: {}", to_text(call));
    if (call.end == End::kOk && !by_version.emplace(call.version, &call).second)
      return fmt::format("one version for two values: {} and {}", to_text(*by_version[call.version]), to_text(call));
  }
  for (const Call& call : calls) {
    if (call.op != Op::kGet || call.end != End::kOk) continue;
    const auto found = by_value.find(call.value);
    if (found == by_value.end()) return fmt::format("a value that nobody stored: {}", to_text(call));
    Call& source = *found->second;
    if (source.end == End::kOpen && source.version == 0) source.version = call.version;
    if (source.version != call.version)
      return fmt::format("one value of two versions: {} and {}", to_text(source), to_text(call));
  }
  return {};
}

struct Edge {
  std::uint64_t time_ns = 0;
  bool is_return = false;  // At the same time invocations come first: what touches overlaps.
  std::size_t call = 0;
  auto operator<=>(const Edge&) const = default;
};

std::vector<Edge> edges_of(std::span<const Call> calls) {
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    edges.push_back({calls[i].invoked_ns, false, i});
    if (calls[i].end != End::kOpen) edges.push_back({calls[i].returned_ns, true, i});
  }
  std::ranges::sort(edges);
  return edges;
}

/// Places for calls under way.
class Places {
 public:
  static constexpr std::size_t kFree = ~std::size_t{0};
  Places() { calls_.fill(kFree); }
  [[nodiscard]] bool add(std::size_t call) {
    const auto at = std::ranges::find(calls_, kFree);
    if (at != calls_.end()) *at = call;
    return at != calls_.end();
  }
  void remove(std::size_t call) { *std::ranges::find(calls_, call) = kFree; }
  [[nodiscard]] std::uint64_t bit_of(std::size_t call) const {
    return std::uint64_t{1} << (std::ranges::find(calls_, call) - calls_.begin());
  }
  [[nodiscard]] std::size_t operator[](std::size_t place) const { return calls_[place]; }

 private:
  std::array<std::size_t, kMostUnderWay> calls_{};
};

/// A state, and which calls under way have taken effect before it; the open ones among them apart.
struct Point {
  State state;
  std::uint64_t done = 0;
  auto operator<=>(const Point&) const = default;
};

/// Configurations. Of two that differ in open calls only, the one in which fewer have taken effect can do all that the
/// other can, because an open call need not take effect: so only the least are kept.
class Configurations {
 public:
  /// Whether it is news.
  bool add(const Point& point, std::uint64_t open) {
    std::vector<std::uint64_t>& sets = points_[point];
    if (std::ranges::any_of(sets, [&](std::uint64_t set) { return (set & ~open) == 0; })) return false;
    count_ -= std::erase_if(sets, [&](std::uint64_t set) { return (open & ~set) == 0; });
    sets.push_back(open);
    ++count_;
    return true;
  }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] const std::map<Point, std::vector<std::uint64_t>>& points() const noexcept { return points_; }

 private:
  std::map<Point, std::vector<std::uint64_t>> points_;
  std::size_t count_ = 0;
};

class Search {
 public:
  Search(std::span<const Call> calls, const State& initial, std::size_t most_configurations)
      : calls_(calls), most_configurations_(most_configurations) {
    now_.add({initial, 0}, 0);
  }

  std::string run() {
    for (const Edge& edge : edges_of(calls_)) {
      const bool is_open = calls_[edge.call].end == End::kOpen;
      if (edge.is_return) {
        if (std::string why = end(edge.call); !why.empty()) return why;
      } else if (!(is_open ? open_ : answered_).add(edge.call)) {
        return undecided(fmt::format("more than {} calls under way", kMostUnderWay));
      }
      most_ = std::max(most_, now_.count());
    }
    return {};
  }
  [[nodiscard]] std::size_t most() const noexcept { return most_; }
  [[nodiscard]] bool is_decided() const noexcept { return is_decided_; }

 private:
  struct Configuration {
    Point point;
    std::uint64_t open = 0;
  };

  std::string undecided(std::string_view why) {
    is_decided_ = false;
    return fmt::format("not decided: {}", why);
  }

  /// `call` returns: it has taken effect, with as many others before it as that needs.
  std::string end(std::size_t call) {
    const std::uint64_t bit = answered_.bit_of(call);
    Configurations next, seen;
    // In the order of how much has taken effect: the least come first, and keep the others out.
    std::deque<Configuration> left;
    for (const auto& [point, sets] : now_.points())
      for (const std::uint64_t open : sets) left.push_back({point, open});
    for (; !left.empty(); left.pop_front()) {
      const Configuration at = with_all_that_changes_nothing(left.front());
      if (!seen.add(at.point, at.open)) continue;
      if (seen.count() > most_configurations_)
        return undecided(fmt::format("more than {} configurations", most_configurations_));
      if ((at.point.done & bit) != 0) {
        (void)next.add({at.point.state, at.point.done & ~bit}, at.open);
      } else {
        expand(at, left);
      }
    }
    if (next.count() == 0) return explain(call);
    answered_.remove(call);
    now_ = std::move(next);
    return {};
  }

  /// What can take effect without any takes it now: later it could do no more. A get that tells the version of an item
  /// may do so at once, because nobody stores its value again; a cas that failed may speak of another item.
  [[nodiscard]] Configuration with_all_that_changes_nothing(Configuration at) const {
    for (std::size_t place = 0; place < kMostUnderWay; ++place) {
      const std::uint64_t bit = std::uint64_t{1} << place;
      Configuration to = at;
      if ((at.point.done & bit) != 0 || !step(answered_[place], to)) continue;
      if (to.point.state != at.point.state && calls_[answered_[place]].op != Op::kGet) continue;
      // Who finds that a value is gone by itself may come after others who find it.
      if (to.point.state.is_there != at.point.state.is_there) continue;
      at.point.state = to.point.state;
      at.point.done |= bit;
    }
    return at;
  }

  /// Whether a change that has to come before this one is left: versions only grow.
  [[nodiscard]] bool has_earlier(std::size_t call, std::uint64_t done) const {
    if (call == Places::kFree || !stores(calls_[call]) || calls_[call].version == 0) return false;
    for (std::size_t place = 0; place < kMostUnderWay; ++place) {
      const std::size_t other = answered_[place];
      if (other == Places::kFree || (done >> place & 1) != 0 || !stores(calls_[other])) continue;
      if (calls_[other].version != 0 && calls_[other].version < calls_[call].version) return true;
    }
    return false;
  }

  void expand(const Configuration& from, std::deque<Configuration>& out) const {
    for (std::size_t place = 0; place < kMostUnderWay; ++place) {
      const std::uint64_t bit = std::uint64_t{1} << place;
      const bool is_next = (from.point.done & bit) == 0 && !has_earlier(answered_[place], from.point.done);
      if (Configuration to = from; is_next && step(answered_[place], to)) {
        to.point.done |= bit;
        out.push_back(to);
      }
      if (Configuration to = from; (from.open & bit) == 0 && step(open_[place], to)) {
        to.open |= bit;
        out.push_back(to);
      }
    }
  }

  [[nodiscard]] bool step(std::size_t call, Configuration& to) const {
    return call != Places::kFree && apply(to.point.state, calls_[call]);
  }

  [[nodiscard]] std::string explain(std::size_t call) const {
    std::string text = fmt::format("no order explains {}\n  after one of\n", to_text(calls_[call]));
    std::size_t shown = 0;
    for (const auto& [point, sets] : now_.points()) {
      if (++shown > 8) break;
      text += point.state.is_there ? fmt::format("    value {:#x} version {}, highest {}\n", point.state.value,
                                                 point.state.version, point.state.floor)
                                   : fmt::format("    nothing there, highest version {}\n", point.state.floor);
    }
    text += "  with under way or just before\n";
    for (const Call& other : around(calls_[call])) text += "    " + to_text(other) + "\n";
    return text;
  }

  [[nodiscard]] std::vector<Call> around(const Call& call) const {
    constexpr std::size_t kShown = 24;
    std::vector<Call> before;
    for (const Call& other : calls_)
      if (other.invoked_ns <= call.returned_ns) before.push_back(other);
    std::ranges::sort(before, {},
                      [](const Call& c) { return c.end == End::kOpen ? ~std::uint64_t{0} : c.returned_ns; });
    if (before.size() > kShown) before.erase(before.begin(), before.end() - kShown);
    return before;
  }

  std::span<const Call> calls_;
  Places answered_, open_;
  Configurations now_;
  std::size_t most_ = 1;
  std::size_t most_configurations_;
  bool is_decided_ = true;
};

/// Calls that overlap with one of another client.
std::size_t count_overlapping(std::vector<Call> calls) {
  std::ranges::sort(calls, {}, &Call::invoked_ns);
  const auto returned = [](const Call& call) { return call.end == End::kOpen ? ~std::uint64_t{0} : call.returned_ns; };
  std::vector<bool> overlaps(calls.size());
  // With one invoked before: the latest return, and the latest of another client than that.
  struct Latest {
    std::uint64_t time_ns = 0;
    int client = -1;
  };
  Latest first, second;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Latest& other = first.client == calls[i].client ? second : first;
    overlaps[i] = other.client >= 0 && other.time_ns >= calls[i].invoked_ns;
    const Latest mine{returned(calls[i]), calls[i].client};
    if (first.client == mine.client) {
      first.time_ns = std::max(first.time_ns, mine.time_ns);
    } else if (mine.time_ns >= first.time_ns) {
      second = std::exchange(first, mine);
    } else if (mine.time_ns >= second.time_ns) {
      second = mine;
    }
  }
  // With one invoked after: the next two that are of different clients.
  const Call* next = nullptr;
  const Call* next_other = nullptr;
  for (std::size_t i = calls.size(); i-- > 0;) {
    const Call* const other = next != nullptr && next->client == calls[i].client ? next_other : next;
    if (other != nullptr && other->invoked_ns <= returned(calls[i])) overlaps[i] = true;
    if (next != nullptr && next->client != calls[i].client) next_other = next;
    next = &calls[i];
  }
  return static_cast<std::size_t>(std::ranges::count(overlaps, true));
}

constexpr std::array<const char*, 7> kOps{
    "get", "put", "cas", "erase", "read of the cell", "add to the cell", "swap of the cell"};
constexpr std::array<const char*, 6> kEnds{"no answer", "ok", "not found", "mismatch", "nothing", "torn"};

}  // namespace

std::string to_text(const Call& call) {
  return fmt::format("[{} to {}] client {} key {}: {} value {:#x} expected {} argument {} -> {}, version {}",
                     call.invoked_ns, call.end == End::kOpen ? 0 : call.returned_ns, call.client, call.key,
                     kOps[std::to_underlying(call.op)], call.value, call.expected, call.argument,
                     kEnds[std::to_underlying(call.end)], call.version);
}

HistoryVerdict check(std::span<const Call> calls, std::uint64_t word, std::size_t most_configurations) {
  std::vector<Call> kept = telling(calls);
  HistoryVerdict verdict;
  verdict.calls = kept.size();
  verdict.open = static_cast<std::size_t>(std::ranges::count(kept, End::kOpen, &Call::end));
  verdict.overlapping = count_overlapping(kept);
  verdict.why = check_names(kept);
  if (!verdict.why.empty()) return verdict;
  Search search(kept, {.is_there = false, .value = word, .version = 0, .floor = 0}, most_configurations);
  verdict.why = search.run();
  verdict.is_decided = search.is_decided();
  verdict.configurations = search.most();
  return verdict;
}

std::map<std::uint32_t, HistoryVerdict> check_keys(std::span<const Call> calls, std::size_t most_configurations) {
  std::map<std::uint32_t, std::vector<Call>> by_key;
  for (const Call& call : calls) by_key[call.key].push_back(call);
  std::map<std::uint32_t, HistoryVerdict> verdicts;
  for (const auto& [key, its] : by_key) verdicts[key] = check(its, 0, most_configurations);
  return verdicts;
}

}  // namespace verbena::kv::history
