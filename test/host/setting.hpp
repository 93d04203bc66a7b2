// A setting of the machine that a test changes when it may, and puts back.
#pragma once

#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

namespace verbena::test {

class Setting {
 public:
  explicit Setting(std::string path) : path_(std::move(path)) {}
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  ~Setting() {
    if (before_) (void)put(*before_);
  }

  [[nodiscard]] std::string read() const {
    std::ifstream file(path_);
    std::string line;
    std::getline(file, line);
    return line;
  }
  /// False when this process may not. `before` is what the destructor writes.
  [[nodiscard]] bool set(const std::string& value, const std::string& before) {
    if (!put(value)) return false;
    if (!before_) before_ = before;
    return true;
  }

 private:
  [[nodiscard]] bool put(const std::string& value) const {
    std::FILE* file = std::fopen(path_.c_str(), "we");
    if (file == nullptr) return false;
    const bool written = std::fputs(value.c_str(), file) >= 0;
    return std::fclose(file) == 0 && written;
  }
  std::string path_;
  std::optional<std::string> before_;
};

}  // namespace verbena::test
