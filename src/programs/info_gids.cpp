// The library's own choice of a GID, asked for a port of sysfs.
#include "nic/verbs/gid.hpp"

#include "programs/info.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace verbena::programs {
namespace {

namespace verbs = nic::verbs;

verbs::GidEntry entry_of(const GidFacts& gid) {
  verbs::GidEntry entry{.index = gid.index};
  static_assert(sizeof entry.gid.raw == sizeof gid.bytes);
  std::memcpy(entry.gid.raw, gid.bytes.data(), gid.bytes.size());
  // Kernels that tell no type know no RoCE v2.
  entry.type = gid.type == "RoCE v2" ? verbs::GidType::kRoceV2 : verbs::GidType::kInfiniBand;
  std::copy_n(gid.netdev.begin(), std::min(gid.netdev.size(), entry.netdev.size() - 1), entry.netdev.begin());
  return entry;
}

}  // namespace

void explain_gids(PortFacts& port) {
  const auto layer = port.is_ethernet() ? verbs::LinkLayer::kEthernet : verbs::LinkLayer::kInfiniBand;
  std::vector<verbs::GidEntry> table;
  for (GidFacts& gid : port.gids) {
    table.push_back(entry_of(gid));
    gid.address = verbs::gid_text(table.back().gid).data();
    gid.verdict = "empty";
  }
  for (const verbs::GidVerdict& verdict : verbs::judge_gids(layer, table, {})) {
    const auto gid = std::ranges::find(port.gids, verdict.entry.index, &GidFacts::index);
    if (gid != port.gids.end()) gid->verdict = verdict.why.data();
  }
  const auto choice = verbs::choose_gid(layer, table, {});
  if (choice) port.gid_index = choice->index;
  port.gid_reason = choice ? std::string(choice->reason.data()) : std::string(choice.error().text());
}

}  // namespace verbena::programs
