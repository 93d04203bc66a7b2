// Words of a shell line, and bytes as text that the shell reads back.
#pragma once

#include <verbena/error.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// Splits at blanks. 'single quotes' keep everything; "double quotes" keep blanks; outside single quotes, \n \t \r \0
/// and \xHH stand for bytes, and \ before another character for that. kBadArgument when a quote is not closed or an
/// escape is cut short.
[[nodiscard]] Result<std::vector<std::string>> split_words(std::string_view line);

/// The bytes of a text with the escapes of `split_words`. kBadArgument when one is cut short.
[[nodiscard]] Result<std::string> unescaped(std::string_view text);

/// Bytes as text without control characters that split_words turns back into the bytes when it stands between double
/// quotes.
[[nodiscard]] std::string escaped(std::string_view bytes);

}  // namespace verbena::programs
