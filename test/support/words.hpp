// What every sentence of an error has to be like, whichever call it is of.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string>
#include <string_view>

namespace verbena::test {

/// Whether `word` is in `text`, with nothing that could be part of a word on either side.
[[nodiscard]] inline bool has_word(std::string_view text, std::string_view word) {
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_part(text[at - 1])) && (end == text.size() || !is_part(text[end]))) return true;
  }
  return false;
}

/// Names of this library's own rooms and classes, which no user knows.
inline constexpr std::array<std::string_view, 22> kInternalWords{
    "loop",        "channel",    "shard", "session",  "outbox",        "inbox_",   "SoftOptions", "VerbsOptions",
    "QueuePair",   "Fabric",     "cqe",   "lifeline", "Registrations", "Acceptor", "Transfers",   "CompletionLoop",
    "NicRegistry", "soft NIC's", "fd",    "Status",   "Result",        "Settings"};
/// Of a sentence that says nothing, or sends its reader round in a circle.
inline constexpr std::array<std::string_view, 6> kCircularWords{
    "see the detail", "see the call", "the detail", "code of this library", "can never work", "argument is wrong"};

/// Checks `text`, the words of a failed call without its name; `foreign` are words of other languages' APIs.
inline void expect_plain_words(std::string_view text, std::span<const std::string_view> foreign) {
  SCOPED_TRACE(text);
  EXPECT_GE(text.size(), 12u) << "it says nothing";
  for (const std::string_view word : kInternalWords) EXPECT_FALSE(has_word(text, word)) << word;
  for (const std::string_view words : kCircularWords) EXPECT_EQ(text.find(words), text.npos) << words;
  for (const std::string_view word : foreign) EXPECT_EQ(text.find(word), text.npos) << word;
  EXPECT_EQ(text.find(". "), text.npos) << "more than one sentence";
  EXPECT_EQ(text.find('\n'), text.npos);
  EXPECT_FALSE(text.ends_with('.') || text.ends_with(' ') || text.ends_with(':'));
}

/// The same, and each of `parts` is there: the argument's name, its value, its range.
inline void expect_words(std::string_view text, std::span<const std::string_view> foreign,
                         std::span<const std::string> parts) {
  expect_plain_words(text, foreign);
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), text.npos) << "\"" << part << "\" is not in: " << text;
}

}  // namespace verbena::test
