#include "kv/access.hpp"

#include "base/error.hpp"
#include "base/limit.hpp"
#include "base/text.hpp"
#include "kv/plan.hpp"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace verbena::kv {
namespace {

constexpr const char* kStart = "Server::start";
constexpr unsigned kAllRights = std::to_underlying(Rights::kRead | Rights::kWrite | Rights::kAdminister);
constexpr uid_t kNoUser = std::numeric_limits<uid_t>::max();

bool has_quota(const Grant& grant) noexcept { return grant.max_memory_bytes != 0 || grant.max_items != 0; }

/// Checks one value of the grant at index `at`.
Result<void> check_number(std::size_t at, const char* field, std::uint64_t value, std::uint64_t least,
                          std::uint64_t most) {
  if (value >= least && value <= most) return {};
  return fail(Status::kBadArgument, kStart, 0, "grants[{}].{} must be {} to {}; got {}", at, field, least, most, value);
}

Result<void> check_quotas(const ServerOptions& options, std::size_t at) {
  const Grant& grant = options.grants[at];
  VERBENA_TRY(check_number(at, "max_memory_bytes", grant.max_memory_bytes, 0, options.memory_bytes));
  VERBENA_TRY(check_number(at, "max_items", grant.max_items, 0, most_items_of(options)));
  for (std::size_t i = 0; i < at; ++i) {
    const Grant& other = options.grants[i];
    if (other.subject != grant.subject) continue;
    const auto differ = [](std::size_t a, std::size_t b) { return a != 0 && b != 0 && a != b; };
    if (differ(other.max_memory_bytes, grant.max_memory_bytes) || differ(other.max_items, grant.max_items))
      return fail(
          Status::kBadArgument, kStart, 0,
          "grants[{}] and grants[{}] give uid {} two quotas: {} and {} bytes, {} and {} items; one of them says "
          "each",
          i, at, grant.subject.uid, other.max_memory_bytes, grant.max_memory_bytes, other.max_items, grant.max_items);
  }
  return {};
}

Result<void> check_grant(const ServerOptions& options, std::size_t at) {
  const Grant& grant = options.grants[at];
  VERBENA_TRY(check_number(at, "subject.kind", std::to_underlying(grant.subject.kind), 0, 0));
  VERBENA_TRY(check_number(at, "uid", grant.subject.uid, 0, kNoUser - 1));
  VERBENA_TRY(
      check_number(at, "rights (read 1, write 2, administer 4)", std::to_underlying(grant.rights), 0, kAllRights));
  VERBENA_TRY(check_number(at, "prefix (its bytes)", grant.prefix.size(), 0, kMaxKeyBytes));
  if (grant.rights == Rights::kNone && !has_quota(grant))
    return fail(Status::kBadArgument, kStart, 0,
                "grants[{}].rights must be 1 to {} (read 1, write 2, administer 4) in a grant without a quota; got 0",
                at, kAllRights);
  if (!grant.prefix.empty() && !has_right(grant.rights, Rights::kRead | Rights::kWrite))
    return fail(
        Status::kBadArgument, kStart, 0,
        "grants[{}].prefix must have 0 bytes in a grant without the rights to read and to write, which alone are "
        "for keys; got {} bytes",
        at, grant.prefix.size());
  return check_quotas(options, at);
}

bool has(const std::vector<uid_t>& users, uid_t uid) { return std::ranges::find(users, uid) != users.end(); }

bool may_connect(const ServerOptions& options, uid_t uid) {
  return uid == ::geteuid() || has(Access::users(options), uid);
}

}  // namespace

bool has_quotas(const ServerOptions& options) noexcept { return std::ranges::any_of(options.grants, has_quota); }

// --- prefixes

void PrefixSet::add(std::string_view prefix) {
  const std::string added(prefix);
  if (covers(bytes_of_text(added))) return;
  std::erase_if(prefixes_, [&](const std::string& longer) { return longer.starts_with(added); });
  prefixes_.insert(std::ranges::upper_bound(prefixes_, added), added);
}

bool PrefixSet::covers(Key key) const noexcept {
  const std::string_view text = text_of(key);
  // char_traits compares char as unsigned bytes, so bytes above 127 are in order too.
  const auto after =
      std::ranges::upper_bound(prefixes_, text, {}, [](const std::string& prefix) { return std::string_view(prefix); });
  return after != prefixes_.begin() && text.starts_with(*std::prev(after));
}

// --- grants

