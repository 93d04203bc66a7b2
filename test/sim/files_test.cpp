// Simulated disks: a small log that is written with the right syncs loses nothing that it has acknowledged, whenever
// its host loses power; and without any one of them it does.
#include "simulated_files.hpp"
#include "tasks.hpp"

#include "base/error.hpp"
#include "base/files.hpp"

#include <result.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <optional>

namespace verbena::sim {
namespace {

constexpr const char* kDirectory = "/simulated/store";
constexpr std::uint64_t kSeeds = 10'000;

/// A sync that the log leaves out, or does wrong.
enum class FileMistake : std::uint8_t {
  kNone,
  kNoDataSync,          ///< A record is acknowledged without.
  kNoSyncBeforeRename,  ///< A snapshot comes into its place without.
  kNoDirectorySync,     ///< Neither the snapshot's new name nor the new log is made durable.
  kSyncAgain,           ///< After a failed sync the next one that succeeds is believed.
};

/// Bytes that are told from others, also in part: words that depend on generation, sequence and place, and their sum.
template <std::size_t kWords>
class Block {
 public:
  Block() = default;
  Block(std::uint64_t generation, std::uint64_t sequence) noexcept {
    words_[0] = generation;
    words_[1] = sequence;
    for (std::size_t i = 2; i < kWords; ++i) words_[i] = Random(generation << 32 ^ sequence << 8 ^ i).next();
  }
  [[nodiscard]] std::uint64_t generation() const noexcept { return words_[0]; }
  [[nodiscard]] std::uint64_t sequence() const noexcept { return words_[1]; }
  [[nodiscard]] bool is_whole() const noexcept { return words_ == Block(generation(), sequence()).words_; }
  [[nodiscard]] std::span<std::byte> bytes() noexcept { return std::as_writable_bytes(std::span(words_)); }
  [[nodiscard]] Result<bool> read(const File& file, std::uint64_t offset) noexcept {
    VERBENA_ASSIGN(const std::size_t got, file.read(offset, bytes()));
    return got == sizeof words_ && is_whole();
  }

 private:
  std::array<std::uint64_t, kWords> words_{};
};
using Record = Block<11>;     // 88 bytes: most sectors have several, and some records are in two.
using Snapshot = Block<200>;  // 1600 bytes: four sectors.

/// Numbers in their order, durable one after the other: a snapshot that says which was the last one, and a log of what
/// came after it.
class Log {
 public:
  [[nodiscard]] static Result<Log> open(FileMistake mistake) {
    VERBENA_ASSIGN(Directory directory, Directory::open(kDirectory));
    Log log(mistake, std::move(directory));
    VERBENA_TRY(log.recover());
    // What was read may be in memory alone, since a sync has failed: it is written anew before anyone relies on it.
    VERBENA_TRY(log.checkpoint());
    return log;
  }
  [[nodiscard]] std::uint64_t last() const noexcept { return last_; }
  /// The next number is durable. After an error the log is of no use.
  [[nodiscard]] Result<void> append() {
    Record record(generation_, last_ + 1);
    VERBENA_TRY(write(record.bytes()));
    if (mistake_ != FileMistake::kNoDataSync) VERBENA_TRY(sync());
    end_ += record.bytes().size();
    ++last_;
    return {};
  }
  [[nodiscard]] Result<void> checkpoint() {
    const std::string name = fmt::format("log.{}", generation_ + 1);
    VERBENA_TRY(remove(name.c_str()));
    VERBENA_TRY(remove("snapshot.new"));
    VERBENA_ASSIGN(File log, directory_.open_file(name.c_str(), File::How::kNew));
    VERBENA_ASSIGN(File file, directory_.open_file("snapshot.new", File::How::kNew));
    Snapshot snapshot(generation_ + 1, last_);
    VERBENA_TRY(file.write(0, snapshot.bytes()));
    if (mistake_ != FileMistake::kNoSyncBeforeRename) VERBENA_TRY(file.sync());
    VERBENA_TRY(directory_.rename("snapshot.new", "snapshot"));
    if (mistake_ != FileMistake::kNoDirectorySync) VERBENA_TRY(directory_.sync());
    VERBENA_ASSIGN(const auto names, directory_.names(100));
    for (const std::string& other : names)
      if (other.starts_with("log.") && other != name) VERBENA_TRY(directory_.remove(other.c_str()));
    log_.emplace(std::move(log));
    end_ = 0;
    ++generation_;
    return {};
  }

