#include "store_checks.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::sim {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kAtOnce = 4;
/// A client that was killed is found out by the keepalive of its connections at last.
constexpr unsigned kMostLooks = 250;
/// Longer than a worker without work waits before it frees what has rested.
constexpr Nanoseconds kBetweenLooks = 150'000'000;
/// Of the item that says where a cell is.
constexpr std::uint64_t kMostCellBytes = 256;
/// A value that takes many pieces.
constexpr std::size_t kLargeBytes = std::size_t{64} << 10;

constexpr std::string_view kFront = "cold";
std::string name_of(unsigned key) { return std::string(kFront) + std::to_string(key); }
/// Of the filler's keys, and how many of them it changes between two steps.
constexpr unsigned kListings = 4;
constexpr unsigned kChanges = 60;

/// Words of a value: each is the value's number.
constexpr std::size_t kMostWords = 250;
std::size_t words_of(std::uint64_t value) { return 1 + value * 37 % kMostWords; }

/// Keys of one client, each with the value that it stored last. All of them are more than a MiB holds.
class Filler {
 public:
  Filler(std::unique_ptr<kv::Client> client, unsigned keys, std::uint64_t seed, kv::Evict evict)
      : client_(std::move(client)), values_(keys), may_be_gone_(evict != kv::Evict::kNone), random_(seed) {}

  std::string run() {
    for (unsigned key = 0; key < values_.size() && is_well(); ++key) store(key);
    for (unsigned i = 0; i < values_.size() / 4 && is_well(); ++i) {
      erase(static_cast<unsigned>(random_() % values_.size()));
      store(static_cast<unsigned>(random_() % values_.size()));
    }
    for (unsigned key = 0; key < values_.size() && is_well(); key += kAtOnce) look(key);
    for (unsigned i = 0; i < kListings && is_well(); ++i) list();
    return wrong_;
  }

 private:
  [[nodiscard]] kv::Key key_of(unsigned key) {
    name_ = name_of(key);
    return std::as_bytes(std::span(name_));
  }
  [[nodiscard]] bool is_well() const { return wrong_.empty() && !is_over_; }
  /// Anything else leaves open what has happened.
  void take(Status status, unsigned key, const char* call, std::uint64_t value) {
    if (status == Status::kOk || (status == Status::kNotFound && values_[key] == 0 && value == 0)) {
      values_[key] = value;
    } else if (status == Status::kNotFound && may_be_gone_) {
      values_[key] = 0;
    } else if (status == Status::kNotFound) {
      wrong_ = fmt::format("{} of {}: not found", call, name_of(key));
    } else if (status != Status::kIndexFull && status != Status::kStoreFull && status != Status::kAgain) {
      is_over_ = true;
    }
  }
  void store(unsigned key) {
    const std::uint64_t value = ++last_;
    const std::vector<std::uint64_t> words(words_of(value), value);
    take(client_->put(key_of(key), std::as_bytes(std::span(words))).status, key, "put", value);
  }
  void erase(unsigned key) { take(client_->erase(key_of(key)).status, key, "erase", 0); }
  void look(unsigned first) {
    std::array<kv::GetRequest, kAtOnce> gets;
    std::array<std::string, kAtOnce> names;
    std::array<std::array<std::uint64_t, kMostWords>, kAtOnce> found{};
    const std::size_t count = std::min(kAtOnce, values_.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      names[i] = name_of(first + static_cast<unsigned>(i));
      gets[i] = {
          .key = std::as_bytes(std::span(names[i])), .out = std::as_writable_bytes(std::span(found[i])), .outcome = {}};
    }
    client_->get(std::span(gets).first(count));
    for (std::size_t i = 0; i < count && is_well(); ++i) {
      const std::uint64_t value = values_[first + i];
      const Status status = gets[i].outcome.status;
      if (status != Status::kOk && status != Status::kNotFound) {
        is_over_ = true;
        continue;
      }
      const auto words = std::span(found[i]).first(gets[i].outcome.length / sizeof(std::uint64_t));
      if (may_be_gone_ && status == Status::kNotFound) continue;
      const bool is_it = value == 0 ? status == Status::kNotFound
                                    : status == Status::kOk && words.size() == words_of(value) &&
                                          std::ranges::count(words, value) == std::ssize(words);
      if (!is_it)
        wrong_ = fmt::format("{} has {} words, the first of them {}, and not value {}, which was stored last", names[i],
                             words.size(), found[i][0], value);
    }
  }

