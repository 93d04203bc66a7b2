#include "kv_process.hpp"
#include "paths.hpp"
#include "words.hpp"

#include <verbena/deadline.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pty.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace verbena::test {
namespace {

/// Far more than anything here takes, under sanitizers on a busy machine too.
constexpr std::chrono::seconds kPatience{60};

/// Names of the library's own, and of the parser's, that no command line has.
constexpr std::array<std::string_view, 15> kForeign{
    "memory_bytes", "max_value_bytes", "max_items",    "max_cells", "lease_bytes", "require_hugepages",
    "large_put",    "known_locations", "window_bytes", "kAdopt",    "::",          "UINT",
    "TEXT",         "convert",         "override"};

std::vector<char*> as_argv(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return argv;
}

/// In the child: becomes the program.
[[noreturn]] void become(char* const* argv, std::optional<uid_t> user = {}) {
  if (user &&
      (::setgroups(0, nullptr) != 0 || ::setresgid(*user, *user, *user) != 0 || ::setresuid(*user, *user, *user) != 0))
    ::_exit(125);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::execv(argv[0], argv);
  ::_exit(126);
}

void close_fd(int& fd) noexcept {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

/// Appends what is there; closes at the end.
void take(int& fd, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t got = ::read(fd, buffer.data(), buffer.size());
  if (got > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  } else {
    close_fd(fd);
  }
}

}  // namespace

KvProcess::KvProcess(const Arguments& arguments, std::optional<uid_t> user) {
  // A child that ends early must not end the test by SIGPIPE.
  std::signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> words{tested_program()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::vector<char*> argv = as_argv(words);
  std::array<int, 2> in{}, out{}, err{};
  if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0 ||
      ::pipe2(err.data(), O_CLOEXEC) != 0) {
    ADD_FAILURE() << "pipe2 failed";
    return;
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    become(argv.data(), user);
  }
  ::close(in[0]);
  ::close(out[1]);
  ::close(err[1]);
  in_ = in[1];
  out_ = out[0];
  err_ = err[0];
  ::fcntl(in_, F_SETFL, O_NONBLOCK);
}

KvProcess::~KvProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  close_fd(in_);
  close_fd(out_);
  close_fd(err_);
}

void KvProcess::send(int signal) const noexcept {
  if (pid_ > 0) ::kill(pid_, signal);
}

/// Moves bytes until both outputs end, or stdout has `until`, unless that is empty. False when the time was up.
bool KvProcess::exchange(const std::string& input, std::size_t& sent, bool& late, const std::string& until) {
  const bool to_the_end = until.empty();
  const Deadline deadline = Deadline::after(kPatience);
  while (out_ >= 0 || err_ >= 0) {
    if (!to_the_end && out_text_.find(until) != std::string::npos) return true;
    if (to_the_end && sent == input.size()) close_fd(in_);
    const bool writes = to_the_end && in_ >= 0;
    std::array<pollfd, 3> fds{pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}, pollfd{writes ? in_ : -1, POLLOUT, 0}};
    if (::poll(fds.data(), fds.size(), deadline.left_ms()) == 0 && deadline.passed()) {
      late = true;
      return false;
    }
    if (fds[0].revents != 0) take(out_, out_text_);
    if (fds[1].revents != 0) take(err_, err_text_);
    if (fds[2].revents != 0) {
      const ssize_t put = ::write(in_, input.data() + sent, input.size() - sent);
      if (put < 0 && errno != EAGAIN) sent = input.size();  // Nobody reads any more.
      if (put > 0) sent += static_cast<std::size_t>(put);
    }
  }
  return true;
}

std::string KvProcess::first_line() {
  std::size_t sent = 0;
  bool late = false;
  if (!exchange({}, sent, late, "\n")) return {};
  return out_text_.substr(0, out_text_.find('\n'));
}

bool KvProcess::await(const std::string& text) {
  std::size_t sent = 0;
  bool late = false;
  return exchange({}, sent, late, text) && out_text_.find(text) != std::string::npos;
}

Ran KvProcess::finish(const std::string& input) {
  Ran ran;
  std::size_t sent = 0;
  exchange(input, sent, ran.late, {});
  if (ran.late) send(SIGKILL);
  int status = 0;
  // Both outputs are closed: it has ended, or is about to.
  if (pid_ > 0 && ::waitpid(pid_, &status, 0) == pid_) {
    if (WIFEXITED(status)) ran.exit = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) ran.signal = WTERMSIG(status);
  }
  pid_ = -1;
  ran.out = std::move(out_text_);
  ran.err = std::move(err_text_);
  return ran;
}

