// shell: one connection and a prompt. Errors stay in the shell.
#include "programs/commands.hpp"
#include "programs/files.hpp"
#include "programs/line_editor.hpp"
#include "programs/options.hpp"
#include "programs/shell_words.hpp"
#include "programs/statistics.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

constexpr std::string_view kHelp =
    "put KEY VALUE | put KEY -f FILE          store a value, print its version\n"
    "get KEY | get KEY -f FILE                print a value, or write it to a file\n"
    "cas KEY VERSION VALUE                    store if the version is still that (0: no such key)\n"
    "del KEY                                  delete\n"
    "stats                                    statistics of the server\n"
    "bench [--seconds S] [--value-size N] ... measure, over a connection of its own\n"
    "help                                     this text\n"
    "quit                                     leave (so does the end of input)\n"
    "A word with blanks goes into \"quotes\"; \\n \\t \\\\ and \\xHH stand for bytes.\n";

/// Longer values only fill the screen.
constexpr std::size_t kMostShown = std::size_t{64} << 10;

class Shell {
 public:
  using Words = std::span<const std::string>;

  Shell(const ConnectArguments& where, std::unique_ptr<kv::Client> client)
      : where_(where), client_(std::move(client)) {}

  Exit run(LineEditor& editor) {
    if (editor.interactive()) fmt::print("connected: {}\ntype help for the commands\n", client_->description());
    while (!quit_) {
      std::fflush(stdout);
      const auto line = editor.next();
      if (!line) break;
      execute(*line);
    }
    if (editor.interactive() && !quit_) fmt::print("\n");
    // A script whose server went away must not look like success.
    return std::fflush(stdout) == 0 && client_ ? Exit::kDone : Exit::kError;
  }

 private:
  struct Command {
    std::string_view name;
    std::size_t fewest, most;  ///< Words after the name.
    void (Shell::*run)(Words words);
  };
  static const std::array<Command, 9> kCommands;

  void execute(std::string_view line) {
    const auto words = split_words(line);
    if (!words) return say("{}", words.error().text());
    if (words->empty() || words->front().starts_with('#')) return;
    const auto command = std::ranges::find(kCommands, words->front(), &Command::name);
    if (command == kCommands.end()) return say_unknown(words->front());
    const Words rest = Words(*words).subspan(1);
    if (rest.size() < command->fewest || rest.size() > command->most) {
      return say("{}: wrong number of words; type help", command->name);
    }
    (this->*command->run)(rest);
  }

  void say_unknown(const std::string& word) {
    std::vector<std::string> names;
    for (const Command& each : kCommands) names.emplace_back(each.name);
    if (const std::string* const meant = nearest_name(word, names))
      return say("unknown command {}; did you mean {}?", quoted_bytes(word), quoted_bytes(*meant));
    say("unknown command {}; type help", quoted_bytes(word));
  }

  /// stdout first, so that a reader of both sees them in order.
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    std::fflush(stdout);
    complain(format, std::forward<Args>(args)...);
  }

  /// The connection; reconnects if it broke earlier. Null after a complaint.
  kv::Client* client() {
    if (!client_) client_ = connect_or_complain(where_);
    return client_.get();
  }

  bool succeeded(std::string_view key, const kv::Outcome& outcome) {
    if (outcome.status == Status::kOk) return true;
    say("{}: {}", quoted_bytes(key), explain(outcome, client_->connection_error()));
    if (client_->connection_error().status() != Status::kOk) client_.reset();
    return false;
  }

  void put(Words words) {
    kv::Client* const to = client();
    if (to == nullptr) return;
    kv::Outcome outcome;
    if (words.size() == 3) {
      if (words[1] != "-f") return say("put: wrong number of words; put a value with blanks into quotes");
      if (const auto read = read_file(words[2], to->max_value_bytes(), buffer_); !read)
        return say("{}", read.error().text());
      outcome = to->put(as_key(words[0]), buffer_);
    } else {
      outcome = to->put(as_key(words[0]), std::as_bytes(std::span(words[1])));
    }
    if (succeeded(words[0], outcome)) fmt::print("{}\n", outcome.version);
  }

  void get(Words words) {
    if (words.size() != 1 && (words.size() != 3 || words[1] != "-f")) return say("get: takes KEY, or KEY -f FILE");
    kv::Client* const from = client();
    if (from == nullptr) return;
    const kv::Outcome outcome = get_whole(*from, words[0], buffer_);
    if (!succeeded(words[0], outcome)) return;
    const std::string_view value(reinterpret_cast<const char*>(buffer_.data()), outcome.length);
    if (words.size() == 3) {
      if (const auto written = replace_file(words[2], value); !written) return say("{}", written.error().text());
      return fmt::print("{} bytes to {}\n", value.size(), words[2]);
    }
    fmt::print("{}\n", escaped(value.substr(0, kMostShown)));
    if (value.size() > kMostShown) fmt::print("... {} bytes in all; get KEY -f FILE writes them\n", value.size());
  }

  void cas(Words words) {
    std::uint64_t version = 0;
    const std::string& text = words[1];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
    if (error != std::errc() || end != text.data() + text.size())
      return say("cas: {} is not a version", quoted_bytes(text));
    kv::Client* const to = client();
    if (to == nullptr) return;
    const kv::Outcome outcome = to->cas(as_key(words[0]), version, std::as_bytes(std::span(words[2])));
    if (succeeded(words[0], outcome)) fmt::print("{}\n", outcome.version);
  }

  void del(Words words) {
    kv::Client* const at = client();
    if (at != nullptr && succeeded(words[0], at->erase(as_key(words[0])))) fmt::print("deleted\n");
  }

  void stats(Words) {
    kv::Client* const of = client();
    if (of == nullptr) return;
    const auto statistics = of->server_statistics(Deadline::after(where_.options.timeout));
    if (statistics) return fmt::print("{}", statistics_text(*statistics));
    say("cannot read the server's statistics: {}", statistics.error().text());
    if (of->connection_error().status() != Status::kOk) client_.reset();
  }

  void bench(Words words) {
    const auto arguments = parse_bench_words(words);
    if (!arguments) return say("{}", arguments.error());
    std::fflush(stdout);
    static_cast<void>(run_bench(where_, *arguments));  // It has printed its own complaints; the shell goes on.
  }

  void help(Words) { fmt::print("{}", kHelp); }
  void quit(Words) { quit_ = true; }

  ConnectArguments where_;
  std::unique_ptr<kv::Client> client_;
  std::vector<std::byte> buffer_;
  bool quit_ = false;
};

constexpr std::size_t kManyWords = 64;
const std::array<Shell::Command, 9> Shell::kCommands{{
    {"put", 2, 3, &Shell::put},
    {"get", 1, 3, &Shell::get},
    {"cas", 3, 3, &Shell::cas},
    {"del", 1, 1, &Shell::del},
    {"stats", 0, 0, &Shell::stats},
    {"bench", 0, kManyWords, &Shell::bench},
    {"help", 0, kManyWords, &Shell::help},
    {"quit", 0, 0, &Shell::quit},
    {"exit", 0, 0, &Shell::quit},
}};

}  // namespace

Exit run_shell(const ConnectArguments& where) {
  auto client = connect_or_complain(where);
  if (!client) return Exit::kError;
  const auto editor = LineEditor::create("verbena-kv", "verbena> ");
  return Shell(where, std::move(client)).run(*editor);
}

}  // namespace verbena::programs
