// Running a piece of a test in a forked child, whose limits, filters and affinity may be changed for good.
#pragma once

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace verbena::test {

/// Runs `body` in a child. It returns what is wrong, or an empty string; the death of the child is a failure too.
template <class Body>
[[nodiscard]] testing::AssertionResult in_child(Body&& body) {
  int ends[2];
  if (pipe(ends) != 0) return testing::AssertionFailure() << "pipe failed";
  const pid_t child = fork();
  if (child < 0) return testing::AssertionFailure() << "fork failed";
  if (child == 0) {
    close(ends[0]);
    const std::string wrong = body();
    const bool told = write(ends[1], wrong.data(), wrong.size()) == static_cast<ssize_t>(wrong.size());
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  std::string wrong;
  char buffer[512];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    wrong.append(buffer, static_cast<std::size_t>(got));
  close(ends[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child) return testing::AssertionFailure() << "waitpid failed";
  if (WIFSIGNALED(status)) return testing::AssertionFailure() << "the child died of signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) != 0)
    return testing::AssertionFailure() << "the child exited with " << WEXITSTATUS(status) << ": " << wrong;
  if (!wrong.empty()) return testing::AssertionFailure() << wrong;
  return testing::AssertionSuccess();
}

}  // namespace verbena::test
