#include "programs/option_words.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace verbena::programs {
namespace {

struct Name {
  std::string_view field, option;
};
/// Names that are no English words, but for `depth`, which is the option wherever it stands.
constexpr std::array kNames{
    Name{"allowed_uids", "--allow-uid"},
    Name{"client_leases", "--trusted-clients"},
    Name{"connect_timeout", "--timeout-ms"},
    Name{"depth", "--depth"},
    Name{"gid_index", "--gid-index"},
    Name{"grace (ms)", "--grace-ms"},
    Name{"known_locations", "--known-locations"},
    Name{"large_put kAdopt", "--trusted-clients"},
    Name{"lease_bytes", "--lease-kib"},
    Name{"max_cells", "--max-cells"},
    Name{"max_clients", "--max-clients"},
    Name{"max_items", "--max-items"},
    Name{"max_value_bytes", "--max-value-mib"},
    Name{"memory_bytes", "--memory"},
    Name{"require_hugepages", "--hugepages"},
    Name{"wait (a policy)", "--wait"},
    Name{"window_bytes", "--window"},
};

[[nodiscard]] bool is_part(char c) noexcept { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// The name that begins at `at`, as a whole word; null: none does.
[[nodiscard]] const Name* name_at(std::string_view text, std::size_t at) noexcept {
  if (at != 0 && (is_part(text[at - 1]) || text[at - 1] == '-')) return nullptr;
  const auto* const found = std::ranges::find_if(kNames, [&](const Name& name) {
    const std::size_t end = at + name.field.size();
    return text.substr(at).starts_with(name.field) && (end == text.size() || !is_part(text[end]));
  });
  return found != kNames.end() ? found : nullptr;
}

}  // namespace

std::string by_option(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (const Name* const name = name_at(text, at)) {
      out += name->option;
      at += name->field.size();
    } else {
      out += text[at++];
    }
  }
  return out;
}

}  // namespace verbena::programs
