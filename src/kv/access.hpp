// Who may do what: a server's grants, put in order once and looked at for each request.
#pragma once

#include "kv/account.hpp"

#include <verbena/error.hpp>
#include <verbena/kv.hpp>

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::kv {

/// Keys that begin with one of several prefixes. A search takes the logarithm of how many these are. \thread any
class PrefixSet {
 public:
  /// \alloc setup
  void add(std::string_view prefix);
  [[nodiscard]] bool covers(Key key) const noexcept;
  [[nodiscard]] bool covers_all() const noexcept { return !prefixes_.empty() && prefixes_.front().empty(); }
  [[nodiscard]] bool empty() const noexcept { return prefixes_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return prefixes_.size(); }
  [[nodiscard]] std::string_view first() const noexcept {
    return prefixes_.empty() ? std::string_view() : std::string_view(prefixes_.front());
  }

 private:
  /// Sorted, and none begins with another. So whatever lies between a prefix and a key that begins with it begins with
  /// it too, and is not here: the greatest that is not greater than the key is the only one that can cover it.
  std::vector<std::string> prefixes_;
};

/// What the clients of one subject may do. Immutable once the server runs.
struct Permissions {
  Subject subject;
  PrefixSet read;
  PrefixSet write;
  bool may_administer = false;
  /// Without the promise of its clients it could do more.
  bool is_read_only = false;
  /// The memory of the store is granted to it, to be READ.
  bool is_exported = false;
  Owner owner = kNoOwner;
  Account* account = nullptr;  ///< Null: it has no quota.

  [[nodiscard]] bool may_use_cells() const noexcept { return read.covers_all() && write.covers_all(); }
};

/// The permissions of all subjects of a server. \thread any, once it is made
class Access {
 public:
  /// Of checked options. \alloc setup
  explicit Access(const ServerOptions& options);
  /// What is wrong with the grants. Errors: kBadArgument, which names the grant, the value and the range.
  [[nodiscard]] static Result<void> check(const ServerOptions& options);
  /// Users whose processes may connect besides the server's own. \alloc setup
  [[nodiscard]] static std::vector<uid_t> users(const ServerOptions& options);

  /// Of a client of this user, that promises to read only or does not. Null: all rights, no quota. Errors: kNotAllowed
  /// (others have rights, and it has none).
  [[nodiscard]] Result<const Permissions*> find(std::optional<uid_t> uid, bool is_read_only) const;
  /// Users that the items' memory is granted to; none: all that may connect.
  [[nodiscard]] const std::optional<std::vector<uid_t>>& exported_to() const noexcept { return exported_to_; }
  /// The same for the cells' memory.
  [[nodiscard]] const std::optional<std::vector<uid_t>>& cells_of() const noexcept { return cells_of_; }
  /// Whether somebody may write some keys and not all.
  [[nodiscard]] bool has_limited_writers() const noexcept { return has_limited_writers_; }
  [[nodiscard]] Accounts accounts() noexcept { return {accounts_.get(), account_count_}; }

 private:
  struct Entry {
    Permissions full;
    Permissions read_only;
  };
  [[nodiscard]] Entry& entry_of(const Subject& subject);
  void finish(const ServerOptions& options);

  bool has_rights_ = false;  ///< A grant gives one, so rights are looked at.
  bool has_limited_writers_ = false;
  std::vector<std::unique_ptr<Entry>> entries_;
  Permissions promised_;  ///< Of a client without an entry that promises to read only.
  std::unique_ptr<Account[]> accounts_;
  std::size_t account_count_ = 0;
  std::optional<std::vector<uid_t>> exported_to_;
  std::optional<std::vector<uid_t>> cells_of_;
};

/// Whether one of the grants has a quota: then items have owners.
[[nodiscard]] bool has_quotas(const ServerOptions& options) noexcept;

}  // namespace verbena::kv
