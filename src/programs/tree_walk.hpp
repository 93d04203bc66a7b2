// The files of a directory tree, in a fixed order.
#pragma once

#include <verbena/error.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace verbena::programs {

struct TreeFile {
  std::string path;        ///< Relative to the root, with '/' between components.
  std::uint64_t size = 0;  ///< At the time of the walk.
};

struct Tree {
  std::vector<TreeFile> files;        ///< Regular files, sorted by path.
  std::vector<std::string> links;     ///< Symbolic links: not followed.
  std::vector<std::string> specials;  ///< Sockets, pipes and devices: skipped.
  std::vector<std::string> failures;  ///< Paths that could not be read, each with its reason.
  std::uint64_t bytes = 0;            ///< Sum of the files' sizes.
};

/// Walks the tree below `root` (which may itself be a link to a directory). Fails only if the root cannot be read;
/// other unreadable paths are in `failures`.
[[nodiscard]] Result<Tree> walk_tree(const std::filesystem::path& root);

}  // namespace verbena::programs
