#include "nic/verbs/gid.hpp"

#include "base/error.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <tuple>
#include <utility>

namespace verbena::nic::verbs {

namespace {

static_assert(sizeof(GidText) == INET6_ADDRSTRLEN);
static_assert(kMaxGidIndex == std::numeric_limits<decltype(ibv_global_route::sgid_index)>::max());

using Raw = std::array<std::uint8_t, 16>;

Raw raw_of(const ibv_gid& gid) noexcept {
  Raw raw;
  std::memcpy(raw.data(), gid.raw, raw.size());
  return raw;
}

bool same(const ibv_gid& a, const ibv_gid& b) noexcept { return raw_of(a) == raw_of(b); }

constexpr std::size_t kIpv4Offset = 12;  ///< Offset of the IPv4 address in a mapped one.

bool starts_with(const ibv_gid& gid, std::initializer_list<std::uint8_t> prefix, std::size_t offset = 0) noexcept {
  return std::equal(prefix.begin(), prefix.end(), gid.raw + offset);
}

bool is_zero_from(const ibv_gid& gid, std::size_t offset) noexcept {
  return std::all_of(gid.raw + offset, std::end(gid.raw), [](std::uint8_t byte) { return byte == 0; });
}

/// Whether it is the wildcard address that sockets bind to.
bool is_any(const ibv_gid& gid) noexcept {
  return is_zero_from(gid, 0) || (is_ipv4_mapped(gid) && is_zero_from(gid, kIpv4Offset));
}

/// Appends to a text, and cuts it where it does not fit.
template <class Text>
class Writer {
 public:
  explicit Writer(Text& text) noexcept : text_(text) { text_.fill('\0'); }
  template <class... Args>
  Writer& add(fmt::format_string<Args...> format, Args&&... args) noexcept {
    const std::size_t room = text_.size() - 1 - used_;
    used_ += std::min(room, fmt::format_to_n(text_.data() + used_, room, format, std::forward<Args>(args)...).size);
    return *this;
  }
  [[nodiscard]] std::size_t size() const noexcept { return used_; }

