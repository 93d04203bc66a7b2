#include "scenario.hpp"

#include <algorithm>
#include <array>

namespace verbena::sim {

std::span<const Scenario> scenarios() noexcept {
  static const std::array kScenarios{
      Scenario{"store", "a whole store: a server with its workers, and clients that do everything a client can",
               run_store, states_of_store()},
      Scenario{"api", "the blocking API: listeners and connections, with all that both sides can do to each other",
               run_api, states_of_api()},
      Scenario{"mesh", "a mesh: processes that join, send, write, read and gather, die, leave and come back", run_mesh,
               states_of_mesh()},
      Scenario{"coroutines", "coroutines over links and a store, dropped, cancelled and late at any point",
               run_coroutines, states_of_coroutines()},
  };
  return kScenarios;
}

const Scenario* find_scenario(std::string_view name) noexcept {
  const auto at = std::ranges::find(scenarios(), name, &Scenario::name);
  return at == scenarios().end() ? nullptr : &*at;
}

const char* to_string(Fault::Kind kind) noexcept {
  constexpr std::array<const char*, Fault::kKinds> kNames{"killed",  "stopped", "not heard", "not hearing",
                                                          "cut off", "stalls",  "losses",    "ended"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string to_text(const Fault& fault) {
  constexpr std::array<const char*, Fault::kKinds> kHappens{
      "is killed",  "stands still",           "is not heard",          "hears nothing",
      "is cut off", "sees steps take longer", "sees packets get lost", "ends in order"};
  const std::string who = fault.process == 0 ? "the server" : fmt::format("client {}", fault.process - 1);
  std::string text = fmt::format("{} {} at {:.3f} us", who, kHappens[static_cast<std::size_t>(fault.kind)],
                                 static_cast<double>(fault.at) / 1000);
  if (fault.kind != Fault::Kind::kKill && fault.kind != Fault::Kind::kEnd)
    text += fmt::format(", for {:.3f} us", static_cast<double>(fault.time) / 1000);
  if (!fault.state.empty()) text += fmt::format(", in this state: {}", fault.state);
  return text;
}

}  // namespace verbena::sim