 private:
  Log(FileMistake mistake, Directory directory) : mistake_(mistake), directory_(std::move(directory)) {}

  [[nodiscard]] Result<void> recover() {
    const auto file = directory_.open_file("snapshot", File::How::kRead);
    if (!file && file.error().status() == Status::kNotFound) return {};
    if (!file) return std::unexpected(file.error());
    Snapshot snapshot;
    VERBENA_ASSIGN(const bool is_whole, snapshot.read(*file, 0));
    if (!is_whole) return fail(Status::kProtocol, "recover", 0, "the snapshot is torn");
    generation_ = snapshot.generation();
    last_ = snapshot.sequence();
    const auto log = directory_.open_file(fmt::format("log.{}", generation_).c_str(), File::How::kRead);
    if (!log && log.error().status() == Status::kNotFound) return {};
    if (!log) return std::unexpected(log.error());
    Record record;
    for (std::uint64_t at = 0;; at += record.bytes().size()) {
      VERBENA_ASSIGN(const bool is_there, record.read(*log, at));
      if (!is_there || record.generation() != generation_ || record.sequence() != last_ + 1) return {};
      ++last_;
    }
  }
  [[nodiscard]] Result<void> remove(const char* name) {
    const auto removed = directory_.remove(name);
    return !removed && removed.error().status() == Status::kNotFound ? Result<void>{} : removed;
  }
  /// Where there was no space, there may be some later.
  [[nodiscard]] Result<void> write(std::span<const std::byte> bytes) {
    Result<void> written;
    for (int i = 0; i < 5; ++i) {
      written = log_->write(end_, bytes);
      if (written || written.error().status() != Status::kLimit) return written;
      VERBENA_TRY(log_->truncate(end_));
    }
    return written;
  }
  [[nodiscard]] Result<void> sync() {
    auto synced = log_->sync();
    if (!synced && mistake_ == FileMistake::kSyncAgain) synced = log_->sync();
    return synced;
  }

  FileMistake mistake_;
  Directory directory_;
  std::optional<File> log_;
  std::uint64_t generation_ = 0;
  std::uint64_t last_ = 0;
  std::uint64_t end_ = 0;
};

struct Outcome {
  std::string wrong;  ///< Empty: nothing.
  std::uint64_t hash = 0;
  std::uint64_t acknowledged = 0;
  unsigned lives = 0;
};

/// A host with one process at a time, which writes a log until it is killed, most times by a loss of power.
class LogRun {
 public:
  LogRun(std::uint64_t seed, FileMistake mistake)
      : mistake_(mistake), network_({.seed = seed}), tasks_(network_), disk_(network_.world()) {
    disk_.make_directory(kDirectory);
  }
  [[nodiscard]] Outcome run() {
    constexpr unsigned kLives = 5;
    Random& random = network_.world().random();
    while (outcome_.lives < kLives && outcome_.wrong.empty()) {
      const bool is_last = ++outcome_.lives == kLives;
      disk_.set_faults(is_last || random.one_in(2) ? Disk::Faults{}
                                                   : Disk::Faults{.short_write = random.between(2, 20),
                                                                  .no_space = random.between(5, 50),
                                                                  .failed_write = random.between(20, 200),
                                                                  .failed_sync = random.between(5, 50)});
      live(is_last);
    }
    tasks_.wind_down();
    while (!tasks_.are_all_done() && network_.world().step()) {}
    outcome_.acknowledged = acknowledged_;
    outcome_.hash = network_.world().hash();
    return outcome_;
  }