Result<void> Access::check(const ServerOptions& options) {
  VERBENA_TRY(check_limit(kStart, "grants (their number)", options.grants.size(), 0, kMaxGrants));
  for (std::size_t at = 0; at < options.grants.size(); ++at) {
    VERBENA_TRY(check_grant(options, at));
    const uid_t uid = options.grants[at].subject.uid;
    if (!may_connect(options, uid))
      return fail(Status::kBadArgument, kStart, 0,
                  "grants[{}].uid must be one of allowed_uids, the server's own user, or a user with a right; "
                  "got {}, which has a quota only",
                  at, uid);
  }
  return {};
}

std::vector<uid_t> Access::users(const ServerOptions& options) {
  std::vector<uid_t> users = options.allowed_uids;
  for (const Grant& grant : options.grants)
    if (grant.rights != Rights::kNone && !has(users, grant.subject.uid)) users.push_back(grant.subject.uid);
  return users;
}

Access::Access(const ServerOptions& options)
    : has_rights_(std::ranges::any_of(options.grants, [](const Grant& one) { return one.rights != Rights::kNone; })),
      accounts_(std::make_unique<Account[]>(has_quotas(options) ? options.grants.size() : 0)) {
  for (const Grant& grant : options.grants) {
    Entry& entry = entry_of(grant.subject);
    if (has_right(grant.rights, Rights::kRead)) entry.full.read.add(grant.prefix);
    if (has_right(grant.rights, Rights::kWrite)) entry.full.write.add(grant.prefix);
    entry.full.may_administer |= has_right(grant.rights, Rights::kAdminister);
    if (!has_quota(grant)) continue;
    if (entry.full.account == nullptr) {
      entry.full.account = &accounts_[account_count_++];
      entry.full.owner = static_cast<Owner>(account_count_);
    }
    const Account::Amount before = entry.full.account->most();
    entry.full.account->limit({grant.max_memory_bytes != 0 ? grant.max_memory_bytes : before.bytes,
                               grant.max_items != 0 ? grant.max_items : before.items});
  }
  finish();
}

Access::Entry& Access::entry_of(const Subject& subject) {
  const auto known = std::ranges::find(entries_, subject, [](const auto& entry) { return entry->full.subject; });
  if (known != entries_.end()) return **known;
  entries_.push_back(std::make_unique<Entry>());
  entries_.back()->full.subject = subject;
  return *entries_.back();
}

void Access::finish() {
  promised_.is_read_only = promised_.is_exported = promised_.may_administer = true;
  promised_.read.add("");
  if (has_rights_) {
    exported_to_.emplace();
    cells_of_.emplace();
    (void)entry_of({.uid = ::geteuid()});
  }
  for (const auto& entry : entries_) {
    Permissions& full = entry->full;
    const bool is_owner = full.subject.uid == ::geteuid();
    const bool is_named = full.may_administer || !full.read.empty() || !full.write.empty();
    // Grants of quotas take no rights away, and no other user's grant takes those of the server's own user.
    if (!is_named && (!has_rights_ || is_owner)) {
      full.read.add("");
      full.write.add("");
      full.may_administer = true;
    }
    has_limited_writers_ |= !full.write.empty() && !full.write.covers_all();
    full.is_exported = full.read.covers_all();
    if (has_rights_ && full.is_exported) exported_to_->push_back(full.subject.uid);
    if (has_rights_ && full.may_use_cells()) cells_of_->push_back(full.subject.uid);
    entry->read_only = full;
    entry->read_only.write = {};
    entry->read_only.is_read_only = true;
  }
}

Result<const Permissions*> Access::find(std::optional<uid_t> uid, bool is_read_only) const {
  const auto known = std::ranges::find_if(entries_, [&](const auto& entry) { return entry->full.subject.uid == uid; });
  if (known == entries_.end()) {
    if (!has_rights_) return is_read_only ? &promised_ : nullptr;
    return uid ? fail(Status::kNotAllowed, "connect", 0, "uid {} has no right at this server: grant it one (grants)",
                      *uid)
               : fail(Status::kNotAllowed, "connect", 0, "the server grants rights to users, and cannot tell yours");
  }
  const Permissions& full = (*known)->full;
  if (full.read.empty() && full.write.empty() && !full.may_administer)
    return fail(Status::kNotAllowed, "connect", 0, "uid {} has no right at this server: grant it one (grants)", *uid);
  return is_read_only ? &(*known)->read_only : &full;
}

}  // namespace verbena::kv
