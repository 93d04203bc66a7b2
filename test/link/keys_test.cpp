// Files of keys: what they may hold, and everything that is wrong with one.
#include "link/keys.hpp"
#include "key_file.hpp"
#include "result.hpp"
#include "support.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace verbena::link {
namespace {

using namespace verbena::test;
using test::contains;
using test::hex_of;

constexpr const char* kHex = "000102030405060708090a0b0c0d0e0f10111213";

TEST(Keys, HexadecimalAndBase64) {
  const auto keys = Keys::parse(
      "# comment\n"
      "\n"
      "  one 000102030405060708090a0b0c0d0e0f10111213\r\n"
      "two.2_x-y\tAAECAwQFBgcICQoLDA0OD/8=  # until the end\n"
      "three AAECAwQFBgcICQoLDA0OD/8\n"
      "Four AAECAwQFBgcICQoLDA0OD+/+",
      "file");
  ASSERT_OK(keys);
  EXPECT_EQ((*keys)->count(), 4U);
  EXPECT_EQ((*keys)->path(), "file");
  const std::pair<const char*, const char*> expected[] = {{"one", kHex},
                                                          {"two.2_x-y", "000102030405060708090a0b0c0d0e0fff"},
                                                          {"three", "000102030405060708090a0b0c0d0e0fff"},
                                                          {"Four", "000102030405060708090a0b0c0d0e0feffe"}};
  for (const auto& [name, secret] : expected) {
    const auto key = (*keys)->find(name);
    ASSERT_NE(key, nullptr) << name;
    EXPECT_EQ(key->name(), name);
    EXPECT_EQ(hex_of(key->secret()), secret);
  }
  EXPECT_EQ((*keys)->find("four"), nullptr);
  EXPECT_EQ((*keys)->find(""), nullptr);
}

TEST(Keys, AClientChooses) {
  const auto keys = Keys::parse(fmt::format("new {0}\nold {0}11\n", kHex), "file");
  ASSERT_OK(keys);
  EXPECT_EQ((*keys)->choose("").value()->name(), "new");
  EXPECT_EQ((*keys)->choose("old").value()->name(), "old");
  const auto none = (*keys)->choose("third");
  EXPECT_STATUS(none, Status::kNotFound);
  EXPECT_TRUE(contains(none.error(), "third") && contains(none.error(), "file")) << none.error().text();
}

/// Each error names file and line and what is expected, and no error shows a secret.
TEST(Keys, AWrongLineIsNamed) {
  const std::string secret = "c0ffee00c0ffee00c0ffee00c0ffee00";
  const std::pair<std::string, const char*> wrong[] = {
      {secret, "two"},
      {secret + " name", "16 to 64"},  // The wrong way round.
      {"short", "two"},
      {"a:b " + secret, "name"},
      {std::string(33, 'n') + " " + secret, "name"},
      {std::string("nu\0l ", 5) + secret, "name"},
      {"name " + secret + " more", "more than two"},
      {"name " + secret.substr(2), "16 to 64"},  // 15 bytes.
      {"name " + secret + secret + secret + secret + "00", "16 to 64"},
      {"name " + secret + "0", "16 to 64"},  // An odd digit: base64, whose last bits are not 0.
      {"name not-a-secret-" + secret, "16 to 64"},
      {"name AAECAwQFBgcICQoLDA0OD/9=", "16 to 64"},  // Bits that no byte has.
      {"name AAECAwQFBgcICQoLDA0OD/8==", "16 to 64"},
      {"name AAECAwQFBgcICQoLDA0OD/8A=", "16 to 64"},
      {"first " + secret, "already"},
  };
  for (const auto& [line, says] : wrong) {
    const auto keys = Keys::parse("first " + std::string(kHex) + "\n\n" + line + "\nlast " + kHex + "\n", "some.file");
    ASSERT_FALSE(keys) << line;
    const Error& error = keys.error();
    EXPECT_EQ(error.status(), Status::kBadArgument) << error.text();
    for (const char* part : {"some.file", "line 3", "NAME SECRET", says})
      EXPECT_TRUE(contains(error, part)) << part << " is not in: " << error.text();
    EXPECT_FALSE(contains(error, "c0ffee") || contains(error, "AAECAw")) << error.text();
  }
}

TEST(Keys, NoneAndTooMany) {
  for (const char* none : {"", "\n", "# one 000102030405060708090a0b0c0d0e0f\n"}) {
    const auto keys = Keys::parse(none, "some.file");
    EXPECT_STATUS(keys, Status::kBadArgument);
    EXPECT_TRUE(!keys && contains(keys.error(), "NAME SECRET"));
  }
  std::string text;
  for (std::size_t i = 0; i < kMostKeys; ++i) text += fmt::format("k{} {}\n", i, kHex);
  EXPECT_OK(Keys::parse(text, "file"));
  EXPECT_STATUS(Keys::parse(text + "last " + kHex, "file"), Status::kBadArgument);
}

class KeysOfAFile : public testing::Test {
 protected:
  void SetUp() override {
    if (!verbena::test::has_keys()) GTEST_SKIP() << "this build has no keys";
    directory_ = std::filesystem::temp_directory_path() / "verbena-keys-XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override {
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  std::string directory_;
};

TEST_F(KeysOfAFile, IsRead) {
  for (const mode_t mode : {0600U, 0400U}) {
    const auto keys = Keys::load(write("keys", fmt::format("one {}\n", kHex), mode));
    ASSERT_OK(keys);
    EXPECT_EQ(hex_of((*keys)->find("one")->secret()), kHex);
    ASSERT_EQ(::unlink((directory_ + "/keys").c_str()), 0);
  }
  const std::string link = directory_ + "/link";
  ASSERT_EQ(::symlink(write("keys", fmt::format("one {}\n", kHex)).c_str(), link.c_str()), 0);
  EXPECT_OK(Keys::load(link));
}

TEST_F(KeysOfAFile, WhoeverElseMayUseItIsAnError) {
  for (const mode_t mode : {0640U, 0604U, 0620U, 0602U, 0610U, 0601U, 0666U}) {
    const auto keys = Keys::load(write("keys", fmt::format("one {}\n", kHex), mode));
    ASSERT_STATUS(keys, Status::kPermission);
    EXPECT_TRUE(contains(keys.error(), fmt::format("{:04o}", mode)) && contains(keys.error(), "chmod 600"))
        << keys.error().text();
  }
}

TEST_F(KeysOfAFile, OfAnotherUserIsAnError) {
  const std::string path = write("keys", fmt::format("one {}\n", kHex));
  if (::chown(path.c_str(), 12345, static_cast<gid_t>(-1)) != 0) GTEST_SKIP() << "needs root, to give a file away";
  const auto keys = Keys::load(path);
  ASSERT_STATUS(keys, Status::kPermission);
  EXPECT_TRUE(contains(keys.error(), "12345")) << keys.error().text();
}

TEST_F(KeysOfAFile, IsARegularFileOfBoundedSize) {
  EXPECT_STATUS(Keys::load(directory_ + "/none"), Status::kNotFound);
  EXPECT_STATUS(Keys::load(directory_), Status::kBadArgument);
  const std::string pipe = directory_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_STATUS(Keys::load(pipe), Status::kBadArgument);  // And nobody waits for its writer.
  EXPECT_STATUS(Keys::load("/dev/zero"), Status::kBadArgument);
  const std::string one = fmt::format("one {}\n", kHex);
  EXPECT_OK(Keys::load(write("full", one + std::string(kMaxKeyFileBytes - one.size(), '\n'))));
  EXPECT_STATUS(Keys::load(write("more", one + std::string(kMaxKeyFileBytes - one.size() + 1, '\n'))),
                Status::kTooLong);
}

}  // namespace
}  // namespace verbena::link