 private:
  void live(bool is_last) {
    World& world = network_.world();
    Process& process = network_.add_process("host");
    disk_.serve(process);
    const std::uint64_t task = tasks_.start(process, "writer", [this, is_last] { write(is_last); });
    bool is_killed = false;
    if (!is_last) {
      const bool loses_power = !world.random().one_in(4);
      world.after(world.random().between(1, 20'000'000), "kill", [this, loses_power, &process, &is_killed] {
        is_killed = true;
        tasks_.kill(process);
        if (loses_power) disk_.lose_power();
      });
    }
    while (!is_killed && !(is_last && tasks_.is_done(task)) && world.step()) {}
  }
  void write(bool is_last) {
    auto log = Log::open(mistake_);
    if (!log && (is_last || log.error().status() == Status::kProtocol)) outcome_.wrong = log.error().text();
    if (!log) return;
    if (log->last() < acknowledged_ || log->last() > attempted_)
      outcome_.wrong = fmt::format("{} is the last one, of {} acknowledged and {} attempted", log->last(),
                                   acknowledged_, attempted_);
    acknowledged_ = log->last();
    for (int i = 1; i <= 100 && outcome_.wrong.empty(); ++i) {
      attempted_ = std::max(attempted_, log->last() + 1);
      if (!log->append()) return;
      acknowledged_ = log->last();
      if (i % 16 == 0 && !log->checkpoint()) return;
    }
  }

  FileMistake mistake_;
  Network network_;
  Tasks tasks_;
  Disk disk_;
  Outcome outcome_;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t attempted_ = 0;
};

/// One simulation at a time.
[[nodiscard]] Outcome run_log(std::uint64_t seed, FileMistake mistake) { return LogRun(seed, mistake).run(); }

TEST(SimulatedFiles, ALogWithTheRightSyncsLosesNothing) {
  std::uint64_t acknowledged = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Outcome outcome = run_log(seed, FileMistake::kNone);
    ASSERT_EQ(outcome.wrong, "") << "seed " << seed;
    ASSERT_GE(outcome.acknowledged, 100U) << "seed " << seed;  // The last life's.
    acknowledged += outcome.acknowledged;
  }
  EXPECT_GT(acknowledged, 150 * kSeeds);  // Of the lives that ended early, too.
}

TEST(SimulatedFiles, EachMissingSyncIsFound) {
  for (const FileMistake mistake : {FileMistake::kNoDataSync, FileMistake::kNoSyncBeforeRename,
                                    FileMistake::kNoDirectorySync, FileMistake::kSyncAgain}) {
    unsigned found = 0;
    for (std::uint64_t seed = 1; seed <= 1000; ++seed) found += !run_log(seed, mistake).wrong.empty();
    EXPECT_GE(found, 10U) << "mistake " << static_cast<int>(mistake);
    fmt::print("mistake {}: found by {} of 1000 seeds\n", static_cast<int>(mistake), found);
  }
}

TEST(SimulatedFiles, ASeedRepeatsItsRun) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const Outcome one = run_log(seed, FileMistake::kNone), other = run_log(seed, FileMistake::kNone);
    EXPECT_EQ(one.hash, other.hash) << "seed " << seed;
    EXPECT_EQ(one.acknowledged, other.acknowledged) << "seed " << seed;
  }
  EXPECT_NE(run_log(1, FileMistake::kNone).hash, run_log(2, FileMistake::kNone).hash);
}

// --- one call after the other -------------------------------------------------------------------------------------

/// A process with a disk, which runs one piece of a test after the other.
class OneHost : public testing::Test {
 protected:
  OneHost() : network_({.seed = 1}), tasks_(network_), disk_(network_.world()) { disk_.make_directory(kDirectory); }
  void run(const std::function<void()>& body) {
    Process& process = network_.add_process("host");
    disk_.serve(process);
    const std::uint64_t task = tasks_.start(process, "test", body);
    while (!tasks_.is_done(task) && network_.world().step()) {}
    ASSERT_TRUE(tasks_.is_done(task));
  }
  [[nodiscard]] static std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text));
  }
  [[nodiscard]] static std::string text_of(const File& file) {
    std::string text(100, '\0');
    text.resize(file.read(0, std::as_writable_bytes(std::span(text))).value_or(0));
    return text;
  }
  Network network_;
  Tasks tasks_;
  Disk disk_;
};

