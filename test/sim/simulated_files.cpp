#include "simulated_files.hpp"

#include "process.hpp"

#include <algorithm>
#include <set>

namespace verbena::sim {

namespace {

constexpr std::uint64_t kEver = ~std::uint64_t{0};

/// Whose files are on which disk.
[[nodiscard]] std::map<const Process*, Disk*>& disks() noexcept {
  static std::map<const Process*, Disk*> all;
  return all;
}

}  // namespace

// --- what a file holds --------------------------------------------------------------------------------------------

std::size_t Contents::read(std::uint64_t offset, std::span<std::byte> to) const noexcept {
  if (offset >= now_.size()) return 0;
  const std::size_t count = std::min<std::size_t>(to.size(), now_.size() - offset);
  std::ranges::copy(std::span(now_).subspan(offset, count), to.begin());
  return count;
}

void Contents::note_sectors(std::uint64_t begin, std::uint64_t end, std::uint64_t stamp) {
  for (std::uint64_t at = begin / kSectorBytes; at * kSectorBytes < end; ++at) {
    Sector sector{};
    (void)read(at * kSectorBytes, sector);
    sectors_[at].emplace_back(stamp, sector);
  }
}

void Contents::write(std::uint64_t offset, std::span<const std::byte> bytes, std::uint64_t stamp) {
  if (bytes.empty()) return;
  const std::uint64_t end = offset + bytes.size();
  if (end > now_.size()) resize(end, stamp);
  std::ranges::copy(bytes, now_.begin() + static_cast<std::ptrdiff_t>(offset));
  note_sectors(offset, end, stamp);
}

void Contents::resize(std::uint64_t bytes, std::uint64_t stamp) {
  const std::uint64_t before = now_.size();
  now_.resize(bytes);
  sizes_.emplace_back(stamp, bytes);
  if (bytes < before) note_sectors(bytes, before, stamp);
}

/// Each sector's last version up to `stamp` is durable from now on if `is_kept()`; none of them is unsynced any more.
template <class Keep>
void Contents::settle(std::uint64_t stamp, const Keep& is_kept) {
  const auto take = [&](auto& versions, auto&& store) {
    const auto later = std::ranges::find_if(versions, [&](const auto& version) { return version.first > stamp; });
    if (later == versions.begin()) return;
    if (is_kept()) store(std::prev(later)->second);
    versions.erase(versions.begin(), later);
  };
  for (auto& [at, versions] : sectors_) take(versions, [&](const Sector& sector) { durable_[at] = sector; });
  std::erase_if(sectors_, [](const auto& entry) { return entry.second.empty(); });
  take(sizes_, [&](std::uint64_t bytes) { durable_bytes_ = bytes; });
}

void Contents::sync(std::uint64_t stamp) {
  settle(stamp, [] { return true; });
}

void Contents::fail_sync(std::uint64_t stamp, Random& random) {
  settle(stamp, [&] { return random.one_in(2); });
}

void Contents::lose_power(Random& random) {
  const auto choose = [&](auto& versions, auto&& store) {
    if (const std::size_t chosen = random.below(versions.size() + 1); chosen != 0) store(versions[chosen - 1].second);
  };
  for (auto& [at, versions] : sectors_) choose(versions, [&](const Sector& sector) { durable_[at] = sector; });
  choose(sizes_, [&](std::uint64_t bytes) { durable_bytes_ = bytes; });
  now_.assign(durable_bytes_, std::byte{0});
  std::erase_if(durable_, [&](const auto& entry) { return entry.first * kSectorBytes >= durable_bytes_; });
  for (auto& [at, sector] : durable_) {
    const std::uint64_t begin = at * kSectorBytes;
    const std::size_t count = std::min<std::size_t>(kSectorBytes, durable_bytes_ - begin);
    std::ranges::copy(std::span(sector).first(count), now_.begin() + static_cast<std::ptrdiff_t>(begin));
    // What is behind the end is zero once the file is longer again.
    std::ranges::fill(std::span(sector).subspan(count), std::byte{0});
  }
  sectors_.clear();
  sizes_.clear();
}

// --- directories --------------------------------------------------------------------------------------------------

std::shared_ptr<Contents> Folder::find(std::string_view name) const {
  const auto found = now_.find(name);
  return found != now_.end() ? found->second : nullptr;
}

/// Also where other changes before it were lost.
void Folder::apply(Entries& entries, const Change& change) {
  if (const auto old = entries.find(change.from); old != entries.end() && old->second == change.file)
    entries.erase(old);
  if (!change.to.empty()) entries[change.to] = change.file;
}

void Folder::change(Change change) {
  apply(now_, change);
  changes_.push_back(std::move(change));
}

void Folder::add(const std::string& name, const std::shared_ptr<Contents>& file, std::uint64_t stamp) {
  change({.stamp = stamp, .from = {}, .to = name, .file = file});
}
void Folder::rename(const std::string& from, const std::string& to, std::uint64_t stamp) {
  if (from != to) change({.stamp = stamp, .from = from, .to = to, .file = find(from)});
}
void Folder::remove(const std::string& name, std::uint64_t stamp) {
  change({.stamp = stamp, .from = name, .to = {}, .file = find(name)});
}

/// Each change up to `stamp` is durable from now on if `is_kept()`; none of them is unsynced any more.
template <class Keep>
void Folder::settle(std::uint64_t stamp, const Keep& is_kept) {
  for (const Change& change : changes_)
    if (change.stamp <= stamp && is_kept()) apply(durable_, change);
  std::erase_if(changes_, [&](const Change& change) { return change.stamp <= stamp; });
}

void Folder::sync(std::uint64_t stamp) {
  settle(stamp, [] { return true; });
}

void Folder::fail_sync(std::uint64_t stamp, Random& random) {
  settle(stamp, [&] { return random.one_in(2); });
}

void Folder::lose_power(Random& random) {
  fail_sync(kEver, random);
  now_ = durable_;
  std::set<const Contents*> seen;
  for (const auto& [name, file] : now_)
    if (seen.insert(file.get()).second) file->lose_power(random);
}

// --- disks --------------------------------------------------------------------------------------------------------

Disk::~Disk() {
  std::erase_if(disks(), [this](const auto& entry) { return entry.second == this; });
}

void Disk::serve(const Process& process) { disks()[&process] = this; }

Disk* Disk::of(const Process& process) noexcept {
  const auto found = disks().find(&process);
  return found != disks().end() ? found->second : nullptr;
}

void Disk::make_directory(const std::string& path) {
  auto& folder = directories_[path];
  if (folder == nullptr) folder = std::make_shared<Folder>();
}

std::shared_ptr<Folder> Disk::find_directory(std::string_view path) const {
  const auto found = directories_.find(path);
  return found != directories_.end() ? found->second : nullptr;
}

void Disk::lose_power() {
  ++starts_;
  world_.tell("the disk loses power");
  for (const auto& [path, folder] : directories_) folder->lose_power(world_.random());
}

}  // namespace verbena::sim
