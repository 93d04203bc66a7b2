#include "programs/wait_option.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace verbena::programs {

void add_wait_option(CLI::App& command, WaitPolicy& wait, const std::string& whose) {
  const auto take = [&wait](const std::string& name) {
    constexpr std::array kPolicies{WaitPolicy::kSpin, WaitPolicy::kAdaptive, WaitPolicy::kEvent};
    const auto* const policy =
        std::ranges::find_if(kPolicies, [&](WaitPolicy each) { return name == to_string(each); });
    if (policy == kPolicies.end()) throw CLI::ValidationError("--wait " + name, "takes spin, adaptive or event");
    wait = *policy;
  };
  command.add_option_function<std::string>(
      "--wait", take,
      fmt::format("{} while nothing is there: spin, adaptive or event (default {})", whose, to_string(wait)));
}

}  // namespace verbena::programs