Ran run_kv(const Arguments& arguments, const std::string& input) { return KvProcess(arguments).finish(input); }

void expect_refused(const std::vector<Wrong>& all, std::string name) {
  const std::string path = tested_program();
  const std::string front = (name.empty() ? path.substr(path.rfind('/') + 1) : std::move(name)) + ": ";
  for (const Wrong& each : all) {
    SCOPED_TRACE(testing::PrintToString(each.arguments));
    const Ran ran = run_kv(each.arguments);
    EXPECT_EQ(ran.exit, each.exit) << ran.signal << ran.out;
    ASSERT_TRUE(ran.err.starts_with(front) && ran.err.ends_with('\n')) << ran.err;
    const std::string_view text = std::string_view(ran.err).substr(front.size(), ran.err.size() - front.size() - 1);
    expect_words(text, kForeign, each.says);
    EXPECT_EQ(text.find("--help") != text.npos, each.exit == 2) << text;
  }
}

std::vector<Wrong> wrong_numbers(const std::vector<NumberOption>& options) {
  std::vector<Wrong> all;
  for (const NumberOption& each : options) {
    const std::string range = std::to_string(each.least) + " to " + std::to_string(each.most);
    std::vector<std::string> values{
        "many", "8Q", "1.5", "-1", "", "99999999999999999999", std::to_string(each.most + 1)};
    if (each.least != 0) values.push_back(std::to_string(each.least - 1));
    Arguments arguments = each.command;
    arguments.push_back(each.option);
    all.push_back({arguments, {each.name, "takes " + range, "its value is missing"}});
    arguments.emplace_back();
    for (const std::string& value : values) {
      arguments.back() = value;
      all.push_back({arguments, {each.name, "takes " + range, "not \"" + value + '"'}});
    }
  }
  return all;
}

KvServer::KvServer(const Arguments& more) {
  Arguments arguments{"serve", "-p", "0"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  process_ = std::make_unique<KvProcess>(arguments);
  ready_line_ = process_->first_line();
  const std::size_t colon = ready_line_.find("serving on 127.0.0.1:");
  if (colon == std::string::npos) return;
  port_ = static_cast<std::uint16_t>(std::strtoul(ready_line_.c_str() + colon + 21, nullptr, 10));
}

Ran run_kv_as(uid_t user, const Arguments& arguments) { return KvProcess(arguments, user).finish(); }

const char* why_not_as_another_user() {
  if (::geteuid() != 0) return "needs root, to start a process of another user";
  constexpr uid_t kNobody = 65534;
  return run_kv_as(kNobody, {"--version"}).exit == 0 ? nullptr
                                                     : "the build directory is closed to processes of other users";
}

Ran KvServer::run(Arguments arguments, const std::string& input) const {
  arguments.insert(arguments.begin() + 1, {"-p", std::to_string(port_), "--timeout-ms", "30000"});
  return run_kv(arguments, input);
}

KvTerminal::KvTerminal(std::uint16_t port)
    : KvTerminal({"shell", "-p", std::to_string(port), "--timeout-ms", "30000"}) {}

KvTerminal::KvTerminal(const Arguments& arguments, const std::string& history) {
  std::vector<std::string> words{tested_program()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::vector<char*> argv = as_argv(words);
  winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  pid_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
  if (pid_ == 0) {
    ::setenv("TERM", "vt100", 1);
    ::setenv("VERBENA_KV_HISTORY", history.c_str(), 1);
    become(argv.data());
  }
  EXPECT_GT(pid_, 0) << "forkpty failed";
}

KvTerminal::~KvTerminal() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  close_fd(terminal_);
}

void KvTerminal::type(const std::string& keys) const {
  EXPECT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

/// False at the end of the output, or when nothing came in time.
bool KvTerminal::read_more() { return read_more(kPatience); }

bool KvTerminal::read_more(std::chrono::milliseconds patience) {
  pollfd readable{terminal_, POLLIN, 0};
  if (terminal_ < 0 || ::poll(&readable, 1, Deadline::after(patience).left_ms()) <= 0) return false;
  take(terminal_, seen_);
  return terminal_ >= 0;
}

bool KvTerminal::await(const std::string& text) {
  for (;;) {
    const std::size_t at = seen_.find(text, consumed_);
    if (at != std::string::npos) {
      consumed_ = at + text.size();
      return true;
    }
    if (!read_more()) return false;
  }
}

bool KvTerminal::has_ended() {
  (void)read_more(std::chrono::milliseconds{50});
  return terminal_ < 0;
}

int KvTerminal::finish() {
  while (read_more()) {}
  if (terminal_ >= 0) return -1;
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) return -1;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace verbena::test
