// Runs the program that VERBENA_PROGRAM names in the environment, verbena-kv in most suites: one command to its end, or
// a server beside the test.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace verbena::test {

using Arguments = std::vector<std::string>;

/// What a command came to.
struct Ran {
  int exit = -1;      ///< Exit code; -1 when it did not exit by itself.
  int signal = 0;     ///< What ended it otherwise.
  bool late = false;  ///< It was killed because its time was up.
  std::string out, err;
};

/// A verbena-kv with pipes for its three streams. Killed by the destructor, and when the test dies.
class KvProcess {
 public:
  /// With `user`: of that user, which takes root.
  explicit KvProcess(const Arguments& arguments, std::optional<uid_t> user = {});
  KvProcess(const KvProcess&) = delete;
  KvProcess& operator=(const KvProcess&) = delete;
  ~KvProcess();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  void send(int signal) const noexcept;
  /// Reads stdout until it holds a whole line; empty when the process ends before that or is late.
  [[nodiscard]] std::string first_line();
  /// Reads stdout until it holds `text`. False when the process ends before that or is late.
  [[nodiscard]] bool await(const std::string& text);
  /// What it has said on stdout so far.
  [[nodiscard]] const std::string& said() const noexcept { return out_text_; }
  /// Writes `input` to stdin, closes it, and takes what comes until the process ends.
  [[nodiscard]] Ran finish(const std::string& input = {});

 private:
  bool exchange(const std::string& input, std::size_t& sent, bool& late, const std::string& until);

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::string out_text_, err_text_;
};

/// One command from start to end.
[[nodiscard]] Ran run_kv(const Arguments& arguments, const std::string& input = {});

/// The same as another user, which takes root.
[[nodiscard]] Ran run_kv_as(uid_t user, const Arguments& arguments);
/// Why this process cannot start the program as another user; null: it can.
[[nodiscard]] const char* why_not_as_another_user();

/// A command line that the program refuses, with one line on stderr.
struct Wrong {
  Arguments arguments;
  std::vector<std::string> says;  ///< The option, its value, what it takes.
  int exit = 2;
};
/// `name`: as what the program complains; empty: its file's name.
void expect_refused(const std::vector<Wrong>& all, std::string name = {});

/// An option that takes a number.
struct NumberOption {
  Arguments command;  ///< What stands in front of it.
  std::string option;
  std::string name;  ///< What errors call it.
  std::uint64_t least, most;
};
/// Each kind of value that such options do not take, and none.
[[nodiscard]] std::vector<Wrong> wrong_numbers(const std::vector<NumberOption>& options);

/// A server on a free port of 127.0.0.1.
class KvServer {
 public:
  /// Returns when it is ready; `port` is 0 when it did not get so, which the tests assert.
  explicit KvServer(const Arguments& more = {"-m", "64"});
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] const std::string& ready_line() const noexcept { return ready_line_; }
  [[nodiscard]] KvProcess& process() noexcept { return *process_; }
  /// A client command against this server.
  [[nodiscard]] Ran run(Arguments arguments, const std::string& input = {}) const;

 private:
  std::unique_ptr<KvProcess> process_;
  std::string ready_line_;
  std::uint16_t port_ = 0;
};

/// A command on a terminal of its own: what a person would see.
class KvTerminal {
 public:
  /// `history` is the file for that of a shell; empty: none.
  explicit KvTerminal(const Arguments& arguments, const std::string& history = {});
  /// A shell.
  explicit KvTerminal(std::uint16_t port);
  KvTerminal(const KvTerminal&) = delete;
  KvTerminal& operator=(const KvTerminal&) = delete;
  ~KvTerminal();

  void type(const std::string& keys) const;
  /// Reads until `text` has appeared behind what was awaited before. False when it does not in time.
  [[nodiscard]] bool await(const std::string& text);
  /// The exit code once it has ended, or 128 and its signal; -1 when it does not in time.
  [[nodiscard]] int finish();
  /// Takes what has come within 50 ms; whether the command has ended.
  [[nodiscard]] bool has_ended();
  [[nodiscard]] const std::string& seen() const noexcept { return seen_; }

 private:
  bool read_more(std::chrono::milliseconds patience);
  bool read_more();

  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string seen_;
  std::size_t consumed_ = 0;
};

}  // namespace verbena::test
