// What a run of a simulation is told, and what it tells.
#pragma once

#include "world.hpp"

#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::sim {

/// Something that happens to a run from outside of its programs.
struct Fault {
  enum class Kind : std::uint8_t { kKill, kStop, kCutTo, kCutFrom, kCutBoth, kStalls, kLosses, kEnd };
  static constexpr std::size_t kKinds = 8;
  Kind kind = Kind::kStop;
  unsigned process = 0;  ///< 0: the server; from 1 on the clients.
  Nanoseconds at = 0;    ///< After the start.
  Nanoseconds time = 0;  ///< How long it lasts; a kill is for good.
  std::string state{};   ///< What its process was doing when it happened.
};
[[nodiscard]] const char* to_string(Fault::Kind kind) noexcept;
[[nodiscard]] std::string to_text(const Fault& fault);

struct RunOptions {
  std::uint64_t seed = 1;
  std::FILE* story = nullptr;
  /// Faults that are left out, by their place among those of the seed.
  std::vector<std::size_t> without{};
  /// Told of each fault, by its place, when it is planned and again when it happens: a run that crashes has no result.
  std::function<void(std::size_t place, const Fault& fault)> on_fault{};
};

struct RunResult {
  std::string wrong;  ///< Empty: nothing.
  std::uint64_t hash = 0;
  std::uint64_t events = 0;
  std::uint64_t calls = 0;
  std::uint64_t overlapping = 0;
  unsigned undecided = 0;  ///< Keys of whose calls there are too many orders.
  unsigned restarts = 0;
  Nanoseconds time = 0;
  std::vector<Fault> faults;  ///< All of the seed's.
};

/// A store with several workers and many clients.
[[nodiscard]] RunResult run_store(const RunOptions& options);
/// What its processes can be doing: all that `Fault::state` may be.
[[nodiscard]] std::span<const std::string_view> states_of_store() noexcept;
/// The blocking API: listeners and connections.
[[nodiscard]] RunResult run_api(const RunOptions& options);
[[nodiscard]] std::span<const std::string_view> states_of_api() noexcept;
/// A mesh: processes that join, talk, leave and come back.
[[nodiscard]] RunResult run_mesh(const RunOptions& options);
[[nodiscard]] std::span<const std::string_view> states_of_mesh() noexcept;
/// Coroutines that give up what they await, of links and of a store.
[[nodiscard]] RunResult run_coroutines(const RunOptions& options);
[[nodiscard]] std::span<const std::string_view> states_of_coroutines() noexcept;

struct Scenario {
  std::string_view name;
  std::string_view about;
  RunResult (*run)(const RunOptions& options) = nullptr;
  std::span<const std::string_view> states;
};
[[nodiscard]] std::span<const Scenario> scenarios() noexcept;
/// Null: there is none of this name.
[[nodiscard]] const Scenario* find_scenario(std::string_view name) noexcept;

}  // namespace verbena::sim
