// The command-line options that several programs and subcommands share.
#pragma once

#include "programs/commands.hpp"

#include <verbena/kv.hpp>

#include <CLI/CLI.hpp>

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// A user's number: -1 means no user.
inline constexpr uid_t kMostUid = std::numeric_limits<uid_t>::max() - 1;

/// Reports a wrong command line and points to the help of the program or of the subcommand.
[[nodiscard]] Exit usage(const CLI::App& app, std::string_view text);
/// Parses the command line and runs the subcommand's callback, which sets `exit`. \thread main
[[nodiscard]] Exit run_parsed(CLI::App& app, int argc, char** argv, const Exit& exit);

/// The one of `names` that `word` is likely to be a slip of; null: none is near.
[[nodiscard]] const std::string* nearest_name(std::string_view word, std::span<const std::string> names);
/// Says that an option takes `range`, and not `given`, in words that follow the option's name.
[[nodiscard]] std::string wrong_value(std::string_view range, std::string_view given);
/// For an option that takes a whole number.
[[nodiscard]] CLI::Validator whole_number(std::uint64_t least, std::uint64_t most);
/// Adds such an option, whose help shows the value that `number` has.
template <class Number>
CLI::Option* add_number(CLI::App& command, const char* name, Number& number, const char* what, std::uint64_t least,
                        std::uint64_t most) {
  return command.add_option(name, number, what)->check(whole_number(least, most))->capture_default_str();
}
/// For an option that takes any number above 0.
[[nodiscard]] CLI::Validator positive_number(double most);
/// A time from 1 ms on, as a number with a unit; becomes the number of ms.
[[nodiscard]] CLI::Validator duration(std::chrono::milliseconds most);
/// For an option that takes a number of bytes, such as 4K: turns it into the number.
[[nodiscard]] CLI::Validator byte_size(std::uint64_t least, std::uint64_t most);
/// 4096 for "4K"; empty if `text` is not a number of bytes.
[[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string text);

// The variable of an option must outlive the parsing.

/// An option that takes the name of one of `choices`, whose names are `names`.
template <class Choice, std::size_t N>
CLI::Option* add_choice(CLI::App& command, const char* name, Choice& choice, const Choice (&choices)[N],
                        const char* names, const std::string& what) {
  const auto take = [=, &choice, choices = std::to_array(choices)](const std::string& word) {
    const auto found = std::ranges::find_if(choices, [&](Choice each) { return word == to_string(each); });
    if (found == choices.end()) throw CLI::ValidationError(name, wrong_value(names, word));
    choice = *found;
  };
  return command.add_option_function<std::string>(name, take, what)->type_name(names);
}

/// -a: where to connect to, or to listen.
void add_address(CLI::App& command, std::string& address, const char* what);
/// -d, -S and --gid-index: which NIC, and how.
void add_transport_options(CLI::App& command, Transport& transport);
/// --allow-uid, one number per option, so that positional arguments may follow it.
void add_allowed_uids(CLI::App& command, std::vector<uid_t>& uids, const char* what);
/// --allow and --quota: rights and quotas.
void add_grants(CLI::App& command, std::vector<kv::Grant>& grants);
/// --key-file; `what` describes its purpose.
void add_key_file(CLI::App& command, std::string& file, const char* what);
/// --key-name, for use with --key-file.
void add_key_name(CLI::App& command, std::string& name);
/// --timeout-ms, for connecting and for each call; `what` says what it limits.
template <class Options>
void add_timeout(CLI::App& command, Options& options, const char* what) {
  const auto take = [&options](std::uint32_t ms) {
    options.connect_timeout = options.timeout = std::chrono::milliseconds{ms};
  };
  command.add_option_function<std::uint32_t>("--timeout-ms", take, what)
      ->check(whole_number(1, 86'400'000))
      ->default_str(std::to_string(options.timeout.count()));
}
/// --wait; `whose` names who waits. The current value is the default.
CLI::Option* add_wait_option(CLI::App& command, WaitPolicy& wait, const std::string& whose);

/// Adds the options that define a server's size, for the server and for its planner: -m, -H, --require-hugepages, -w,
/// --wait, --max-clients, --max-clients-per-user, --max-value-mib, --lease-kib, --max-items, --max-cells,
/// --checksum-large-values, --grace-ms and --depth. Refuses --trusted-clients, which was removed in 0.1.
void add_serve_options(CLI::App& command, kv::ServerOptions& server);

/// Adds --seconds and the other options of bench.
void add_bench_options(CLI::App& command, BenchArguments& arguments);
/// The arguments of a shell's bench line, or a description of the error.
[[nodiscard]] std::expected<BenchArguments, std::string> parse_bench_words(std::span<const std::string> words);

}  // namespace verbena::programs
