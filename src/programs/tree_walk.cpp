#include "programs/tree_walk.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <system_error>

namespace verbena::programs {
namespace {

namespace fs = std::filesystem;

std::string joined(const std::string& directory, const std::string& name) {
  return directory.empty() ? name : directory + '/' + name;
}

void sort_in(Tree& tree, std::vector<std::string>& pending, const fs::directory_entry& entry, std::string path) {
  std::error_code code;
  const fs::file_status status = entry.symlink_status(code);
  if (code) {
    tree.failures.push_back(path + ": " + code.message());
    return;
  }
  switch (status.type()) {
    case fs::file_type::directory: pending.push_back(std::move(path)); return;
    case fs::file_type::symlink: tree.links.push_back(std::move(path)); return;
    case fs::file_type::regular: break;
    default: tree.specials.push_back(std::move(path)); return;
  }
  const std::uintmax_t size = entry.file_size(code);
  if (code) {
    tree.failures.push_back(path + ": " + code.message());
    return;
  }
  tree.bytes += size;
  tree.files.push_back({std::move(path), size});
}

/// Lists one directory; adds its subdirectories to `pending`.
std::error_code list(const fs::path& root, const std::string& directory, Tree& tree,
                     std::vector<std::string>& pending) {
  std::error_code code;
  fs::directory_iterator entry(directory.empty() ? root : root / directory, code);
  for (; !code && entry != fs::directory_iterator(); entry.increment(code)) {
    sort_in(tree, pending, *entry, joined(directory, entry->path().filename().string()));
  }
  return code;
}

}  // namespace

Result<Tree> walk_tree(const fs::path& root) {
  Tree tree;
  std::vector<std::string> pending;
  if (const std::error_code code = list(root, "", tree, pending)) {
    return fail(status_of_errno(code.value()), "opendir", code.value(), "cannot read directory {}: {}", root.string(),
                code.message());
  }
  while (!pending.empty()) {
    const std::string directory = std::move(pending.back());
    pending.pop_back();
    if (const std::error_code code = list(root, directory, tree, pending)) {
      tree.failures.push_back(directory + ": " + code.message());
    }
  }
  std::ranges::sort(tree.files, {}, &TreeFile::path);
  std::ranges::sort(tree.links);
  std::ranges::sort(tree.specials);
  std::ranges::sort(tree.failures);
  return tree;
}

}  // namespace verbena::programs
