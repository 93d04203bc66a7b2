#include "programs/shell_words.hpp"

#include "base/error.hpp"

#include <charconv>
#include <iterator>
#include <optional>

namespace verbena::programs {
namespace {

constexpr std::string_view kWordBreaks = " \t\r\n";

/// The byte that the text after a backslash stands for; consumes the text. Nothing: the escape is incomplete.
std::optional<char> take_escape(std::string_view& rest) noexcept {
  if (rest.empty()) return std::nullopt;
  const char c = rest.front();
  rest.remove_prefix(1);
  switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case '0': return '\0';
    case 'x': break;
    default: return c;
  }
  const std::string_view digits = rest.substr(0, 2);
  unsigned byte = 0;
  const char* const end = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16).ptr;
  if (digits.size() < 2 || end != digits.data() + 2) return std::nullopt;
  rest.remove_prefix(2);
  return static_cast<char>(byte);
}

/// Takes one word off the front of `rest`.
Result<std::string> take_word(std::string_view& rest) {
  std::string word;
  char quote = '\0';
  while (!rest.empty()) {
    const char c = rest.front();
    if (quote == '\0' && kWordBreaks.find(c) != std::string_view::npos) break;
    rest.remove_prefix(1);
    if (quote == '\0' && (c == '"' || c == '\'')) {
      quote = c;
    } else if (quote != '\0' && c == quote) {
      quote = '\0';
    } else if (c == '\\' && quote != '\'') {
      const auto byte = take_escape(rest);
      if (!byte)
        return fail(Status::kBadArgument, "split_words", 0, "an escape is cut short; write \\xHH with two digits");
      word.push_back(*byte);
    } else {
      word.push_back(c);
    }
  }
  if (quote != '\0')
    return fail(Status::kBadArgument, "split_words", 0, "a quote is not closed; add the other {}", quote);
  return word;
}

}  // namespace

Result<std::vector<std::string>> split_words(std::string_view line) {
  std::vector<std::string> words;
  for (;;) {
    const std::size_t begin = line.find_first_not_of(kWordBreaks);
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    VERBENA_ASSIGN(std::string word, take_word(line));
    words.push_back(std::move(word));
  }
}

Result<std::string> unescaped(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const char c = text.front();
    text.remove_prefix(1);
    const auto byte = c == '\\' ? take_escape(text) : c;
    if (!byte) return fail(Status::kBadArgument, "unescaped", 0, "an escape is cut short; write \\xHH with two digits");
    bytes.push_back(*byte);
  }
  return bytes;
}

std::string escaped(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\' || c == '"') {
      text.push_back('\\');
      text.push_back(c);
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (byte < 0x20 || byte > 0x7e) {
      fmt::format_to(std::back_inserter(text), "\\x{:02x}", byte);
    } else {
      text.push_back(c);
    }
  }
  return text;
}

}  // namespace verbena::programs
