// Errors of the library in the words of a command line.
#pragma once

#include <string>
#include <string_view>

namespace verbena::programs {

/// `text` with the library's options by the names that they have on the command line: max_items becomes --max-items.
[[nodiscard]] std::string by_option(std::string_view text);

}  // namespace verbena::programs
