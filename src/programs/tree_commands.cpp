// load and verify: store a directory tree, and compare the store with a directory tree.
#include "base/error.hpp"
#include "base/text.hpp"
#include "programs/commands.hpp"
#include "programs/environment.hpp"
#include "programs/files.hpp"
#include "programs/pipeline.hpp"
#include "programs/progress.hpp"
#include "programs/tree_walk.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

/// Files up to this size go through the pipeline, larger ones take one call each: at 64 KiB the round trip is small
/// compared with the copy.
constexpr std::size_t kSlotBytes = std::size_t{64} << 10;

/// Lines per kind of message; more help nobody. The final sentence has the number.
constexpr std::uint64_t kMostTold = 50;

/// Counts files by their outcome. \thread owner
class TreeReport {
 public:
  /// Also reports what the walk skipped. `label` is "load" or "verify".
  TreeReport(std::string label, const Tree& tree)
      : label_(std::move(label)), tree_(tree), bar_(label_), begin_ticks_(ticks_now()) {
    tell_left_out("symbolic links, which are not followed", tree.links);
    tell_left_out("files that are not regular", tree.specials);
    for (const std::string& failure : tree.failures) {
      ++failed_;
      tell(failure, "cannot be read");
    }
  }

  void done(std::size_t bytes) noexcept {
    ++files_;
    bytes_ += bytes;
  }

  /// Missing or different (verify).
  void differs(std::string_view path, std::string_view how) {
    ++differing_;
    tell(path, how);
  }

  void failed(std::string_view path, std::string_view why) {
    ++failed_;
    tell(path, why);
  }

  void progress() {
    if (!bar_.due()) return;
    const std::uint64_t settled = files_ + differing_ + failed_;
    const auto total = static_cast<double>(std::max<std::size_t>(tree_.files.size(), 1));
    bar_.draw(static_cast<double>(settled) / total, fmt::format("{} files, {}", settled, human_bytes(bytes_)));
  }

  /// Prints the final sentence, such as "loaded 12 files, ...", with `verb` as its first word. Files that were never
  /// reached count as failed.
  [[nodiscard]] Exit finish(std::string_view verb) {
    bar_.clear();
    const std::uint64_t failures_of_walk = tree_.failures.size();
    const std::uint64_t settled = files_ + differing_ + failed_ - failures_of_walk;
    if (settled < tree_.files.size()) failed_ += tree_.files.size() - settled;
    const double seconds = std::max(static_cast<double>(ticks_now() - begin_ticks_) / ticks_per_us() / 1e6, 1e-9);
    std::string text = fmt::format("{} {} files, {}, in {} ({}/s, {:.0f} files/s)", verb, files_, human_bytes(bytes_),
                                   human_time(seconds * 1e9), human_bytes(static_cast<double>(bytes_) / seconds),
                                   static_cast<double>(files_) / seconds);
    if (!tree_.links.empty()) text += fmt::format("; {} symbolic links left out", tree_.links.size());
    if (!tree_.specials.empty()) text += fmt::format("; {} special files left out", tree_.specials.size());
    if (differing_ != 0) text += fmt::format("; {} missing or different", differing_);
    if (failed_ != 0) text += fmt::format("; {} failed", failed_);
    fmt::print("{}\n", text);
    Exit exit = differing_ != 0 ? Exit::kNo : Exit::kDone;
    if (failed_ != 0 || std::fflush(stdout) != 0) exit = Exit::kError;
    return exit;
  }

 private:
  void tell_left_out(std::string_view kind, const std::vector<std::string>& paths) const {
    if (paths.empty()) return;
    constexpr std::size_t kNamed = 4;
    complain("{}: left out {} {}: {}{}", label_, paths.size(), kind,
             fmt::join(std::span(paths).first(std::min(paths.size(), kNamed)), ", "),
             paths.size() > kNamed ? ", ..." : "");
  }

  void tell(std::string_view path, std::string_view what) {
    ++told_;
    if (told_ > kMostTold) return;
    bar_.clear();
    complain("{}: {}: {}{}", label_, path, what,
             told_ == kMostTold ? " (further lines of this kind are left out)" : "");
  }

