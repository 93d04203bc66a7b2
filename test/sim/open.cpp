// The way in for suites that open their NIC by name.
#include "sim_nic.hpp"

#include "environment.hpp"

#include <cstdlib>
#include <string_view>

namespace verbena::sim {

namespace {

Mutant mutant_of_environment() {
  const char* const wanted = std::getenv("VERBENA_SIM_MUTANT");
  for (std::size_t i = 0; wanted != nullptr && i < kMutants; ++i) {
    if (std::string_view(wanted) == to_string(static_cast<Mutant>(i))) return static_cast<Mutant>(i);
  }
  return Mutant::kNone;
}

}  // namespace

Result<std::unique_ptr<nic::Nic>> open_simulated() {
  static std::weak_ptr<Network> current;
  static std::uint64_t networks = 0;
  std::shared_ptr<Network> network = current.lock();
  if (network == nullptr) {
    const std::uint64_t seed = test::number_in("VERBENA_SIM_SEED", 1) + networks++;
    std::FILE* const story = test::number_in("VERBENA_SIM_TRACE", 0) != 0 ? stderr : nullptr;
    network =
        std::make_shared<Network>(Network::Options{.seed = seed, .story = story, .mutant = mutant_of_environment()});
    current = network;
  }
  Process& process = network->add_process(fmt::format("process {}", network->processes() + 1));
  return std::make_unique<SimNic>(process, std::move(network));
}

}  // namespace verbena::sim