  /// Lists all keys, and puts some anew between the steps, which moves others: those that stay have to come.
  void list() {
    std::vector<bool> is_expected;
    for (const std::uint64_t value : values_) is_expected.push_back(value != 0 && !may_be_gone_);
    kv::KeyPage page;
    for (kv::KeyCursor cursor; !cursor.is_over && is_well();) {
      const Status status = client_->keys(std::as_bytes(std::span(kFront)), cursor, page);
      if (status != Status::kOk) {
        is_over_ = true;
        return;
      }
      for (const kv::Key key : page) {
        const std::string name(reinterpret_cast<const char*>(key.data()), key.size());
        is_expected.at(std::stoul(name.substr(kFront.size()))) = false;
      }
      for (unsigned i = 0; i < kChanges && !cursor.is_over && is_well(); ++i) {
        const auto key = static_cast<unsigned>(random_() % values_.size());
        is_expected[key] = false;
        erase(key);
        store(key);
      }
    }
    if (!is_well()) return;
    const auto missing = std::ranges::find(is_expected, true);
    if (missing != is_expected.end())
      wrong_ = fmt::format("a listing left out {}, which was there all the time",
                           name_of(static_cast<unsigned>(missing - is_expected.begin())));
  }

  std::unique_ptr<kv::Client> client_;
  std::vector<std::uint64_t> values_;  ///< 0: not there.
  bool may_be_gone_;
  std::mt19937_64 random_;
  std::string name_;
  std::uint64_t last_ = 0;
  bool is_over_ = false;
  std::string wrong_;
};

/// What is still taken; empty: nothing.
std::string left_in(const kv::ServerStatistics& now, const Leftovers& expected) {
  if (now.clients != 1) return fmt::format("{} clients", now.clients);
  if (now.resting_bytes != 0) return fmt::format("{} bytes that rest", now.resting_bytes);
  if (expected.is_filled) return {};
  if (now.items != now.cells) return fmt::format("{} items", now.items);
  return now.used_bytes > now.cells * kMostCellBytes ? fmt::format("{} bytes of no key", now.used_bytes) : "";
}

}  // namespace

std::string fill_index(const kv::ClientOptions& options, unsigned keys, std::uint64_t seed, kv::Evict evict) {
  auto client = kv::Client::connect(options);
  return client ? Filler(std::move(*client), keys, seed, evict).run() : "";
}

namespace {

/// Large values come, are replaced, and go.
std::string come_and_go(kv::Client& client, unsigned keys) {
  const std::vector<std::byte> large(kLargeBytes);
  for (unsigned key = 0; key < keys; ++key) {
    const std::string name = kv::history::name_of_key(key);
    const kv::Key bytes = std::as_bytes(std::span(name));
    for (const Status status :
         {client.put(bytes, large).status, client.put(bytes, large).status, client.erase(bytes).status})
      if (damage_of(status) >= Damage::kConnection || status == Status::kTimedOut)
        return fmt::format("the end of {}: {}", name, client.connection_error().text());
  }
  return {};
}

}  // namespace

std::string find_leftovers(const kv::ClientOptions& options, const Leftovers& expected, Tasks& tasks) {
  const auto connected = kv::Client::connect(options);
  if (!connected) return fmt::format("cannot connect for the last time: {}", connected.error().text());
  kv::Client& client = **connected;
  if (std::string wrong = come_and_go(client, expected.keys); !wrong.empty()) return wrong;
  std::string left;
  for (unsigned look = 0; look < kMostLooks; ++look) {
    (void)tasks.sleep(&left, tasks.world().now() + kBetweenLooks);
    const auto now = client.server_statistics(Deadline::after(10s));
    if (!now) return fmt::format("no statistics: {}", now.error().text());
    if (now->clients_lost != 0 && !expected.may_be_lost)
      return fmt::format("{} clients are lost, where all said goodbye", now->clients_lost);
    left = left_in(*now, expected);
    // What was taken back is as good as new.
    if (left.empty()) return come_and_go(client, expected.keys);
  }
  return "left in the end: " + left;
}

std::string check_sums(const kv::ServerOptions& options, const kv::ServerStatistics& now) {
  if (now.used_bytes + now.resting_bytes > now.capacity_bytes)
    return fmt::format("{} B in use and {} B at rest are more than the store's {} B", now.used_bytes, now.resting_bytes,
                       now.capacity_bytes);
  if (now.items > now.max_items || now.items > now.index_entries || now.cells > options.max_cells)
    return fmt::format("{} items of {} in {} entries, {} cells of {}", now.items, now.max_items, now.index_entries,
                       now.cells, options.max_cells);
  if (now.sessions > std::uint64_t{options.max_clients} * options.workers || now.clients > options.max_clients)
    return fmt::format("{} clients with {} sessions, {} clients at most", now.clients, now.sessions,
                       options.max_clients);
  return {};
}

}  // namespace verbena::sim
