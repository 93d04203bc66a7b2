// Words of a shell line, and bytes as text that the shell reads back.
#pragma once

#include <verbena/error.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// Splits at blanks. 'Single quotes' keep everything; "double quotes" keep blanks. Outside single quotes \n \t \r \0
/// and \xHH stand for bytes, and \ before any other character for that character. Errors: kBadArgument (an open quote,
/// or an incomplete escape).
[[nodiscard]] Result<std::vector<std::string>> split_words(std::string_view line);

/// The bytes of a text with the escapes of `split_words`. Errors: kBadArgument (an incomplete escape).
[[nodiscard]] Result<std::string> unescaped(std::string_view text);

/// Bytes as text without control characters. Between double quotes, split_words turns it back into the bytes.
[[nodiscard]] std::string escaped(std::string_view bytes);

}  // namespace verbena::programs
