// Tests of several processes: the test program started once more, as a peer that can be killed.
#pragma once

#include <gtest/gtest.h>

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

extern char** environ;

namespace verbena::test {

/// First in a peer: it never outlives the test.
inline void die_with_the_test() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

/// This test program once more, with "peer" and more arguments: its `main` does what they say instead of running tests.
/// Its output comes through a pipe.
class Peer {
 public:
  explicit Peer(std::vector<std::string> arguments) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    std::vector<char*> argv;
    arguments.insert(arguments.begin(), {"test", "peer"});
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    output_ = fdopen(ends[0], "r");
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    kill();
    fclose(output_);
  }
  /// The next number that the peer prints; -1 when it ended.
  int read_number() {
    int number = -1;
    return fscanf(output_, "%d", &number) == 1 ? number : -1;
  }
  /// Stops the peer until `resume`.
  void pause() {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  }
  void resume() { ::kill(pid_, SIGCONT); }
  /// One that the peer handles.
  void send(int signal) { EXPECT_EQ(::kill(pid_, signal), 0); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)wait();
  }
  int wait() {
    int status = -1;
    const pid_t pid = std::exchange(pid_, -1);
    pid_t ended = -1;
    do ended = waitpid(pid, &status, 0);
    while (ended < 0 && errno == EINTR);
    EXPECT_EQ(ended, pid) << strerror(errno);
    return status;
  }

 private:
  pid_t pid_ = -1;
  FILE* output_ = nullptr;
};

}  // namespace verbena::test
