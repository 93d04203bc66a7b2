// Access rights: a server's grants, put in order once and looked up for each request; and what a subject uses of its
// quota.
#pragma once

#include <verbena/error.hpp>
#include <verbena/kv.hpp>

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::kv {

/// The quota that refuses something.
enum class Quota : std::uint8_t { kNone = 0, kMemory = 1, kItems = 2 };

/// Memory and items of a subject.
struct Holding {
  std::uint64_t bytes = 0;
  std::uint64_t items = 0;
};

/// One subject's use and quota of a store. Workers share it: a quota holds for the subject, on whichever workers its
/// keys are. If two workers charge it at the same moment, both may be refused although one of them could have
/// succeeded. Usage never exceeds the quota, except by items about to replace others. \thread any  \alloc none
class alignas(64) Account {
 public:
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
  using Amount = Holding;

  /// Sets the quota. \thread setup
  void limit(Amount most) noexcept { most_ = most; }
  [[nodiscard]] Amount most() const noexcept { return most_; }
  [[nodiscard]] Amount used() const noexcept {
    return {bytes_.load(std::memory_order_relaxed), items_.load(std::memory_order_relaxed)};
  }

  /// Charges `amount` unless it exceeds the quota. `replaced` is the subject's own; the change being charged for gives
  /// it back.
  [[nodiscard]] Quota charge(Amount amount, Amount replaced = {}) noexcept {
    const std::uint64_t bytes = bytes_.fetch_add(amount.bytes, std::memory_order_relaxed) + amount.bytes;
    const std::uint64_t items = items_.fetch_add(amount.items, std::memory_order_relaxed) + amount.items;
    const bool is_long = exceeds(bytes, replaced.bytes, most_.bytes);
    if (!is_long && !exceeds(items, replaced.items, most_.items)) [[likely]]
      return Quota::kNone;
    give_back(amount);
    return is_long ? Quota::kMemory : Quota::kItems;
  }
  void give_back(Amount amount) noexcept {
    bytes_.fetch_sub(amount.bytes, std::memory_order_relaxed);
    items_.fetch_sub(amount.items, std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] static constexpr bool exceeds(std::uint64_t all, std::uint64_t replaced, std::uint64_t most) noexcept {
    return all > replaced && all - replaced > most;
  }

  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> items_{0};
  Amount most_{.bytes = kUnlimited, .items = kUnlimited};
};

/// An item's owner: an account's number, from 1; 0 for everybody without an account.
using Owner = std::uint16_t;
inline constexpr Owner kNoOwner = 0;

/// All accounts of a server, by owner; the first has number 1.
using Accounts = std::span<Account>;

/// Keys that begin with one of several prefixes. A lookup takes time logarithmic in their number. \thread any
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
  /// Sorted, and none begins with another. So only the greatest prefix that is not greater than a key can cover it:
  /// anything between a prefix and a key that begins with it would begin with that prefix too, and is not in the list.
  std::vector<std::string> prefixes_;
};

/// The rights of one subject's clients. Immutable once the server runs.
struct Permissions {
  Subject subject;
  PrefixSet read;
  PrefixSet write;
  bool may_administer = false;
  /// Restricted by its clients' own promise; without it they could do more.
  bool is_read_only = false;
  /// May READ the store's memory.
  bool is_exported = false;
  Owner owner = kNoOwner;
  Account* account = nullptr;  ///< Null: it has no quota.

  [[nodiscard]] bool may_use_cells() const noexcept { return read.covers_all() && write.covers_all(); }
};

/// The permissions of all subjects of a server. \thread any, once it is made
class Access {
 public:
  /// Requires checked options. \alloc setup
  explicit Access(const ServerOptions& options);
  /// Checks the grants. Errors: kBadArgument, naming the grant, the value and the range.
  [[nodiscard]] static Result<void> check(const ServerOptions& options);
  /// Users, besides the server's own, whose processes may connect. \alloc setup
  [[nodiscard]] static std::vector<uid_t> users(const ServerOptions& options);

  /// The permissions of a client of user `uid` that does or does not promise to only read. Null: all rights, no quota.
  /// Errors: kNotAllowed (others have rights, and it has none).
  [[nodiscard]] Result<const Permissions*> find(std::optional<uid_t> uid, bool is_read_only) const;
  /// Users who may access the items' memory; none: all that may connect.
  [[nodiscard]] const std::optional<std::vector<uid_t>>& exported_to() const noexcept { return exported_to_; }
  /// The same for the cells' memory.
  [[nodiscard]] const std::optional<std::vector<uid_t>>& cells_of() const noexcept { return cells_of_; }
  /// Whether somebody may write only some of the keys.
  [[nodiscard]] bool has_limited_writers() const noexcept { return has_limited_writers_; }
  [[nodiscard]] Accounts accounts() noexcept { return {accounts_.get(), account_count_}; }

 private:
  struct Entry {
    Permissions full;
    Permissions read_only;
  };
  [[nodiscard]] Entry& entry_of(const Subject& subject);
  void finish();

  bool has_rights_ = false;  ///< Some grant gives a right, so rights are checked.
  bool has_limited_writers_ = false;
  std::vector<std::unique_ptr<Entry>> entries_;
  Permissions promised_;  ///< For a client without an entry that promises to only read.
  std::unique_ptr<Account[]> accounts_;
  std::size_t account_count_ = 0;
  std::optional<std::vector<uid_t>> exported_to_;
  std::optional<std::vector<uid_t>> cells_of_;
};

/// Whether one of the grants has a quota; items then have owners.
[[nodiscard]] bool has_quotas(const ServerOptions& options) noexcept;

}  // namespace verbena::kv
