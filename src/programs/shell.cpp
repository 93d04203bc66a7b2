// shell: one connection and a prompt. Errors stay in the shell.
#include "base/text.hpp"
#include "programs/commands.hpp"
#include "programs/files.hpp"
#include "programs/line_editor.hpp"
#include "programs/many_keys.hpp"
#include "programs/options.hpp"
#include "programs/shell_words.hpp"
#include "programs/statistics.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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
    "keys [PREFIX]                            print the keys that begin with PREFIX\n"
    "flush PREFIX -y | flush --all -y         erase them, or all keys, but no cells\n"
    "mget KEY ... | mput KEY VALUE ...        many in one call\n"
    "incr KEY [N] | cell KEY                  add to a cell, or print it\n"
    "stats                                    statistics of the server\n"
    "bench [--seconds S] [--value-size N] ... measure, over a connection of its own\n"
    "help                                     this text\n"
    "quit                                     leave (so does the end of input)\n"
    "A word with blanks goes into \"quotes\"; \\n \\t \\\\ and \\xHH stand for bytes.\n";

/// $VERBENA_KV_HISTORY, of which an empty one means none; else a file in the user's home.
std::string history_file() {
  if (const char* const named = std::getenv("VERBENA_KV_HISTORY"); named != nullptr) return named;
  const char* const home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? std::string() : std::string(home) + "/.verbena_kv_history";
}

/// Longer values only fill the screen.
constexpr std::size_t kMostShown = std::size_t{64} << 10;

class Shell {
 public:
  using Words = std::span<const std::string>;

  Shell(const ConnectArguments& where, std::unique_ptr<kv::Client> client)
      : where_(where), client_(std::move(client)) {}

  /// What the last word of a line may become: a command, or a key's beginning.
  std::vector<std::string> complete(std::string_view text) {
    const std::size_t at = text.find_last_of(' ') + 1;
    const std::string word(text.substr(at));
    std::vector<std::string> words;
    if (at == 0) {
      for (const Command& each : kCommands)
        if (each.name.starts_with(word)) words.emplace_back(each.name);
      return words;
    }
    // A word with quotes or escapes is not what the key begins with.
    if (client_ && word.find_first_of("\"'\\") == std::string::npos) words = keys_from(word);
    return words;
  }

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
  static const std::array<Command, 15> kCommands;

  /// The keys that begin with `prefix`, as a line would have them; none if they are too many, or too late.
  std::vector<std::string> keys_from(const std::string& prefix) {
    constexpr std::size_t kMostOffered = 100;
    const Deadline deadline = Deadline::after(std::chrono::milliseconds{300});
    std::vector<std::string> words;
    kv::KeyPage page;
    for (kv::KeyCursor cursor; !cursor.is_over;) {
      if (client_->keys(bytes_of_text(prefix), cursor, page, deadline) != Status::kOk) return {};
      for (const kv::Key key : page) {
        if (words.size() == kMostOffered) return {};
        std::string word;
        for (const char c : escaped(text_of(key))) c == ' ' ? word += "\\ " : word += c;
        words.push_back(std::move(word));
      }
    }
    std::ranges::sort(words);
    words.erase(std::ranges::unique(words).begin(), words.end());
    return words;
  }

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
      outcome = to->put(bytes_of_text(words[0]), buffer_);
    } else {
      outcome = to->put(bytes_of_text(words[0]), bytes_of_text(words[1]));
    }
    if (succeeded(words[0], outcome)) fmt::print("{}\n", outcome.version);
  }

  void get(Words words) {
    if (words.size() != 1 && (words.size() != 3 || words[1] != "-f")) return say("get: takes KEY, or KEY -f FILE");
    kv::Client* const from = client();
    if (from == nullptr) return;
    const kv::Outcome outcome = get_whole(*from, words[0], buffer_);
    if (!succeeded(words[0], outcome)) return;
    const std::string_view value = text_of(std::span(buffer_).first(outcome.length));
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
    const kv::Outcome outcome = to->cas(bytes_of_text(words[0]), version, bytes_of_text(words[2]));
    if (succeeded(words[0], outcome)) fmt::print("{}\n", outcome.version);
  }

  void del(Words words) {
    kv::Client* const at = client();
    if (at != nullptr && succeeded(words[0], at->erase(bytes_of_text(words[0])))) fmt::print("deleted\n");
  }

  /// Runs a command that complains by itself.
  template <class Command>
  void on_client(Command&& command) {
    kv::Client* const at = client();
    if (at == nullptr) return;
    std::fflush(stdout);
    static_cast<void>(command(*at));
    if (at->connection_error().status() != Status::kOk) client_.reset();
  }

  void keys(Words words) {
    const KeysArguments all{.prefix = words.empty() ? std::string() : words[0]};
    on_client([&](kv::Client& of) { return print_keys(of, all); });
  }

  void flush(Words words) {
    const bool is_all = words[0] == "--all";
    if (words[0].empty()) return say("flush: takes PREFIX, or --all");
    if (words.size() != 2 || words[1] != "-y") return say("flush: add -y, and the keys are erased");
    on_client([&](kv::Client& of) { return flush_keys(of, is_all ? std::string_view() : words[0]); });
  }

  void mget(Words words) {
    on_client([&](kv::Client& from) { return get_many(from, words); });
  }

  void mput(Words words) {
    if (words.size() % 2 != 0) return say("mput: takes a VALUE behind each KEY, and the last one is missing");
    on_client([&](kv::Client& to) { return put_many(to, words); });
  }

  void incr(Words words) {
    const auto step = parse_step(words.size() == 2 ? words[1] : "1");
    if (!step) return say("incr: {} is not a whole number of 64 bits", quoted_bytes(words[1]));
    on_client([&](kv::Client& at) { return add_to_cell(at, words[0], *step); });
  }

  void cell(Words words) {
    on_client([&](kv::Client& of) { return print_cell(of, words[0]); });
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
const std::array<Shell::Command, 15> Shell::kCommands{{
    {"put", 2, 3, &Shell::put},
    {"get", 1, 3, &Shell::get},
    {"cas", 3, 3, &Shell::cas},
    {"del", 1, 1, &Shell::del},
    {"keys", 0, 1, &Shell::keys},
    {"flush", 1, 2, &Shell::flush},
    {"mget", 1, kManyWords, &Shell::mget},
    {"mput", 2, kManyWords, &Shell::mput},
    {"incr", 1, 2, &Shell::incr},
    {"cell", 1, 1, &Shell::cell},
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
  Shell shell(where, std::move(client));
  const auto editor = LineEditor::create(
      {.name = "verbena-kv", .prompt = "verbena> ", .history = history_file(), .complete = [&](std::string_view text) {
         return shell.complete(text);
       }});
  return shell.run(*editor);
}

}  // namespace verbena::programs
