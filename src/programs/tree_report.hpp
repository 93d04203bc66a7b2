// What load and verify tell: problems on stderr as they come, a bar, and a sentence at the end.
#pragma once

#include "programs/exit_code.hpp"
#include "programs/progress.hpp"
#include "programs/tree_walk.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// Counts files by what became of them. \thread owner
class TreeReport {
 public:
  /// Also reports what the walk left out. `label` is "load" or "verify".
  TreeReport(std::string label, const Tree& tree);

  void done(std::size_t bytes) noexcept;
  /// Missing or different (verify).
  void differs(std::string_view path, std::string_view how);
  void failed(std::string_view path, std::string_view why);
  void progress();

  /// Prints the sentence, such as "loaded 12 files, ...". `verb` is its first word. Files that were not come to count
  /// as failed.
  [[nodiscard]] Exit finish(std::string_view verb);

 private:
  void tell_left_out(std::string_view kind, const std::vector<std::string>& paths) const;
  void tell(std::string_view path, std::string_view what);

  std::string label_;
  const Tree& tree_;
  Progress bar_;
  std::uint64_t begin_ticks_;
  std::uint64_t files_ = 0, bytes_ = 0, differing_ = 0, failed_ = 0, told_ = 0;
};

}  // namespace verbena::programs
