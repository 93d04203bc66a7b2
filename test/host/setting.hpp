// A setting of the machine that a test changes when it may, and that comes back whatever becomes of the test.
#pragma once

#include "base/fd.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <utility>

namespace verbena::test {

class Setting {
 public:
  explicit Setting(std::string path) : path_(std::move(path)) {}
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  ~Setting() {
    if (!ends_) return;
    ends_.reset();
    char none = 0;
    (void)!::read(ended_.get(), &none, 1);  // Until the keeper has put it back.
  }

  [[nodiscard]] std::string read() const {
    std::ifstream file(path_);
    std::string line;
    std::getline(file, line);
    return line;
  }
  /// False when this process may not. `before` is what it is set to at the end.
  [[nodiscard]] bool set(const std::string& value, const std::string& before) {
    if (!ends_ && !keep(before)) {
      ends_.reset();
      return false;
    }
    return put(path_, value);
  }

 private:
  [[nodiscard]] static bool put(const std::string& path, const std::string& value) {
    const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return file && ::write(file.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size());
  }

  /// Starts the keeper: a process that waits for the end of this one, which may be killed, and then puts `before` back.
  /// It is nobody's child and in a session of its own, so that who kills a test and its children leaves it.
  [[nodiscard]] bool keep(const std::string& before) {
    std::array<int, 2> end{}, ended{};
    if (::pipe2(end.data(), O_CLOEXEC) != 0) return false;
    const Fd waits(end[0]);
    ends_ = Fd(end[1]);
    if (::pipe2(ended.data(), O_CLOEXEC) != 0) return false;
    ended_ = Fd(ended[0]);
    const Fd tells(ended[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      // Nothing but system calls: other threads may have held locks.
      ::setsid();
      if (::fork() != 0) ::_exit(0);
      for (int fd = 0; fd < 1024; ++fd)
        if (fd != waits.get() && fd != tells.get()) ::close(fd);
      char none = 0;
      while (::read(waits.get(), &none, 1) < 0) {}
      ::_exit(put(path_, before) ? 0 : 1);
    }
    int status = 0;
    return child > 0 && ::waitpid(child, &status, 0) == child;
  }

  std::string path_;
  Fd ends_;   ///< The keeper waits for its end.
  Fd ended_;  ///< Ends with the keeper.
};

}  // namespace verbena::test
