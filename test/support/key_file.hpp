// A file of keys, as long as the object.
#pragma once

#include "base/mac.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace verbena::test {

/// Whether this build has keys: it needs libsodium.
[[nodiscard]] inline bool has_keys() {
  const auto can = check_mac();
  return can || can.error().status() != Status::kUnsupported;
}

inline constexpr const char* kTwoKeys =
    "new 000102030405060708090a0b0c0d0e0f\n"
    "old AAECAwQFBgcICQoLDA0OD/8=\n";

class KeyFile {
 public:
  explicit KeyFile(std::string_view text = kTwoKeys) : path_(testing::TempDir() + "verbena-keys-XXXXXX") {
    const int fd = ::mkstemp(path_.data());  // Mode 0600.
    EXPECT_GE(fd, 0);
    EXPECT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(::close(fd), 0);
  }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;
  ~KeyFile() { EXPECT_EQ(::unlink(path_.c_str()), 0); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace verbena::test
