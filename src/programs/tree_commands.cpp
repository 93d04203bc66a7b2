// load and verify: a directory tree into the store, and the store against a directory tree.
#include "programs/commands.hpp"
#include "programs/files.hpp"
#include "programs/pipeline.hpp"
#include "programs/tree_report.hpp"
#include "programs/tree_walk.hpp"
#include "programs/values.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

/// Files up to this size go through the pipeline, larger ones by a call each: at 64 KiB the round trip is small
/// beside the copy.
constexpr std::size_t kSlotBytes = std::size_t{64} << 10;

/// What load and verify have in common: the tree, the pipeline over the client and the report.
class TreeRun {
 protected:
  using Slot = Pipeline::Slot;

  TreeRun(kv::Client& client, const ConnectArguments& where, const TreeArguments& arguments, Tree tree,
          const char* label)
      : client_(client),
        root_(arguments.directory),
        tree_(std::move(tree)),
        report_(label, tree_),
        pipeline_(client, arguments.depth, kSlotBytes, std::chrono::milliseconds{where.timeout_ms} + kExtraPatience) {}

  const TreeFile& file_of(const Slot& slot) const noexcept { return tree_.files[slot.item]; }

  /// False, and reported, when the store cannot have such a key.
  bool fits_key(const TreeFile& file) {
    if (file.path.size() <= kv::kMaxKeyBytes) return true;
    report_.failed(file.path,
                   fmt::format("left out: a key has at most {} bytes and this path {}; load from further down",
                               kv::kMaxKeyBytes, file.path.size()));
    return false;
  }

  Result<void> read_into_large(const TreeFile& file) {
    const auto opened = OpenFile::open(root_ / file.path, OpenFile::Follow::kNo);
    if (!opened) return std::unexpected(opened.error());
    return read_all(opened->fd(), file.path, client_.max_value_bytes(), large_);
  }

  void fail(const TreeFile& file, const kv::Outcome& outcome) {
    // A timed-out operation ends the connection as well: its effect is not known.
    if (damage_of(outcome.status) >= Damage::kConnection || outcome.status == Status::kTimedOut) pipeline_.set_broken();
    report_.failed(file.path, explain(outcome, client_.connection_error()));
  }

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

  kv::Client& client_;
  std::filesystem::path root_;
  Tree tree_;
  TreeReport report_;
  Pipeline pipeline_;
  std::vector<std::byte> large_;
};

class Loader : TreeRun {
 public:
  Loader(kv::Client& client, const ConnectArguments& where, const TreeArguments& arguments, Tree tree)
      : TreeRun(client, where, arguments, std::move(tree), "load") {}

  Exit run() {
    for (std::size_t i = 0; i < tree_.files.size() && !pipeline_.broken(); ++i) {
      const TreeFile& file = tree_.files[i];
      if (fits_key(file)) file.size < pipeline_.slot_bytes() ? load_small(i) : load_large(i);
      report_.progress();
    }
    pipeline_.drain(settle_);
    return finish("loaded");
  }

 private:
  void load_small(std::size_t index) {
    const TreeFile& file = tree_.files[index];
    const auto opened = OpenFile::open(root_ / file.path, OpenFile::Follow::kNo);
    if (!opened) return report_.failed(file.path, opened.error().text());
    Slot* const slot = pipeline_.await_free(settle_);
    if (slot == nullptr) return;
    const auto length = read_up_to(opened->fd(), file.path, slot->buffer);
    // A slot that is full means that the file grew since the walk, and may be longer.
    const bool whole = length && *length < slot->buffer.size();
    if (whole && start(index, *slot, *length)) return;
    pipeline_.give_back(*slot);
    if (!length) return report_.failed(file.path, length.error().text());
    load_large(index);
  }

  /// False when the pipeline cannot take this value, and nothing was started.
  bool start(std::size_t index, Slot& slot, std::size_t length) {
    slot.item = index;
    slot.length = length;
    const auto put = [&] {
      return client_.start_put(as_key(file_of(slot).path), slot.buffer.first(length), pipeline_.cookie_of(slot));
    };
    return pipeline_.start(put, settle_) == Status::kOk;
  }

  void load_large(std::size_t index) {
    const TreeFile& file = tree_.files[index];
    if (const auto read = read_into_large(file); !read) return report_.failed(file.path, read.error().text());
    pipeline_.drain(settle_);
    if (!pipeline_.broken()) settle(file, client_.put(as_key(file.path), large_), large_.size());
  }

  void settle(const TreeFile& file, const kv::Outcome& outcome, std::size_t length) {
    outcome.status == Status::kOk ? report_.done(length) : fail(file, outcome);
  }

  struct Settle {
    Loader& self;
    void operator()(const Slot& slot, const kv::Outcome& outcome) const {
      self.settle(self.file_of(slot), outcome, slot.length);
    }
  } settle_{*this};
};

class Verifier : TreeRun {
 public:
  Verifier(kv::Client& client, const ConnectArguments& where, const TreeArguments& arguments, Tree tree)
      : TreeRun(client, where, arguments, std::move(tree), "verify") {}

  Exit run() {
    for (std::size_t i = 0; i < tree_.files.size() && !pipeline_.broken(); ++i) {
      const TreeFile& file = tree_.files[i];
      if (fits_key(file)) file.size <= pipeline_.slot_bytes() ? verify_small(i) : verify_large(file);
      report_.progress();
    }
    pipeline_.drain(settle_);
    return finish("verified");
  }

 private:
  void verify_small(std::size_t index) {
    Slot* const slot = pipeline_.await_free(settle_);
    if (slot == nullptr) return;
    slot->item = index;
    const TreeFile& file = file_of(*slot);
    const auto get = [&] { return client_.start_get(as_key(file.path), slot->buffer, pipeline_.cookie_of(*slot)); };
    if (pipeline_.start(get, settle_) == Status::kOk) return;
    pipeline_.give_back(*slot);
    verify_large(file);
  }

  void verify_large(const TreeFile& file) {
    pipeline_.drain(settle_);
    if (pipeline_.broken()) return;
    const kv::Outcome outcome = get_whole(client_, file.path, value_);
    settle(file, outcome, std::span(value_).first(std::min(outcome.length, value_.size())));
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

  struct Settle {
    Verifier& self;
    void operator()(const Slot& slot, const kv::Outcome& outcome) const {
      self.settle(self.file_of(slot), outcome, slot.buffer.first(std::min(outcome.length, slot.buffer.size())));
    }
  } settle_{*this};

  std::vector<std::byte> value_;
};

template <class Run>
Exit run_tree(const ConnectArguments& where, const TreeArguments& arguments) {
  auto tree = walk_tree(arguments.directory);
  if (!tree) {
    complain("{}", tree.error().text());
    return Exit::kError;
  }
  kv::ClientOptions options = client_options(where);
  options.depth = arguments.depth;
  options.buffer_bytes = kSlotBytes * arguments.depth;
  const auto client = connect_or_complain(options, where);
  if (!client) return Exit::kError;
  return Run(*client, where, arguments, std::move(*tree)).run();
}

}  // namespace

Exit run_load(const ConnectArguments& where, const TreeArguments& arguments) {
  return run_tree<Loader>(where, arguments);
}

Exit run_verify(const ConnectArguments& where, const TreeArguments& arguments) {
  return run_tree<Verifier>(where, arguments);
}

}  // namespace verbena::programs