TEST_F(OneHost, OpensAsItIsAsked) {
  run([] {
    auto directory = Directory::open(kDirectory);
    ASSERT_OK(directory);
    EXPECT_STATUS(Directory::open("/simulated/other"), Status::kNotFound);
    EXPECT_STATUS(directory->open_file("a", File::How::kRead), Status::kNotFound);
    auto made = directory->open_file("a", File::How::kNew);
    ASSERT_OK(made);
    EXPECT_STATUS(directory->open_file("a", File::How::kNew), Status::kBusy);
    EXPECT_OK(made->write(0, bytes_of("one")));
    auto more = File::open("/simulated/store/a", File::How::kAppend);
    ASSERT_OK(more);
    EXPECT_OK(more->write(0, bytes_of(", two")));
    EXPECT_EQ(text_of(*made), "one, two");
    EXPECT_EQ(made->facts().value().bytes, 8U);
    EXPECT_OK(made->truncate(2));
    EXPECT_EQ(text_of(*more), "on");
    auto reader = directory->open_file("a", File::How::kRead);
    ASSERT_OK(reader);
    EXPECT_FALSE(reader->write(0, bytes_of("x")));
    EXPECT_OK(directory->rename("a", "b"));
    EXPECT_EQ(directory->names(10).value(), std::vector<std::string>{"b"});
    EXPECT_OK(directory->remove("b"));
    EXPECT_STATUS(directory->remove("b"), Status::kNotFound);
    EXPECT_EQ(text_of(*reader), "on");  // Whoever has it open keeps it.
  });
}

TEST_F(OneHost, RealFilesAreReadAndNoMore) {
  run([] {
    const auto file = File::open("/proc/self/status", File::How::kRead);
    ASSERT_OK(file);
    EXPECT_TRUE(text_of(*file).starts_with("Name:"));
    EXPECT_TRUE(file->facts().value().is_regular);
    EXPECT_STATUS(File::open("/nowhere/at/all", File::How::kRead), Status::kNotFound);
  });
}

TEST_F(OneHost, AKilledProcessLosesNothingAndALossOfPowerDoes) {
  unsigned kept = 0;
  for (int i = 0; i < 64; ++i) {
    const std::string name = fmt::format("{}", i);
    run([&] {
      auto directory = Directory::open(kDirectory);
      ASSERT_OK(directory);
      auto file = directory->open_file(name.c_str(), File::How::kNew);
      ASSERT_OK(file);
      ASSERT_OK(directory->sync());
      EXPECT_OK(file->write(0, bytes_of("before")));
      EXPECT_OK(file->sync());
      EXPECT_OK(file->write(0, bytes_of("behind")));
    });
    run([&] {
      EXPECT_EQ(text_of(File::open(("/simulated/store/" + name).c_str(), File::How::kRead).value()), "behind");
    });
    disk_.lose_power();
    run([&] {
      const std::string text = text_of(File::open(("/simulated/store/" + name).c_str(), File::How::kRead).value());
      EXPECT_TRUE(text == "before" || text == "behind" || text.starts_with("be")) << text;
      kept += text == "behind";
    });
  }
  EXPECT_GT(kept, 0U);
  EXPECT_LT(kept, 64U);
}

TEST_F(OneHost, FailsInSoManyCalls) {
  disk_.set_faults({.no_space = 1});
  run([] {
    auto file = File::open("/simulated/store/a", File::How::kWrite);
    ASSERT_OK(file);
    const auto full = file->write(0, bytes_of("text"));
    EXPECT_STATUS(full, Status::kLimit);
    EXPECT_NE(std::string_view(full.error().text()).find("/simulated/store/a"), std::string_view::npos);
  });
  disk_.set_faults({.failed_sync = 1});
  run([] {
    auto file = File::open("/simulated/store/a", File::How::kWrite);
    ASSERT_OK(file);
    EXPECT_OK(file->write(0, bytes_of("text")));
    EXPECT_STATUS(file->sync(), Status::kSystem);
    EXPECT_STATUS(Directory::open(kDirectory).value().sync(), Status::kSystem);
  });
  disk_.set_faults({.short_write = 1});
  run([] {
    auto file = File::open("/simulated/store/b", File::How::kWrite);
    ASSERT_OK(file);
    std::size_t shorter = 0;
    for (int i = 0; i < 50; ++i) shorter += file->write_some(0, bytes_of("a longer text")).value_or(13) < 13;
    EXPECT_GT(shorter, 0U);
    EXPECT_OK(file->write(0, bytes_of("a longer text")));
    EXPECT_EQ(text_of(*file), "a longer text");
  });
}

}  // namespace
}  // namespace verbena::sim
