// How a run of the store is told: its calls, and what its processes are doing.
#pragma once

#include "recorder.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace verbena::sim {

/// What a process of the store is doing. The names are `states_of_store`.
enum class StoreState : std::uint8_t {
  kServerStarts,
  kServerIdles,  ///< No client is in a call.
  kServerServes,
  kServerStops,
  kConnecting,
  kIdle,
  kGet,
  kPutSmall,
  kPutLarge,
  kCas,
  kErase,
  kCell,
  kBatch,
  kSeveral,
  kLeaving,
  kEnded,
};
inline constexpr std::size_t kStoreStates = 16;

/// Of a client that is doing this, and has begun `last` last.
[[nodiscard]] StoreState store_state(kv::history::Doing doing, const kv::history::Call* last) noexcept;

/// What a journal tells its listener, in plain words.
[[nodiscard]] std::string story_of(const kv::history::Call& call, std::string_view what);

}  // namespace verbena::sim
