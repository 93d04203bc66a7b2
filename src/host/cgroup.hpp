// The control groups that limit this process.
#pragma once

#include "host/memory_limits.hpp"
#include "host/proc_file.hpp"

#include <algorithm>
#include <ranges>
#include <string_view>

namespace verbena::host {

enum class CgroupVersion : std::uint8_t { k1, k2 };

/// Whether `word` is one of the words between commas.
[[nodiscard]] constexpr bool has_word(std::string_view list, std::string_view word) noexcept {
  return std::ranges::any_of(std::views::split(list, ','),
                             [&](const auto& each) { return std::string_view(each.begin(), each.end()) == word; });
}

/// Calls visit(version, directory) for the process's own group and every ancestor, because the limit of each applies:
/// in the unified hierarchy, and in version 1's hierarchy of `controller`. In a container the path may name directories
/// that are not mounted here; the walk then ends at the mount itself, which is the container's own group. \thread any
/// \alloc setup
template <class Visit>
void for_each_cgroup(const KernelFiles& files, std::string_view controller, Visit&& visit) {
  for_each_line(KernelPath("{}/self/cgroup", files.proc).text, [&](std::string_view text) {
    // "0::/group" is version 2; "4:cpu,memory:/group" version 1.
    const std::size_t first = text.find(':');
    const std::size_t second = first == std::string_view::npos ? first : text.find(':', first + 1);
    if (second == std::string_view::npos) return true;
    const std::string_view controllers = text.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !has_word(controllers, controller)) return true;
    const KernelPath mount("{}{}{}", files.cgroup, controllers.empty() ? "" : "/",
                           controllers.empty() ? "" : controller);
    std::string_view group = text.substr(second + 1);
    while (!group.empty() && (group.back() == '\n' || group.back() == '/')) group.remove_suffix(1);
    while (true) {
      visit(controllers.empty() ? CgroupVersion::k2 : CgroupVersion::k1, KernelPath("{}{}", mount.text, group).text);
      const std::size_t slash = group.rfind('/');
      if (group.empty() || slash == std::string_view::npos) return true;
      group = group.substr(0, slash);
    }
  });
}

}  // namespace verbena::host
