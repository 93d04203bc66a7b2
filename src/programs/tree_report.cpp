#include "programs/tree_report.hpp"

#include "programs/environment.hpp"

#include <verbena/deadline.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace verbena::programs {
namespace {

/// More lines than this help nobody; the sentence at the end has the number.
constexpr std::uint64_t kMostTold = 50;

}  // namespace

TreeReport::TreeReport(std::string label, const Tree& tree)
    : label_(std::move(label)), tree_(tree), bar_(label_, Progress::Show::kWhenTerminal), begin_ticks_(ticks_now()) {
  tell_left_out("symbolic links, which are not followed", tree.links);
  tell_left_out("files that are not regular", tree.specials);
  for (const std::string& failure : tree.failures) {
    ++failed_;
    tell(failure, "cannot be read");
  }
}

/// One line for all of a kind: trees have hundreds of links, and none of them is an error.
void TreeReport::tell_left_out(std::string_view kind, const std::vector<std::string>& paths) const {
  if (paths.empty()) return;
  constexpr std::size_t kNamed = 4;
  std::string names;
  for (std::size_t i = 0; i < std::min(paths.size(), kNamed); ++i) names += (i == 0 ? "" : ", ") + paths[i];
  if (paths.size() > kNamed) names += ", ...";
  complain("{}: left out {} {}: {}", label_, paths.size(), kind, names);
}

void TreeReport::done(std::size_t bytes) noexcept {
  ++files_;
  bytes_ += bytes;
}

void TreeReport::differs(std::string_view path, std::string_view how) {
  ++differing_;
  tell(path, how);
}

void TreeReport::failed(std::string_view path, std::string_view why) {
  ++failed_;
  tell(path, why);
}

void TreeReport::tell(std::string_view path, std::string_view what) {
  ++told_;
  if (told_ > kMostTold) return;
  bar_.clear();
  complain("{}: {}: {}{}", label_, path, what, told_ == kMostTold ? " (further lines of this kind are left out)" : "");
}

void TreeReport::progress() {
  if (!bar_.due()) return;
  const std::uint64_t settled = files_ + differing_ + failed_;
  const auto total = static_cast<double>(std::max<std::size_t>(tree_.files.size(), 1));
  bar_.draw(static_cast<double>(settled) / total,
            fmt::format("{} files, {}", settled, human_bytes(static_cast<double>(bytes_))));
}

Exit TreeReport::finish(std::string_view verb) {
  bar_.clear();
  const std::uint64_t failures_of_walk = tree_.failures.size();
  const std::uint64_t settled = files_ + differing_ + failed_ - failures_of_walk;
  if (settled < tree_.files.size()) failed_ += tree_.files.size() - settled;
  const double seconds = std::max(static_cast<double>(ticks_now() - begin_ticks_) / ticks_per_us() / 1e6, 1e-9);
  std::string text =
      fmt::format("{} {} files, {}, in {} ({}/s, {:.0f} files/s)", verb, files_,
                  human_bytes(static_cast<double>(bytes_)), human_time(seconds * 1e9),
                  human_bytes(static_cast<double>(bytes_) / seconds), static_cast<double>(files_) / seconds);
  if (!tree_.links.empty()) text += fmt::format("; {} symbolic links left out", tree_.links.size());
  if (!tree_.specials.empty()) text += fmt::format("; {} special files left out", tree_.specials.size());
  if (differing_ != 0) text += fmt::format("; {} missing or different", differing_);
  if (failed_ != 0) text += fmt::format("; {} failed", failed_);
  fmt::print("{}\n", text);
  Exit exit = differing_ != 0 ? Exit::kNo : Exit::kDone;
  if (failed_ != 0 || std::fflush(stdout) != 0) exit = Exit::kError;
  return exit;
}

}  // namespace verbena::programs
