// Arguments of bench, from the command line and from a shell line alike.
#pragma once

#include "programs/commands.hpp"

#include <expected>
#include <span>
#include <string>

namespace CLI {
class App;
}

namespace verbena::programs {

/// Adds --seconds and the others to `app`; `arguments` must outlive its parsing.
void add_bench_options(CLI::App& app, BenchArguments& arguments);

/// The arguments of a shell's bench line, or what is wrong with them.
[[nodiscard]] std::expected<BenchArguments, std::string> parse_bench_words(std::span<const std::string> words);

}  // namespace verbena::programs