 private:
  Text& text_;
  std::size_t used_ = 0;
};

std::string_view name_of(const NetdevName& netdev) noexcept {
  return {netdev.data(), strnlen(netdev.data(), netdev.size() - 1)};
}

/// Clears the bytes after the name.
NetdevName terminated(const NetdevName& netdev) noexcept {
  NetdevName out{};
  std::ranges::copy(name_of(netdev), out.begin());
  return out;
}

char printable(char c) noexcept { return c > ' ' && c <= '~' ? c : '?'; }

/// The kernel allows nearly any byte in a name, also escape sequences, and our texts go to terminals.
NetdevName printable_name(const NetdevName& netdev) noexcept {
  NetdevName out{};
  std::ranges::transform(name_of(netdev), out.begin(), printable);
  return out;
}

/// The user's wishes, without those that cannot decide.
struct Question {
  LinkLayer layer;
  std::optional<std::uint32_t> index;
  std::optional<ibv_gid> address;
  std::optional<ibv_gid> ignored;  ///< An IPv4 address, on InfiniBand.
};

Question question_of(LinkLayer layer, const GidWanted& wanted) noexcept {
  Question question{.layer = layer, .index = wanted.index, .address = wanted.address, .ignored = std::nullopt};
  if (question.address && is_any(*question.address)) question.address.reset();
  if (layer == LinkLayer::kInfiniBand && question.address && is_ipv4_mapped(*question.address)) {
    std::swap(question.address, question.ignored);
  }
  return question;
}

GidType type_on(LinkLayer layer, GidType type) noexcept {
  if (layer == LinkLayer::kInfiniBand) return GidType::kInfiniBand;
  return type == GidType::kRoceV2 ? GidType::kRoceV2 : GidType::kRoceV1;
}

enum class Fault : std::uint8_t { kNone, kOtherAddress, kNoNetdev, kHighIndex, kUnset };

/// Why an entry is unusable, whatever the user asks for.
Fault own_fault(LinkLayer layer, const GidEntry& entry) noexcept {
  if (kind_of(entry.gid) == GidKind::kUnset) return Fault::kUnset;
  if (entry.index > kMaxGidIndex) return Fault::kHighIndex;
  if (layer == LinkLayer::kEthernet && name_of(entry.netdev).empty()) return Fault::kNoNetdev;
  return Fault::kNone;
}

Fault fault_of(const Question& question, const GidEntry& entry) noexcept {
  const Fault own = own_fault(question.layer, entry);
  if (own != Fault::kNone || !question.address || same(entry.gid, *question.address)) return own;
  return Fault::kOtherAddress;
}

const char* text_of(Fault fault) noexcept {
  switch (fault) {
    case Fault::kNone: return "usable";
    case Fault::kOtherAddress: return "not the address asked for";
    case Fault::kNoNetdev: return "no network interface: it is down, or in another network namespace";
    case Fault::kHighIndex: return "an index above 255 does not fit ibv_global_route";
    case Fault::kUnset: return "empty";
  }
  return "unknown";
}

/// Smaller is better. The last two members only make the order total.
using Rank = std::tuple<bool, GidKind, std::uint32_t, Raw, std::string_view>;

Rank rank_of(LinkLayer layer, const GidEntry& entry) noexcept {
  return {type_on(layer, entry.type) == GidType::kRoceV1,
          layer == LinkLayer::kInfiniBand ? GidKind::kGlobal : kind_of(entry.gid), entry.index, raw_of(entry.gid),
          name_of(entry.netdev)};
}

/// The best entry among those without a fault, or the best one after `after`; nullptr if there is none.
const GidEntry* best_of(const Question& question, std::span<const GidEntry> table,
                        const GidEntry* after = nullptr) noexcept {
  const GidEntry* best = nullptr;
  for (const GidEntry& entry : table) {
    if (fault_of(question, entry) != Fault::kNone) continue;
    const Rank rank = rank_of(question.layer, entry);
    if (after != nullptr && rank <= rank_of(question.layer, *after)) continue;
    if (best == nullptr || rank < rank_of(question.layer, *best)) best = &entry;
  }
  return best;
}

/// The entry at `index`; if there are several, the best one by the rules.
const GidEntry* entry_at(const Question& question, std::span<const GidEntry> table, std::uint32_t index) noexcept {
  const GidEntry* found = nullptr;
  const auto key = [&](const GidEntry& entry) {
    return std::pair(fault_of(question, entry), rank_of(question.layer, entry));
  };
  for (const GidEntry& entry : table) {
    if (entry.index != index || kind_of(entry.gid) == GidKind::kUnset) continue;
    if (found == nullptr || key(entry) < key(*found)) found = &entry;
  }
  return found;
}

/// Why one entry is better than another: the property of each.
struct Difference {
  const char* winner;
  const char* loser;
};

Difference difference_of(LinkLayer layer, const GidEntry& first, const GidEntry& second) noexcept {
  constexpr Difference kIndex{"a lower index", "a higher index"};
  if (layer == LinkLayer::kInfiniBand) return kIndex;
  if (type_on(layer, first.type) != type_on(layer, second.type)) return {"RoCE v2", "RoCE v1"};
  const GidKind a = kind_of(first.gid);
  const GidKind b = kind_of(second.gid);
  if (a == b && first.index != second.index) return kIndex;
  if (a == b) return {"a lower address or name", "a higher address or name"};
  if (b == GidKind::kGlobal) return {"IPv4", "IPv6"};
  return {a == GidKind::kLinkLocal ? "link-local" : "a routable address",
          b == GidKind::kLinkLocal ? "a link-local address" : "a loopback address"};
}

/// The GID's limited reach, for the text; "" if it is not limited.
const char* reach_of(LinkLayer layer, const GidEntry& entry) noexcept {
  if (layer == LinkLayer::kInfiniBand) return "";
  switch (kind_of(entry.gid)) {
    case GidKind::kLoopback: return "; loopback reaches this host only";
    case GidKind::kLinkLocal: return "; link-local reaches this Ethernet segment only";
    default: break;
  }
  return type_on(layer, entry.type) == GidType::kRoceV1 ? "; RoCE v1 reaches this Ethernet segment only" : "";
}

/// On InfiniBand: the prefix, how packets are routed, and the ignored address.
void add_infiniband(Writer<GidReason>& reason, const Question& question, const GidEntry& entry, bool grh) noexcept {
  if (kind_of(entry.gid) == GidKind::kLinkLocal) {
    reason.add("; default subnet prefix");
  } else {
    ibv_gid prefix = entry.gid;
    std::memset(prefix.raw + 8, 0, 8);
    reason.add("; subnet prefix {}/64", gid_text(prefix).data());
  }
  reason.add("{}", grh ? ", with a GRH" : ", routed by LID");
  if (question.ignored) reason.add("; {} is no GID, so it is ignored", gid_text(*question.ignored).data());
}

/// Why the rules do not choose `entry`: its fault, or the advantage of the best one.
void add_objection(Writer<GidReason>& reason, const Question& question, const GidEntry& entry,
                   const GidEntry* best) noexcept {
  const Fault fault = fault_of(question, entry);
  if (fault == Fault::kOtherAddress) {
    reason.add("{}, {}", text_of(fault), gid_text(*question.address).data());
  } else if (fault != Fault::kNone || best == nullptr) {
    reason.add("{}", text_of(fault));
  } else if (rank_of(question.layer, entry) == rank_of(question.layer, *best)) {
    reason.add("the same as GID {}", best->index);
  } else {
    const Difference difference = difference_of(question.layer, *best, entry);
    reason.add("{}; GID {} has {}", difference.loser, best->index, difference.winner);
  }
}

/// Why the rules choose `best`: its advantage over the next best.
void add_merit(Writer<GidReason>& reason, const Question& question, std::span<const GidEntry> table,
               const GidEntry& best) noexcept {
  if (question.address) reason.add("the address asked for; ");
  if (const GidEntry* next = best_of(question, table, &best)) {
    const Difference difference = difference_of(question.layer, best, *next);
    reason.add("{} goes before {} (GID {})", difference.winner, difference.loser, next->index);
  } else {
    reason.add("the only usable GID{}", question.address ? " with it" : "");
  }
}

GidChoice choice_of(const Question& question, std::span<const GidEntry> table, const GidEntry& taken) noexcept {
  GidChoice choice{.index = taken.index,
                   .gid = taken.gid,
                   .type = type_on(question.layer, taken.type),
                   .netdev = terminated(taken.netdev),
                   .grh = question.layer == LinkLayer::kEthernet || question.index || question.address};
  Writer reason(choice.reason);
  const GidEntry* best = best_of(question, table);
  const bool would_be_chosen = best != nullptr && rank_of(question.layer, *best) == rank_of(question.layer, taken);
  if (question.index) reason.add("the index asked for; ");
  if (would_be_chosen) {
    add_merit(reason, question, table, taken);
  } else {
    reason.add("warning: ");
    add_objection(reason, question, taken, best);
  }
  reason.add("{}", reach_of(question.layer, taken));
  if (question.layer == LinkLayer::kInfiniBand) add_infiniband(reason, question, taken, choice.grh);
  return choice;
}

constexpr const char* kCall = "choose_gid";

/// Lists the GIDs that would be usable with any address, best first, as many as fit, and counts the rest. Only those of
/// the best one's type, because the kernel makes a v1 and a v2 GID for every address.
/// Bytes: an Error has 319, and the longest sentence around the list takes 192 (an index of 10, an address of 45, a
/// fault of 66).
using List = std::array<char, 128>;
List list_usable(LinkLayer layer, std::span<const GidEntry> table) noexcept {
  List list{};
  Writer out(list);
  const Question any{.layer = layer, .index = {}, .address = {}, .ignored = {}};
  const GidEntry* const best = best_of(any, table);
  const auto listed = [&](const GidEntry& entry) { return type_on(layer, entry.type) == type_on(layer, best->type); };
  constexpr std::size_t kReserved = sizeof " and 4294967295 more";
  // Each round adds some bytes, so there are few rounds however long the table is.
  for (const GidEntry* next = best; next != nullptr && listed(*next); next = best_of(any, table, next)) {
    const NetdevName name = printable_name(next->netdev);
    const GidText address = gid_text(next->gid);
    const std::size_t bytes = std::strlen(address.data()) + std::strlen(name.data()) + sizeof ", GID 255 ()";
    if (out.size() + bytes + kReserved > list.size()) {
      const Rank rank = rank_of(layer, *next);
      const auto more = std::ranges::count_if(table, [&](const GidEntry& entry) {
        return fault_of(any, entry) == Fault::kNone && listed(entry) && rank_of(layer, entry) >= rank;
      });
      out.add(" and {} more", more);
      break;
    }
    out.add("{}GID {} {}{}{}{}", next == best ? "" : ", ", next->index, address.data(), name[0] != 0 ? " (" : "",
            name.data(), name[0] != 0 ? ")" : "");
  }
  return list;
}

std::unexpected<Error> fail_no_address(const Question& question, std::span<const GidEntry> table) noexcept {
  const GidText address = gid_text(*question.address);
  const List list = list_usable(question.layer, table);
  const GidEntry* refused = nullptr;
  for (const GidEntry& entry : table) {
    if (same(entry.gid, *question.address) && (refused == nullptr || entry.index < refused->index)) refused = &entry;
  }
  if (refused != nullptr) {
    return fail(Status::kNotFound, kCall, 0, "GID {} has {}, but {}; usable are {}; mend that, or use one of these",
                refused->index, address.data(), text_of(own_fault(question.layer, *refused)), list.data());
  }
  return fail(Status::kNotFound, kCall, 0, "no usable GID has {}; there are {}; {}", address.data(), list.data(),
              question.layer == LinkLayer::kEthernet ? "use one of these, or give the interface that address"
                                                     : "use one of these, or ask for no address");
}

std::unexpected<Error> fail_none(const Question& question, std::span<const GidEntry> table) noexcept {
  std::array<std::size_t, 5> with{};
  for (const GidEntry& entry : table) ++with[static_cast<std::size_t>(own_fault(question.layer, entry))];
  const auto count = [&](Fault fault) { return with[static_cast<std::size_t>(fault)]; };
  if (count(Fault::kNone) != 0) return fail_no_address(question, table);
  if (count(Fault::kHighIndex) != 0) {
    return fail(Status::kNotFound, kCall, 0,
                "none of the port's {} GIDs is usable: {} have an index above {}, which does not fit ibv_global_route, "
                "and {} no network interface; take unused addresses and VLANs off the interface",
                table.size() - count(Fault::kUnset), count(Fault::kHighIndex), kMaxGidIndex, count(Fault::kNoNetdev));
  }
  if (count(Fault::kNoNetdev) != 0) {
    return fail(Status::kNotFound, kCall, 0,
                "none of the port's {} GIDs has a network interface: bring it up (ip link set NAME up), give it an "
                "address (ip address add ADDRESS dev NAME), or run in the network namespace that it is in",
                count(Fault::kNoNetdev));
  }
  return fail(Status::kNotFound, kCall, 0, "the port's GID table is empty: {}",
              question.layer == LinkLayer::kEthernet
                  ? "bring its network interface up (ip link set NAME up) and give it an address (ip address add "
                    "ADDRESS dev NAME)"
                  : "the port is down, or has no GUID or no subnet manager; see ibstat");
}

/// The entry to use: the one at the user's index, else the best.
Result<const GidEntry*> find(const Question& question, std::span<const GidEntry> table) noexcept {
  if (!question.index) {
    if (const GidEntry* best = best_of(question, table)) return best;
    return fail_none(question, table);
  }
  if (*question.index > kMaxGidIndex) {
    return fail(Status::kBadArgument, kCall, 0, "GID index {} is out of range; {} is the last one that fits",
                *question.index, kMaxGidIndex);
  }
  if (const GidEntry* entry = entry_at(question, table, *question.index)) return entry;
  const List list = list_usable(question.layer, table);
  if (list[0] == '\0') {
    return fail(Status::kNotFound, kCall, 0, "the port has no GID at index {}, and no usable one at any other",
                *question.index);
  }
  return fail(Status::kNotFound, kCall, 0, "the port has no GID at index {}; usable are {}; use one, or ask for none",
              *question.index, list.data());
}

}  // namespace

const char* to_string(GidType type) noexcept {
  constexpr std::array kNames = {"InfiniBand", "RoCE v1", "RoCE v2"};
  return kNames.at(std::to_underlying(type));
}

bool is_ipv4_mapped(const ibv_gid& gid) noexcept {
  return starts_with(gid, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff});
}