  std::string label_;
  const Tree& tree_;
  Progress bar_;
  std::uint64_t begin_ticks_;
  std::uint64_t files_ = 0, bytes_ = 0, differing_ = 0, failed_ = 0, told_ = 0;
};

/// The common part of load and verify: the tree, the pipeline over the client and the report. `Self` is one of the two.
/// Its `small` says which files are small, `run_small` starts one in the pipeline, `run_large` handles one in a call,
/// and `settle` takes a slot's outcome.
template <class Self>
class TreeRun {
 public:
  TreeRun(kv::Client& client, const ConnectArguments& where, const TreeArguments& arguments, Tree tree,
          const char* label)
      : client_(client),
        root_(arguments.directory),
        tree_(std::move(tree)),
        report_(label, tree_),
        pipeline_(client, arguments.depth, kSlotBytes, where.options.timeout + kExtraPatience) {}

  /// `verb` is the first word of the final sentence.
  Exit run(const char* verb) {
    for (std::size_t i = 0; i < tree_.files.size() && !pipeline_.broken(); ++i) {
      const TreeFile& file = tree_.files[i];
      if (fits_key(file)) self().is_small(file) ? self().run_small(i) : self().run_large(file);
      report_.progress();
    }
    pipeline_.drain(settle_);
    return finish(verb);
  }

 protected:
  using Slot = Pipeline::Slot;

  const TreeFile& file_of(const Slot& slot) const noexcept { return tree_.files[slot.item]; }

  /// False: the store cannot have such a key, which is reported.
  bool fits_key(const TreeFile& file) {
    if (file.path.size() <= kv::kMaxKeyBytes) return true;
    report_.failed(file.path,
                   fmt::format("left out: a key has at most {} bytes and this path {}; load from further down",
                               kv::kMaxKeyBytes, file.path.size()));
    return false;
  }

  Result<void> read_into_large(const TreeFile& file) {
    VERBENA_ASSIGN(const Fd opened, open_file(root_ / file.path, Follow::kNo));
    return read_all(opened.get(), file.path, client_.max_value_bytes(), large_);
  }

  void fail(const TreeFile& file, const kv::Outcome& outcome) {
    // A timed-out operation ends the connection too, because its effect is unknown.
    if (damage_of(outcome.status) >= Damage::kConnection || outcome.status == Status::kTimedOut) pipeline_.set_broken();
    report_.failed(file.path, explain(outcome, client_.connection_error()));
  }

  kv::Client& client_;
  std::filesystem::path root_;
  Tree tree_;
  TreeReport report_;
  Pipeline pipeline_;
  std::vector<std::byte> large_;
  struct Settle {
    TreeRun& run;
    void operator()(const Slot& slot, const kv::Outcome& outcome) const { run.self().settle(slot, outcome); }
  } settle_{*this};

 private:
  Self& self() noexcept { return static_cast<Self&>(*this); }

  Exit finish(const char* verb) {
    if (pipeline_.broken()) {
      const Error error = client_.connection_error();
      complain("the connection broke: {}", error.status() == Status::kOk
                                               ? "the server completes nothing any more; see that it runs"
                                               : error.text());
    }
    const Exit exit = report_.finish(verb);
    return pipeline_.broken() ? worse(exit, Exit::kError) : exit;
  }
};

class Loader : public TreeRun<Loader> {
 public:
  using TreeRun::TreeRun;

 private:
  friend TreeRun;

  [[nodiscard]] bool is_small(const TreeFile& file) const noexcept { return file.size < pipeline_.slot_bytes(); }

  void run_small(std::size_t index) {
    const TreeFile& file = tree_.files[index];
    const auto opened = open_file(root_ / file.path, Follow::kNo);
    if (!opened) return report_.failed(file.path, opened.error().text());
    Slot* const slot = pipeline_.await_free(settle_);
    if (slot == nullptr) return;
    const auto length = read_up_to(opened->get(), file.path, slot->buffer);
    // A full slot means that the file grew since the walk and may be longer.
    const bool whole = length && *length < slot->buffer.size();
    if (whole && start(index, *slot, *length)) return;
    pipeline_.give_back(*slot);
    if (!length) return report_.failed(file.path, length.error().text());
    run_large(file);
  }

