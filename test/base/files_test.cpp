// Files of the real file system: what they hold, and typed errors that name file and cause.
#include "base/files.hpp"

#include <result.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

namespace verbena {
namespace {

using How = File::How;

[[nodiscard]] std::span<const std::byte> text_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

[[nodiscard]] std::string text_of(const File& file, std::uint64_t offset = 0) {
  std::string text(100, '\0');
  const auto got = file.read(offset, std::as_writable_bytes(std::span(text)));
  EXPECT_OK(got);
  text.resize(got.value_or(0));
  return text;
}

template <class T>
void expect_error(const Result<T>& result, Status status, int system_errno, std::string_view names) {
  ASSERT_STATUS(result, status);
  EXPECT_EQ(result.error().system_errno(), system_errno);
  EXPECT_NE(std::string_view(result.error().text()).find(names), std::string_view::npos) << result.error().text();
}

class Files : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / "verbena-files-XXXXXX";
    ASSERT_NE(::mkdtemp(path_.data()), nullptr);
    auto opened = Directory::open(path_.c_str());
    ASSERT_OK(opened);
    directory_.push_back(std::move(*opened));
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  [[nodiscard]] Directory& directory() { return directory_.front(); }
  [[nodiscard]] std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  std::string path_;
  std::vector<Directory> directory_;  // One, once there is any.
};

TEST_F(Files, AreOpenedAsAsked) {
  expect_error(directory().open_file("a", How::kRead), Status::kNotFound, ENOENT, path_of("a"));
  auto made = directory().open_file("a", How::kNew);
  ASSERT_OK(made);
  EXPECT_EQ(made->name().text(), path_of("a"));
  const auto facts = made->facts();
  ASSERT_OK(facts);
  EXPECT_EQ(facts->mode, 0600U);
  EXPECT_EQ(facts->owner, ::geteuid());
  EXPECT_EQ(facts->bytes, 0U);
  EXPECT_TRUE(facts->is_regular);
  expect_error(directory().open_file("a", How::kNew), Status::kBusy, EEXIST, path_of("a"));
  expect_error(File::open(path_of("a").c_str(), How::kNew), Status::kBusy, EEXIST, path_of("a"));
  EXPECT_OK(File::open(path_of("a").c_str(), How::kWrite));
  EXPECT_OK(File::open(path_of("b").c_str(), How::kWrite));
  EXPECT_OK(File::open(path_of("c").c_str(), How::kAppend));
  auto reader = File::open(path_of("a").c_str(), How::kRead);
  ASSERT_OK(reader);
  expect_error(reader->write(0, text_bytes("x")), Status::kSystem, EBADF, path_of("a"));
  EXPECT_FALSE(File::open(path_.c_str(), How::kRead).value().facts().value().is_regular);
}

TEST_F(Files, HoldWhatWasWritten) {
  auto file = directory().open_file("a", How::kNew);
  ASSERT_OK(file);
  EXPECT_OK(file->write(3, text_bytes("three")));
  EXPECT_OK(file->write(0, text_bytes("one")));
  EXPECT_OK(file->sync());
  EXPECT_EQ(text_of(*file), "onethree");
  EXPECT_EQ(text_of(*file, 6), "ee");
  EXPECT_EQ(text_of(*file, 8), "");
  EXPECT_EQ(file->facts().value().bytes, 8U);
  auto more = directory().open_file("a", How::kAppend);
  ASSERT_OK(more);
  EXPECT_OK(more->write(0, text_bytes("four")));
  EXPECT_EQ(text_of(*file), "onethreefour");
  EXPECT_OK(file->truncate(3));
  EXPECT_OK(file->truncate(5));
  EXPECT_EQ(text_of(*more), std::string("one\0\0", 5));
  EXPECT_EQ(file->write_some(0, {}).value(), 0U);
}

TEST_F(Files, OfADirectoryAreListedRenamedAndRemoved) {
  for (const char* const name : {"a", "b", "c"}) {
    auto file = directory().open_file(name, How::kNew);
    ASSERT_OK(file);
    EXPECT_OK(file->write(0, text_bytes(name)));
  }
  EXPECT_OK(directory().rename("a", "c"));
  EXPECT_OK(directory().remove("b"));
  EXPECT_OK(directory().sync());
  EXPECT_EQ(directory().names(10).value(), std::vector<std::string>{"c"});
  EXPECT_EQ(directory().names(10).value(), std::vector<std::string>{"c"}) << "a second time";
  EXPECT_EQ(directory().names(0).value().size(), 0U);
  EXPECT_EQ(text_of(directory().open_file("c", How::kRead).value()), "a");
  expect_error(directory().rename("a", "c"), Status::kNotFound, ENOENT, path_of("a"));
  expect_error(directory().remove("b"), Status::kNotFound, ENOENT, path_of("b"));
  expect_error(Directory::open(path_of("c").c_str()), Status::kNotFound, ENOTDIR, path_of("c"));
  expect_error(Directory::open(path_of("none").c_str()), Status::kNotFound, ENOENT, path_of("none"));
}

TEST_F(Files, OfOthersAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  ASSERT_EQ(::chmod(path_.c_str(), 0755), 0);
  ASSERT_OK(directory().open_file("a", How::kNew));
  ASSERT_EQ(::seteuid(12345), 0);
  expect_error(File::open(path_of("a").c_str(), How::kRead), Status::kPermission, EACCES, path_of("a"));
  expect_error(directory().open_file("b", How::kNew), Status::kPermission, EACCES, path_of("b"));
  expect_error(directory().rename("a", "b"), Status::kPermission, EACCES, path_of("a"));
  expect_error(directory().remove("a"), Status::kPermission, EACCES, path_of("a"));
  ASSERT_EQ(::seteuid(0), 0);
}

TEST_F(Files, NoSpaceIsALimit) {
  auto full = File::open("/dev/full", How::kWrite);
  ASSERT_OK(full);
  expect_error(full->write(0, text_bytes("x")), Status::kLimit, ENOSPC, "/dev/full: write failed");
}

/// A write that the limit of file sizes cuts is short; the one behind it fails.
TEST_F(Files, AShortWriteGoesOnUntilItFails) {
  auto file = directory().open_file("a", How::kNew);
  ASSERT_OK(file);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 10;
  const auto old = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto some = file->write_some(0, text_bytes("more than ten bytes"));
  const auto all = file->write(0, text_bytes("MORE THAN TEN BYTES"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)::signal(SIGXFSZ, old);
  ASSERT_OK(some);
  EXPECT_EQ(*some, 10U);
  expect_error(all, Status::kLimit, EFBIG, path_of("a"));
  EXPECT_EQ(text_of(*file), "MORE THAN ");
}

TEST_F(Files, AFailedSyncIsTold) {
  // The kernel has nothing to write there.
  auto proc = File::open("/proc/self/status", How::kRead);
  ASSERT_OK(proc);
  expect_error(proc->sync(), Status::kSystem, EINVAL, "/proc/self/status: fdatasync failed");
  EXPECT_TRUE(text_of(*proc).starts_with("Name:"));
}

TEST(FileName, OfALongPathItsEndIsTold) {
  EXPECT_EQ(FileName("/a/b").text(), "/a/b");
  EXPECT_EQ(FileName("/a", "b").text(), "/a/b");
  EXPECT_EQ(FileName("").text(), "");
  for (const std::size_t length : {140U, 145U, 150U, 151U, 152U, 153U, 200U, 1000U}) {
    const std::string path(length, 'p'), whole = path + "/name";
    const std::string told(FileName(path, "name").text());
    EXPECT_TRUE(whole == told || (told.starts_with("...p") && told.size() == 152)) << told;
    EXPECT_TRUE(told.ends_with("/name"));
    const std::string name(length, 'n');
    EXPECT_TRUE(std::string(FileName("/p", name).text()).ends_with("nnn"));
    EXPECT_LE(FileName("/p", name).text().size(), 152U);
  }
  const Error error = file_error("write", EIO, FileName(std::string(1000, 'p')).text());
  EXPECT_NE(std::string_view(error.text()).find("dmesg"), std::string_view::npos) << "cut: " << error.text();
}

}  // namespace
}  // namespace verbena