GidKind kind_of(const ibv_gid& gid) noexcept {
  if (is_any(gid)) return GidKind::kUnset;
  if (is_ipv4_mapped(gid)) {
    if (starts_with(gid, {127}, kIpv4Offset)) return GidKind::kLoopback;
    return starts_with(gid, {169, 254}, kIpv4Offset) ? GidKind::kLinkLocal : GidKind::kIpv4;
  }
  if (gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80) {
    return is_zero_from(gid, 8) ? GidKind::kUnset : GidKind::kLinkLocal;
  }
  const in6_addr loopback = IN6ADDR_LOOPBACK_INIT;
  return std::memcmp(gid.raw, &loopback, sizeof loopback) == 0 ? GidKind::kLoopback : GidKind::kGlobal;
}

GidText gid_text(const ibv_gid& gid) noexcept {
  GidText text{};
  const bool ipv4 = is_ipv4_mapped(gid);
  inet_ntop(ipv4 ? AF_INET : AF_INET6, gid.raw + (ipv4 ? kIpv4Offset : 0), text.data(), text.size());
  return text;
}

Result<GidChoice> choose_gid(LinkLayer layer, std::span<const GidEntry> table, const GidWanted& wanted) noexcept {
  const Question question = question_of(layer, wanted);
  VERBENA_ASSIGN(const GidEntry* taken, find(question, table));
  return choice_of(question, table, *taken);
}

