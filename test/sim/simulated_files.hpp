// Disks of simulated hosts: files in memory that outlive the processes which write them, and that lose what was not
// synced when the host loses power. src/base/files.hpp is how processes use them.
#pragma once

#include "world.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::sim {

class Process;

/// The paths of simulated files begin with it. All other files are the real ones, which a simulation only reads.
inline constexpr std::string_view kDiskRoot = "/simulated";

/// What a file holds: for the processes of its host now, and what of it would be there after a loss of power.
class Contents {
 public:
  static constexpr std::size_t kSectorBytes = 512;

  [[nodiscard]] std::uint64_t bytes() const noexcept { return now_.size(); }
  [[nodiscard]] std::size_t read(std::uint64_t offset, std::span<std::byte> to) const noexcept;
  void write(std::uint64_t offset, std::span<const std::byte> bytes, std::uint64_t stamp);
  void resize(std::uint64_t bytes, std::uint64_t stamp);
  /// What was written up to `stamp` becomes durable.
  void sync(std::uint64_t stamp);
  /// Some of that becomes durable. The rest is taken for it, and is not: no later sync writes it.
  void fail_sync(std::uint64_t stamp, Random& random);
  /// Each sector, and the size, becomes one that it has had since the last sync.
  void lose_power(Random& random);

 private:
  using Sector = std::array<std::byte, kSectorBytes>;
  template <class Value>
  using Versions = std::vector<std::pair<std::uint64_t, Value>>;  ///< With their stamps, the oldest first.
  void note_sectors(std::uint64_t begin, std::uint64_t end, std::uint64_t stamp);
  template <class Keep>
  void settle(std::uint64_t stamp, const Keep& is_kept);

  std::vector<std::byte> now_;
  std::map<std::uint64_t, Sector> durable_;  ///< What is missing is zero.
  std::uint64_t durable_bytes_ = 0;
  std::map<std::uint64_t, Versions<Sector>> sectors_;
  Versions<std::uint64_t> sizes_;
};

/// Which files a directory has by which names, in the same two ways.
class Folder {
 public:
  using Entries = std::map<std::string, std::shared_ptr<Contents>, std::less<>>;
  [[nodiscard]] const Entries& entries() const noexcept { return now_; }
  [[nodiscard]] std::shared_ptr<Contents> find(std::string_view name) const;
  void add(const std::string& name, const std::shared_ptr<Contents>& file, std::uint64_t stamp);
  void rename(const std::string& from, const std::string& to, std::uint64_t stamp);
  void remove(const std::string& name, std::uint64_t stamp);
  void sync(std::uint64_t stamp);
  void fail_sync(std::uint64_t stamp, Random& random);
  /// Any of the changes since the last sync are lost, the files of the others lose what they lose.
  void lose_power(Random& random);

 private:
  /// `file` is at `to`, and no more at `from`; where one of them is empty, only the other half.
  struct Change {
    std::uint64_t stamp = 0;
    std::string from, to;
    std::shared_ptr<Contents> file;
  };
  static void apply(Entries& entries, const Change& change);
  void change(Change change);
  template <class Keep>
  void settle(std::uint64_t stamp, const Keep& is_kept);

  Entries now_;
  Entries durable_;
  std::vector<Change> changes_;
};

/// The disk of a host. Calls on its files take time, at whose end their effect is there. One thread's.
class Disk {
 public:
  /// How often calls fail: one in so many; 0: never.
  struct Faults {
    std::uint64_t short_write = 0;
    std::uint64_t no_space = 0;      ///< ENOSPC, and nothing is written.
    std::uint64_t failed_write = 0;  ///< EIO, and some of it may be written.
    std::uint64_t failed_sync = 0;   ///< EIO, of files and directories: see Contents::fail_sync.
  };
  /// How long calls take at most; half of it at least.
  struct Times {
    Nanoseconds call = 4'000;
    Nanoseconds sync = 200'000;
  };

  explicit Disk(World& world) noexcept : world_(world) {}
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  /// The files of a process that begin with kDiskRoot are on this disk from now on.
  void serve(const Process& process);
  /// A path that begins with kDiskRoot. Its parents need not be there.
  void make_directory(const std::string& path);
  void set_faults(const Faults& faults) noexcept { faults_ = faults; }
  void set_times(const Times& times) noexcept { times_ = times; }
  /// What was not synced may be gone, in parts. Files that are open are of no use any more. Kill the host's processes
  /// at the same time: a killed process alone loses nothing.
  void lose_power();

  // For the calls of its processes.

  [[nodiscard]] World& world() noexcept { return world_; }
  [[nodiscard]] const Faults& faults() const noexcept { return faults_; }
  [[nodiscard]] const Times& times() const noexcept { return times_; }
  /// Null: there is none.
  [[nodiscard]] std::shared_ptr<Folder> find_directory(std::string_view path) const;
  /// Tells earlier changes from later ones.
  [[nodiscard]] std::uint64_t next_stamp() noexcept { return ++stamp_; }
  [[nodiscard]] std::uint64_t last_stamp() const noexcept { return stamp_; }
  /// Grows with each loss of power.
  [[nodiscard]] std::uint64_t starts() const noexcept { return starts_; }
  /// That of a process; null: it has none.
  [[nodiscard]] static Disk* of(const Process& process) noexcept;

 private:
  World& world_;
  Faults faults_;
  Times times_;
  std::map<std::string, std::shared_ptr<Folder>, std::less<>> directories_;
  std::uint64_t stamp_ = 0;
  std::uint64_t starts_ = 0;
};

}  // namespace verbena::sim
