#include "store_story.hpp"

#include "scenario.hpp"

#include <fmt/core.h>

#include <array>
#include <utility>

namespace verbena::sim {

using kv::history::Call;
using kv::history::Doing;
using kv::history::End;
using kv::history::Op;

namespace {

constexpr std::array<std::string_view, kStoreStates> kStoreStateNames{
    "server: starting",   "server: idle",    "server: serving", "server: stopping",
    "client: connecting", "client: idle",    "client: get",     "client: put small",
    "client: put large",  "client: cas",     "client: erase",   "client: cell",
    "client: batch",      "client: several", "client: leaving", "client: ended",
};

/// The name of a value has its length.
std::size_t length_of(const Call& call) { return static_cast<std::size_t>(call.value >> 32); }

std::string name_of(const Call& call) {
  switch (call.op) {
    case Op::kGet: return fmt::format("get of key {}", call.key);
    case Op::kPut: return fmt::format("put of key {}, value {:#x} of {} bytes", call.key, call.value, length_of(call));
    case Op::kCas:
      return fmt::format("cas of key {} from version {}, value {:#x} of {} bytes", call.key, call.expected, call.value,
                         length_of(call));
    case Op::kErase: return fmt::format("erase of key {}", call.key);
    case Op::kCellRead: return fmt::format("read of cell {}", call.key);
    case Op::kCellAdd: return fmt::format("add of {} to cell {}", call.argument, call.key);
    case Op::kCellSwap: return fmt::format("swap of cell {} from {} to {}", call.key, call.expected, call.argument);
  }
  return "a call";
}

std::string outcome_of(const Call& call) {
  switch (call.end) {
    case End::kOpen: return "nothing";
    case End::kOk: break;
    case End::kNotFound: return "not found";
    case End::kMismatch: return fmt::format("another version, {}", call.version);
    case End::kNothing: return "refused, without any effect";
    case End::kTorn: return "bytes that are no whole value";
  }
  if (call.op >= Op::kCellRead) return fmt::format("found {}", call.value);
  if (call.op == Op::kGet)
    return fmt::format("value {:#x} of {} bytes, version {}", call.value, length_of(call), call.version);
  return fmt::format("done, version {}", call.version);
}

}  // namespace

std::span<const std::string_view> states_of_store() noexcept { return kStoreStateNames; }

StoreState store_state(Doing doing, const Call* last) noexcept {
  switch (doing) {
    case Doing::kConnecting: return StoreState::kConnecting;
    case Doing::kCell: return StoreState::kCell;
    case Doing::kBatch: return StoreState::kBatch;
    case Doing::kSeveral: return StoreState::kSeveral;
    case Doing::kOne: break;
  }
  if (last == nullptr) return StoreState::kIdle;
  switch (last->op) {
    case Op::kPut: return length_of(*last) < kv::kEagerBytes ? StoreState::kPutSmall : StoreState::kPutLarge;
    case Op::kCas: return StoreState::kCas;
    case Op::kErase: return StoreState::kErase;
    default: return StoreState::kGet;
  }
}

std::string story_of(const Call& call, std::string_view what) {
  if (what == "begins") return fmt::format("client {} begins: {}", call.client, name_of(call));
  if (what == "ends") {
    // The value of a get is its outcome; its name has none.
    return fmt::format("client {} ends: {}: {}, after {:.3f} us", call.client, name_of(call), outcome_of(call),
                       static_cast<double>(call.returned_ns - call.invoked_ns) / 1000);
  }
  return fmt::format("client {} has no answer: {}: {}", call.client, name_of(call), what);
}

}  // namespace verbena::sim