GidLine describe(const GidChoice& choice) noexcept {
  GidLine line{};
  const NetdevName name = printable_name(choice.netdev);
  Writer(line).add("GID {} ({}, {}{}{}): {}", choice.index, gid_text(choice.gid).data(), to_string(choice.type),
                   name[0] != 0 ? ", " : "", name.data(), choice.reason.data());
  return line;
}

std::vector<GidVerdict> judge_gids(LinkLayer layer, std::span<const GidEntry> table, const GidWanted& wanted) {
  const Question question = question_of(layer, wanted);
  const GidEntry* taken = find(question, table).value_or(nullptr);
  const GidEntry* best = best_of(question, table);
  std::vector<GidVerdict> verdicts;
  verdicts.reserve(table.size());
  for (const GidEntry& entry : table) {
    if (kind_of(entry.gid) == GidKind::kUnset) continue;
    GidVerdict& verdict = verdicts.emplace_back(entry, GidUse::kRefused);
    verdict.entry.type = type_on(layer, entry.type);
    verdict.entry.netdev = terminated(entry.netdev);
    if (&entry == taken) {
      verdict.use = GidUse::kTaken;
      verdict.why = choice_of(question, table, entry).reason;
      continue;
    }
    if (fault_of(question, entry) == Fault::kNone) verdict.use = GidUse::kUsable;
    Writer why(verdict.why);
    if (&entry == best) {
      why.add("the best one, but index {} was asked for", question.index.value_or(0));
    } else {
      add_objection(why, question, entry, best);
    }
  }
  // A total order, except for entries with identical lines.
  const auto key = [layer](const GidVerdict& verdict) {
    return std::tuple(verdict.entry.index, verdict.use, rank_of(layer, verdict.entry), verdict.why);
  };
  std::ranges::sort(verdicts, std::ranges::less{}, key);
  return verdicts;
}

}  // namespace verbena::nic::verbs