  /// False: the pipeline cannot take this value; nothing was started.
  bool start(std::size_t index, Slot& slot, std::size_t length) {
    slot.item = index;
    slot.length = length;
    const auto put = [&] {
      return client_.start_put(bytes_of_text(file_of(slot).path), slot.buffer.first(length), pipeline_.cookie_of(slot));
    };
    return pipeline_.start(put, settle_) == Status::kOk;
  }

  void run_large(const TreeFile& file) {
    if (const auto read = read_into_large(file); !read) return report_.failed(file.path, read.error().text());
    pipeline_.drain(settle_);
    if (!pipeline_.broken()) settle(file, client_.put(bytes_of_text(file.path), large_), large_.size());
  }

  void settle(const Slot& slot, const kv::Outcome& outcome) { settle(file_of(slot), outcome, slot.length); }
  void settle(const TreeFile& file, const kv::Outcome& outcome, std::size_t length) {
    outcome.status == Status::kOk ? report_.done(length) : fail(file, outcome);
  }
};

class Verifier : public TreeRun<Verifier> {
 public:
  using TreeRun::TreeRun;

 private:
  friend TreeRun;

  [[nodiscard]] bool is_small(const TreeFile& file) const noexcept { return file.size <= pipeline_.slot_bytes(); }

  void run_small(std::size_t index) {
    Slot* const slot = pipeline_.await_free(settle_);
    if (slot == nullptr) return;
    slot->item = index;
    const TreeFile& file = file_of(*slot);
    const auto get = [&] {
      return client_.start_get(bytes_of_text(file.path), slot->buffer, pipeline_.cookie_of(*slot));
    };
    if (pipeline_.start(get, settle_) == Status::kOk) return;
    pipeline_.give_back(*slot);
    run_large(file);
  }

  void run_large(const TreeFile& file) {
    pipeline_.drain(settle_);
    if (pipeline_.broken()) return;
    const kv::Outcome outcome = get_whole(client_, file.path, value_);
    settle(file, outcome, std::span(value_).first(std::min(outcome.length, value_.size())));
  }

  void settle(const Slot& slot, const kv::Outcome& outcome) {
    settle(file_of(slot), outcome, slot.buffer.first(std::min(outcome.length, slot.buffer.size())));
  }
  void settle(const TreeFile& file, const kv::Outcome& outcome, std::span<const std::byte> value) {
    if (outcome.status == Status::kNotFound) return report_.differs(file.path, "missing: the store has no such key");
    if (outcome.status != Status::kOk && outcome.status != Status::kBufferTooSmall) return fail(file, outcome);
    if (const auto read = read_into_large(file); !read) return report_.failed(file.path, read.error().text());
    if (outcome.length != large_.size() || outcome.status != Status::kOk) {
      return report_.differs(
          file.path, fmt::format("different: the store has {} bytes and the file {}", outcome.length, large_.size()));
    }
    const auto [at, _] = std::ranges::mismatch(value, large_);
    if (at == value.end()) return report_.done(value.size());
    report_.differs(file.path, fmt::format("different: byte {} is not the file's", at - value.begin()));
  }

  std::vector<std::byte> value_;
};

template <class Run>
Exit run_tree(const ConnectArguments& where, const TreeArguments& arguments, const char* label, const char* verb) {
  auto tree = walk_tree(arguments.directory);
  if (!tree) return error_exit("{}", tree.error().text());
  ConnectArguments to = where;
  to.options.depth = arguments.depth;
  to.options.buffer_bytes = kSlotBytes * arguments.depth;
  const auto client = connect_or_complain(to);
  if (!client) return Exit::kError;
  return Run(*client, where, arguments, std::move(*tree), label).run(verb);
}

}  // namespace

Exit run_load(const ConnectArguments& where, const TreeArguments& arguments) {
  return run_tree<Loader>(where, arguments, "load", "loaded");
}

Exit run_verify(const ConnectArguments& where, const TreeArguments& arguments) {
  return run_tree<Verifier>(where, arguments, "verify", "verified");
}

}  // namespace verbena::programs
