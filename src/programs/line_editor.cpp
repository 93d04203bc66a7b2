#include "programs/line_editor.hpp"

#include "programs/exit_code.hpp"

#include <fmt/core.h>
#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <system_error>
#include <utility>

namespace verbena::programs {
namespace {

void drop_line_end(std::string& line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
}

class ScriptLines final : public LineEditor {
 public:
  std::optional<std::string> next() override {
    char* text = nullptr;
    std::size_t capacity = 0;
    const ssize_t length = ::getline(&text, &capacity, stdin);
    const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
    if (length < 0) return std::nullopt;
    std::string line(text, static_cast<std::size_t>(length));
    drop_line_end(line);
    return line;
  }
  bool interactive() const noexcept override { return false; }
};

volatile std::sig_atomic_t interrupted = 0;
void note_interrupt(int) noexcept { interrupted = 1; }

class TerminalLines final : public LineEditor {
 public:
  explicit TerminalLines(Options options)
      : options_(std::move(options)),
        editor_(::el_init(options_.name, stdin, stdout, stderr)),
        history_(::history_init()) {
    if (editor_ == nullptr || history_ == nullptr) return;
    constexpr int kHistoryLines = 1000;
    HistEvent event;
    ::history(history_, &event, H_SETSIZE, kHistoryLines);
    ::history(history_, &event, H_SETUNIQUE, 1);
    ::el_set(editor_, EL_CLIENTDATA, this);
    ::el_set(editor_, EL_PROMPT, &TerminalLines::prompt_of);
    ::el_set(editor_, EL_EDITOR, "emacs");
    ::el_set(editor_, EL_HIST, ::history, history_);
    ::el_wset(editor_, EL_ADDFN, L"complete-word", L"Completes the word", &TerminalLines::complete);
    ::el_set(editor_, EL_BIND, "^I", "complete-word", nullptr);
    ::el_source(editor_, nullptr);
    if (!options_.history.empty()) ::history(history_, &event, H_LOAD, options_.history.c_str());  // None at first.
    ::el_set(editor_, EL_GETCFN, &TerminalLines::read_character);
    // ^C cancels the line, not the shell. It is unblocked only while `read_character` waits: at any other time it would
    // come before the wait begins, and be lost.
    struct sigaction action{};
    action.sa_handler = note_interrupt;
    ::sigaction(SIGINT, &action, &action_before_);
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &interrupt, &mask_before_);
  }
  TerminalLines(const TerminalLines&) = delete;
  TerminalLines& operator=(const TerminalLines&) = delete;
  ~TerminalLines() override {
    if (valid()) {
      ::sigaction(SIGINT, &action_before_, nullptr);
      ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
    }
    if (editor_ != nullptr) ::el_end(editor_);
    if (history_ != nullptr) ::history_end(history_);
  }

  [[nodiscard]] bool valid() const noexcept { return editor_ != nullptr && history_ != nullptr; }

  std::optional<std::string> next() override {
    int length = 0;
    interrupted = 0;
    // Lets libedit take over the terminal only once the prompt is printed; keys in between would not be edited.
    ::el_set(editor_, EL_PREP_TERM, 1);
    const char* const text = ::el_gets(editor_, &length);
    if (text == nullptr || length <= 0) {
      if (interrupted == 0) return std::nullopt;
      std::fputs("\n", stdout);
      ::el_reset(editor_);
      return std::string();
    }
    std::string line(text, static_cast<std::size_t>(length));
    drop_line_end(line);
    if (!line.empty()) remember(line);
    return line;
  }
  bool interactive() const noexcept override { return true; }

 private:
  static TerminalLines& self_of(EditLine* editor) {
    void* self = nullptr;
    ::el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<TerminalLines*>(self);
  }
  static const char* prompt_of(EditLine* editor) { return self_of(editor).options_.prompt; }

  /// Each line is saved at once, so that none is lost however the program ends.
  void remember(const std::string& line) {
    HistEvent event;
    ::history(history_, &event, H_ENTER, line.c_str());
    if (options_.history.empty() || ::history(history_, &event, H_SAVE, options_.history.c_str()) >= 0) return;
    complain("cannot save the history in {}: {}", std::exchange(options_.history, {}),
             std::generic_category().message(errno));
  }

  /// Completes the word in front of the cursor as far as it is clear, or else shows how it may go on.
  static unsigned char complete(EditLine* editor, std::wint_t) {
    const LineInfo* const line = ::el_line(editor);
    const std::string_view text(line->buffer, static_cast<std::size_t>(line->cursor - line->buffer));
    const std::string_view word = text.substr(text.find_last_of(' ') + 1);
    const Complete& complete = self_of(editor).options_.complete;
    const std::vector<std::string> words = complete ? complete(text) : std::vector<std::string>();
    if (words.empty()) return CC_REFRESH_BEEP;
    std::string common = words.front();
    for (const std::string& each : words) {
      const auto end = std::ranges::mismatch(common, each).in1;
      common.erase(end, common.end());
    }
    if (words.size() == 1) common.push_back(' ');
    if (common.size() > word.size()) {
      ::el_insertstr(editor, common.c_str() + word.size());
      return CC_REFRESH;
    }
    std::fputs("\n", stdout);
    for (const std::string& each : words) fmt::print("{}\n", each);
    std::fflush(stdout);
    return CC_REDISPLAY;
  }

  /// Waits for the user, however long. Returns 1 with a character, 0 at the end of input, -1 if interrupted.
  static int read_character(EditLine* editor, wchar_t* out) {
    sigset_t mask = self_of(editor).mask_before_;
    sigdelset(&mask, SIGINT);
    std::mbstate_t state{};
    for (;;) {
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (::ppoll(&input, 1, nullptr, &mask) < 0) {
        if (errno != EINTR || interrupted != 0) return -1;
        continue;
      }
      char byte = 0;
      const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return static_cast<int>(got);
      const std::size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used <= 1) return 1;
      constexpr auto kNotACharacter = static_cast<std::size_t>(-1);
      if (used == kNotACharacter) state = {};  // Skips it; otherwise waits for its next byte.
    }
  }

  Options options_;
  EditLine* editor_;
  History* history_;
  struct sigaction action_before_{};
  sigset_t mask_before_{};
};

}  // namespace

std::unique_ptr<LineEditor> LineEditor::create(Options options) {
  if (::isatty(STDIN_FILENO) == 1) {
    std::setlocale(LC_CTYPE, "");
    auto terminal = std::make_unique<TerminalLines>(std::move(options));
    if (terminal->valid()) return terminal;
  }
  return std::make_unique<ScriptLines>();
}

}  // namespace verbena::programs
