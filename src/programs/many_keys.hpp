// Commands on many keys, and on cells, for the command line and for the shell. Each prints its result on stdout and
// complains by itself.
#pragma once

#include "programs/commands.hpp"

#include <verbena/kv.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace verbena::programs {

/// Prints the keys that begin with `keys.prefix`, sorted and each once, or their number.
[[nodiscard]] Exit print_keys(kv::Client& client, const KeysArguments& keys);
/// Erases the keys that begin with `prefix`, and prints their number.
[[nodiscard]] Exit flush_keys(kv::Client& client, std::string_view prefix);
/// Prints a line for each key that is there: the key, a tab, the value, both with escapes.
[[nodiscard]] Exit get_many(kv::Client& client, std::span<const std::string> keys);
/// Stores values under the keys in front of them, and prints the version of each. `words` has an even number.
[[nodiscard]] Exit put_many(kv::Client& client, std::span<const std::string> words, const kv::PutOptions& options = {});
/// Adds `by` to the cell under the key, which is made if there is none, and prints the sum.
[[nodiscard]] Exit add_to_cell(kv::Client& client, const std::string& key, std::uint64_t by);
/// Prints the cell under the key; makes none.
[[nodiscard]] Exit print_cell(kv::Client& client, const std::string& key);

/// A whole number of 64 bits with or without a sign, modulo 2^64.
[[nodiscard]] std::optional<std::uint64_t> parse_step(std::string_view text) noexcept;

}  // namespace verbena::programs
