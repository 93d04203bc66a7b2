// Histories of concurrent calls on a store, and whether they are linearizable.
//
// Each key is an object of its own, and a history is linearizable if it is for each object (Herlihy and Wing,
// "Linearizability: a correctness condition for concurrent objects", TOPLAS 12(3), 1990). The search is that of Wing
// and Gong ("Testing and verifying concurrent objects", JPDC 17, 1993) in the just-in-time form of Lowe ("Testing for
// linearizability", Concurrency and Computation 29(4), 2017): the history is walked in time; what is kept is the set of
// configurations (a state of the object, and which of the calls under way have taken effect to reach it), and calls
// take effect only when one that returns must have. Each configuration is looked at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace verbena::kv::history {

enum class Op : std::uint8_t { kGet, kPut, kCas, kErase, kCellRead, kCellAdd, kCellSwap };

enum class End : std::uint8_t {
  kOpen = 0,  ///< Under way still, or ended without an answer: takes effect at any time after its invocation, or never.
  kOk,        ///< A swap of a cell is kOk whether or not it took place: the word that it found says which.
  kNotFound,
  kMismatch,  ///< Of cas: another version, or there is a key where none should be.
  kNothing,   ///< Refused, without any effect: store full, say.
  kTorn,      ///< A get that found bytes which are no whole value.
};

/// One call of one client. Every value stored in a history has a name of its own.
struct Call {
  Op op = Op::kGet;
  End end = End::kOpen;
  std::uint16_t client = 0;
  std::uint32_t key = 0;
  std::uint64_t invoked_ns = 0;   ///< Read before the call, of one clock.
  std::uint64_t returned_ns = 0;  ///< Read after it; of kOpen nothing.
  std::uint64_t value = 0;        ///< Name of the value stored (put, cas) or found (get). Cells: the word found.
  std::uint64_t version = 0;      ///< Of the outcome. 0: not told, which only erase may do.
  std::uint64_t expected = 0;     ///< Version (cas), word (swap of a cell).
  std::uint64_t argument = 0;     ///< Cells: what is added, or stored.
  std::uint64_t ttl_ns = 0;       ///< Of the value stored; 0: it stays.
  bool may_be_evicted = false;    ///< The value stored may be gone at any time.
};

[[nodiscard]] std::string to_text(const Call& call);

/// Of the calls on one key.
struct HistoryVerdict {
  std::string why;                 ///< Why no order of the calls explains them; empty where one does.
  bool is_decided = true;          ///< False: there are too many orders to look at.
  std::size_t calls = 0;           ///< Those that say anything, open ones included.
  std::size_t open = 0;            ///< Of these.
  std::size_t overlapping = 0;     ///< Of these, those that overlapped with a call of another client.
  std::size_t configurations = 0;  ///< At the same time, at most.
  [[nodiscard]] bool is_linearizable() const noexcept { return why.empty(); }
};

/// Looked at for one answer of a history; where there are more, it is not decided.
inline constexpr std::size_t kMostConfigurations = 200'000;

/// Calls on one key, in any order. A key of cells holds `word` at first; any other is not there.
[[nodiscard]] HistoryVerdict check(std::span<const Call> calls, std::uint64_t word = 0,
                                   std::size_t most_configurations = kMostConfigurations);

/// Calls on several keys, each as by `check`; cells hold 0 at first.
[[nodiscard]] std::map<std::uint32_t, HistoryVerdict> check_keys(std::span<const Call> calls,
                                                                 std::size_t most_configurations = kMostConfigurations);

}  // namespace verbena::kv::history
