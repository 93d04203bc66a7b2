#include "programs/tree_walk.hpp"
#include "programs/files.hpp"

#include "result.hpp"
#include "scratch.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {
namespace {

using test::Scratch;

std::vector<std::string> paths(const Tree& tree) {
  std::vector<std::string> names;
  for (const TreeFile& file : tree.files) names.push_back(file.path);
  return names;
}

TEST(TreeWalk, FindsRegularFilesSorted) {
  const Scratch scratch;
  scratch.write("b", "22");
  scratch.write("a/z/deep", "333");
  scratch.write("a/empty", "");
  scratch.write(".hidden", "1");
  const auto tree = walk_tree(scratch.path());
  ASSERT_OK(tree);
  EXPECT_EQ(paths(*tree), (std::vector<std::string>{".hidden", "a/empty", "a/z/deep", "b"}));
  EXPECT_EQ(tree->bytes, 6U);
  EXPECT_EQ(tree->files[1].size, 0U);
  EXPECT_EQ(tree->files[2].size, 3U);
}

TEST(TreeWalk, LeavesOutLinksAndSpecialFiles) {
  const Scratch scratch;
  scratch.write("file", "x");
  std::filesystem::create_symlink("file", scratch.path() / "link");
  std::filesystem::create_directory_symlink("..", scratch.path() / "loop");
  ASSERT_EQ(::mkfifo((scratch.path() / "pipe").c_str(), 0600), 0);
  const auto tree = walk_tree(scratch.path());
  ASSERT_OK(tree);
  EXPECT_EQ(paths(*tree), std::vector<std::string>{"file"});
  EXPECT_EQ(tree->links, (std::vector<std::string>{"link", "loop"}));
  EXPECT_EQ(tree->specials, std::vector<std::string>{"pipe"});
  EXPECT_TRUE(tree->failures.empty());
}

TEST(TreeWalk, TheRootMayBeALink) {
  const Scratch scratch;
  scratch.write("real/file", "x");
  std::filesystem::create_directory_symlink("real", scratch.path() / "link");
  const auto tree = walk_tree(scratch.path() / "link");
  ASSERT_OK(tree);
  EXPECT_EQ(paths(*tree), std::vector<std::string>{"file"});
}

TEST(TreeWalk, RootThatCannotBeRead) {
  const Scratch scratch;
  scratch.write("file", "x");
  EXPECT_FALSE(walk_tree(scratch.path() / "missing"));
  EXPECT_FALSE(walk_tree(scratch.path() / "file"));
  const auto tree = walk_tree(scratch.path() / "missing");
  EXPECT_NE(std::string(tree.error().text()).find("missing"), std::string::npos);
}

TEST(TreeWalk, UnreadableDirectoryIsAFailureOfItsOwn) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads every directory";
  const Scratch scratch;
  scratch.write("shut/file", "x");
  scratch.write("open/file", "x");
  ASSERT_EQ(::chmod((scratch.path() / "shut").c_str(), 0), 0);
  const auto tree = walk_tree(scratch.path());
  ::chmod((scratch.path() / "shut").c_str(), 0700);
  ASSERT_OK(tree);
  EXPECT_EQ(paths(*tree), std::vector<std::string>{"open/file"});
  ASSERT_EQ(tree->failures.size(), 1U);
  EXPECT_TRUE(tree->failures.front().starts_with("shut: "));
}

TEST(Files, ReadAllUpToALimit) {
  const Scratch scratch;
  const std::string text(200'000, 'x');
  scratch.write("file", text);
  std::vector<std::byte> bytes;
  const auto read = [&](std::size_t most) {
    const auto file = open_file(scratch.path() / "file", Follow::kNo);
    return file ? read_all(file->get(), "file", most, bytes) : std::unexpected(file.error());
  };
  ASSERT_OK(read(text.size()));
  EXPECT_EQ(bytes.size(), text.size());
  ASSERT_OK(read(std::size_t{1} << 30));
  EXPECT_EQ(bytes.size(), text.size());
  EXPECT_STATUS(read(text.size() - 1), Status::kTooLong);
  EXPECT_STATUS(read(0), Status::kTooLong);
}

TEST(Files, LinksAreFollowedOnlyWhenAsked) {
  const Scratch scratch;
  scratch.write("file", "x");
  std::filesystem::create_symlink("file", scratch.path() / "link");
  EXPECT_OK(open_file(scratch.path() / "link", Follow::kYes));
  EXPECT_FALSE(open_file(scratch.path() / "link", Follow::kNo));
}

TEST(Files, ReplaceLeavesNoTemporary) {
  const Scratch scratch;
  ASSERT_OK(replace_file(scratch.path() / "port", "1\n"));
  ASSERT_OK(replace_file(scratch.path() / "port", "7470\n"));
  EXPECT_EQ(scratch.read("port"), "7470\n");
  EXPECT_FALSE(replace_file(scratch.path() / "no" / "port", "1\n"));
  const auto tree = walk_tree(scratch.path());
  ASSERT_OK(tree);
  EXPECT_EQ(paths(*tree), std::vector<std::string>{"port"});
}

TEST(Files, ReplaceRefusesWhatIsNoFile) {
  const Scratch scratch;
  scratch.write("file", "x");
  std::filesystem::create_symlink("file", scratch.path() / "link");
  std::filesystem::create_symlink("nothing", scratch.path() / "dangling");
  std::filesystem::create_directory(scratch.path() / "directory");
  ASSERT_EQ(::mkfifo((scratch.path() / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "dangling", "directory", "pipe"}) {
    const auto replaced = replace_file(scratch.path() / name, "1\n");
    ASSERT_FALSE(replaced) << name;
    EXPECT_EQ(replaced.error().status(), Status::kBadArgument) << name;
    EXPECT_NE(std::string_view(replaced.error().text()).find(name), std::string_view::npos) << replaced.error().text();
  }
  EXPECT_FALSE(replace_file("/dev/null", "1\n"));
  EXPECT_EQ(scratch.read("file"), "x");
  EXPECT_EQ(std::ranges::distance(std::filesystem::directory_iterator(scratch.path())), 5);
}

}  // namespace
}  // namespace verbena::programs
