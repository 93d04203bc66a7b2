// --allow and --quota: a server's grants on the command line.
#include "programs/options.hpp"
#include "programs/shell_words.hpp"

#include <fmt/core.h>

#include <pwd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace verbena::programs {
namespace {

constexpr const char* kAllow = "--allow";
constexpr const char* kQuota = "--quota";

[[noreturn]] void refuse(const char* option, std::string_view range, std::string_view given) {
  throw CLI::ValidationError(option, wrong_value(range, given));
}

/// Takes the text before the next colon off `rest`, with the colon; all of it if there is none.
std::string_view take_field(std::string_view& rest) noexcept {
  const std::size_t end = std::min(rest.find(':'), rest.size());
  const std::string_view field = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return field;
}

uid_t user_of(const char* option, std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number <= kMostUid) return static_cast<uid_t>(number);
  // Called before the server has threads.
  const passwd* const known = text.empty() ? nullptr : ::getpwnam(std::string(text).c_str());
  if (known == nullptr) refuse(option, fmt::format("a user's name, or number of 0 to {}", kMostUid), text);
  return known->pw_uid;
}

kv::Rights right_of(std::string_view word) {
  if (word == "read") return kv::Rights::kRead;
  if (word == "write") return kv::Rights::kWrite;
  if (word == "administer") return kv::Rights::kAdminister;
  refuse(kAllow, "rights of read, write and administer, joined by +", word);
}

kv::Rights rights_of(std::string_view words) {
  kv::Rights rights = kv::Rights::kNone;
  for (;;) {
    const std::size_t end = std::min(words.find('+'), words.size());
    rights = rights | right_of(words.substr(0, end));
    if (end == words.size()) return rights;
    words.remove_prefix(end + 1);
  }
}

kv::Grant allowed(const std::string& text) {
  std::string_view rest = text;
  kv::Grant grant{.rights = rights_of(take_field(rest))};
  if (!text.contains(':')) refuse(kAllow, "RIGHTS:USER or RIGHTS:USER:PREFIX", text);
  grant.subject.uid = user_of(kAllow, take_field(rest));
  // Most likely from a script whose variable is not set.
  if (rest.empty() && text.ends_with(':')) refuse(kAllow, "a prefix behind the second colon, or no colon there", text);
  auto prefix = unescaped(rest);
  if (!prefix) refuse(kAllow, "a prefix whose escapes are \\n, \\t, \\r, \\0, \\\\ and \\xHH", rest);
  if (prefix->size() > kv::kMaxKeyBytes)
    refuse(kAllow, fmt::format("a prefix of 0 to {} bytes", kv::kMaxKeyBytes), fmt::format("{}", prefix->size()));
  grant.prefix = std::move(*prefix);
  return grant;
}

/// 0 for "-", which means no quota.
std::size_t limit_of(std::string_view text, const char* what) {
  if (text == "-") return 0;
  const auto number = parse_bytes(std::string(text));
  if (!number || *number == 0)
    refuse(kQuota, fmt::format("{} of 1 and more, such as 64 or 4K, or - for no limit", what), text);
  return static_cast<std::size_t>(*number);
}

kv::Grant limited(const std::string& text) {
  std::string_view rest = text;
  if (std::ranges::count(text, ':') != 2) refuse(kQuota, "USER:MEMORY:ITEMS", text);
  kv::Grant grant;
  grant.subject.uid = user_of(kQuota, take_field(rest));
  grant.max_memory_bytes = limit_of(take_field(rest), "bytes");
  grant.max_items = limit_of(rest, "items");
  if (grant.max_memory_bytes == 0 && grant.max_items == 0) refuse(kQuota, "at least one limit", text);
  return grant;
}

}  // namespace

void add_grants(CLI::App& command, std::vector<kv::Grant>& grants) {
  const auto add = [&](const char* name, kv::Grant (*parse)(const std::string&), const char* type, const char* what) {
    const auto take = [&grants, parse](const std::vector<std::string>& texts) {
      for (const std::string& text : texts) grants.push_back(parse(text));
    };
    command.add_option_function<std::vector<std::string>>(name, take, what)
        ->type_name(type)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  add(kAllow, allowed, "RIGHTS:USER[:PREFIX]",
      "rights of a user, of read, write and administer joined by +, to keys that begin with PREFIX");
  add(kQuota, limited, "USER:MEMORY:ITEMS", "most bytes and items of a user; - for no limit");
}

}  // namespace verbena::programs
