#include "programs/options.hpp"

#include "base/units.hpp"

#include <fmt/core.h>

#include <chrono>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

/// An item has at least a cache line, and --memory is at most a TiB.
constexpr std::uint64_t kMostItems = kMebi * kMebi / 64;

/// Takes a number in units of `unit` bytes.
auto in_units(std::size_t& bytes, std::size_t unit) {
  return [&bytes, unit](std::size_t count) { bytes = count * unit; };
}

/// CLI11 would ignore the value of a flag, so refuse it.
void refuse_flag_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->get_items_expected_max() == 0) option->disable_flag_override();
  for (CLI::App* each : app.get_subcommands({})) refuse_flag_values(*each);
}

/// Turns CLI11's message about its own types and counts into one about the option.
std::string mismatch_text(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return fmt::format("{}: takes no value", option.get_name());
  if (option.count() > 1)
    return fmt::format("{}: takes one value, not {}", option.get_name(), CLI::detail::join(option.results(), " and "));
  const std::string takes = option.get_type_name();  // "UINT:1 to 64".
  return fmt::format("{}: takes {}, and its value is missing", option.get_name(), takes.substr(takes.find(':') + 1));
}

/// How many letters are missing, too many, others or in each other's place between two words.
std::size_t edits_between(std::string_view a, std::string_view b) {
  // Rows of the table whose entry (i, j) compares the first i letters of `a` with the first j of `b`.
  std::vector<std::size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row.back();
}

/// The option that `given` was meant to be, or nothing.
std::optional<std::string> meant_option(const CLI::App& command, const std::string& given) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  const std::string* const meant = nearest_name(given.substr(0, given.find('=')), names);
  return meant == nullptr ? std::nullopt : std::optional(*meant);
}

/// Names the argument that nothing takes, and the option that was meant.
std::string argument_text(const CLI::App& command, const std::string& given) {
  const auto meant = meant_option(command, given);
  return fmt::format("unknown argument {}{}", quoted_bytes(given),
                     meant ? fmt::format("; did you mean {}?", *meant) : std::string());
}

/// Names the word that was given in place of a subcommand, and the one that was meant or else all. The word
/// may be an option of the program.
std::string command_text(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands({})) names.push_back(each->get_name());
  const std::vector<std::string> rest = app.remaining();
  if (!rest.empty() && meant_option(app, rest.front())) return argument_text(app, rest.front());
  if (const std::string* meant = rest.empty() ? nullptr : nearest_name(rest.front(), names))
    return fmt::format("unknown command {}; did you mean {}?", quoted_bytes(rest.front()), quoted_bytes(*meant));
  return fmt::format("takes a command, one of {}{}", CLI::detail::join(names, ", "),
                     rest.empty() ? "" : ", not " + quoted_bytes(rest.front()));
}

/// Says what is wrong with the command line, by the names and ranges of its options.
std::string error_text(const CLI::App& app, const CLI::ParseError& error) {
  const auto met = app.get_subcommands();
  const CLI::App& command = met.empty() ? app : *met.front();
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    return argument_text(command, app.remaining(true).front());
  if (app.get_require_subcommand_min() != 0 && met.empty()) return command_text(app);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    // CLI11 looks for what is missing first, but a misspelled option such as --hlep may be all that is wrong.
    for (const std::string& given : app.remaining(true))
      if (given.starts_with('-')) return argument_text(command, given);
  }
  std::string name = text.substr(0, text.find_first_of(": "));
  if (!name.starts_with('-')) name.insert(0, "--");  // For a flag.
  const CLI::Option* const option = command.get_option_no_throw(name);
  const bool is_mismatch = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  return is_mismatch && option != nullptr ? mismatch_text(*option) : text;
}

}  // namespace

const std::string* nearest_name(std::string_view word, std::span<const std::string> names) {
  const std::string* nearest = nullptr;
  // A third of the word may be wrong, and in a short one a letter, or two that changed places.
  std::size_t fewest = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t edits = edits_between(word, name);
    if (edits < fewest) {
      fewest = edits;
      nearest = &name;
    }
  }
  return nearest;
}

std::string wrong_value(std::string_view range, std::string_view given) {
  return fmt::format("takes {}, not {}", range, quoted_bytes(given));
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const std::string range = fmt::format("{} to {}", least, most);
  const auto check = [=](std::string& text) {
    std::uint64_t number = 0;
    const bool is_number = !text.contains('-') && CLI::detail::lexical_cast(text, number);
    return is_number && number >= least && number <= most ? std::string() : wrong_value(range, text);
  };
  return CLI::Validator(check, range);
}

CLI::Validator positive_number(double most) {
  const std::string range = fmt::format("more than 0, and at most {}", most);
  const auto check = [=](std::string& text) {
    double number = 0;
    return CLI::detail::lexical_cast(text, number) && number > 0 && number <= most ? std::string()
                                                                                   : wrong_value(range, text);
  };
  return CLI::Validator(check, range);
}

std::optional<std::uint64_t> parse_bytes(std::string text) {
  std::uint64_t bytes = 0;
  try {
    const bool is_size = !text.contains('-') && CLI::AsSizeValue(false)(text).empty();  // K is 1024.
    return is_size && CLI::detail::lexical_cast(text, bytes) ? std::optional(bytes) : std::nullopt;
  } catch (const CLI::ValidationError&) {
    return std::nullopt;
  }
}

CLI::Validator byte_size(std::uint64_t least, std::uint64_t most) {
  const std::string range = fmt::format("{} to {} bytes, such as 64 or 4K", least, most);
  const auto transform = [=](std::string& text) {
    const auto bytes = parse_bytes(text);
    if (!bytes || *bytes < least || *bytes > most) return wrong_value(range, text);
    text = std::to_string(*bytes);
    return std::string();
  };
  return CLI::Validator(transform, range);
}

CLI::Validator duration(std::chrono::milliseconds most) {
  struct Unit {
    std::string_view name;
    std::uint64_t ms;
  };
  static constexpr std::array kUnits{Unit{"ms", 1}, Unit{"s", 1000}, Unit{"m", 60'000}, Unit{"h", 3'600'000},
                                     Unit{"d", 86'400'000}};
  const auto most_ms = static_cast<std::uint64_t>(most.count());
  const std::string range = fmt::format("1ms to {}d, as a whole number with ms, s, m, h or d", most_ms / 86'400'000);
  const auto transform = [=](std::string& text) {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    const auto unit = std::ranges::find(kUnits, std::string_view(text).substr(digits), &Unit::name);
    std::uint64_t count = 0;
    const bool is_number = unit != kUnits.end() && CLI::detail::lexical_cast(text.substr(0, digits), count);
    if (!is_number || count == 0 || count > most_ms / unit->ms) return wrong_value(range, text);
    text = std::to_string(count * unit->ms);
    return std::string();
  };
  return CLI::Validator(transform, range);
}

Exit usage(const CLI::App& app, std::string_view text) {
  const auto met = app.get_subcommands();
  complain("{}{} {} {}--help", text, text.ends_with('?') ? " See" : "; see", app.get_name(),
           met.empty() ? "" : met.front()->get_name() + " ");
  return Exit::kUsage;
}

Exit run_parsed(CLI::App& app, int argc, char** argv, const Exit& exit) {
  refuse_flag_values(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success) == 0 ? Exit::kDone : Exit::kError;  // --help and --version.
  } catch (const CLI::ParseError& error) {
    return usage(app, error_text(app, error));
  }
  return exit;
}

void add_address(CLI::App& command, std::string& address, const char* what) {
  command.add_option("-a,--address", address, what)->type_name("NAME or ADDRESS");
}

void add_transport_options(CLI::App& command, Transport& transport) {
  command
      .add_option("-d,--device", transport.device,
                  "NIC: soft, or an RDMA device such as mlx5_0, with its port mlx5_0:2 "
                  "(default: a usable RDMA device that has the address, else soft)")
      ->type_name("soft or DEVICE");
  command.add_flag_callback(
      "-S,--socket", [&transport] { transport.bootstrap = Bootstrap::kSocket; },
      "connect by a TCP exchange instead of RDMA CM; both ends the same");
  command.add_option("--gid-index", transport.gid_index, "row of the device's GID table (default: the best)")
      ->check(whole_number(0, 255));
}

void add_allowed_uids(CLI::App& command, std::vector<uid_t>& uids, const char* what) {
  command.add_option("--allow-uid", uids, what)
      ->check(whole_number(0, kMostUid))
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_key_file(CLI::App& command, std::string& file, const char* what) {
  command.add_option("--key-file", file, what)->type_name("FILE");
}

void add_key_name(CLI::App& command, std::string& name) {
  command.add_option("--key-name", name, "which key of --key-file (default: the first)")
      ->type_name("NAME")
      ->needs("--key-file");
}

CLI::Option* add_wait_option(CLI::App& command, WaitPolicy& wait, const std::string& whose) {
  return add_choice(command, "--wait", wait, {WaitPolicy::kSpin, WaitPolicy::kAdaptive, WaitPolicy::kEvent},
                    "spin, adaptive or event",
                    fmt::format("how {} wait: spin (poll), adaptive (poll, then sleep) or event (sleep); default {}",
                                whose, to_string(wait)));
}

void add_serve_options(CLI::App& command, kv::ServerOptions& server) {
  command
      .add_option_function<std::size_t>("-m,--memory", in_units(server.memory_bytes, kMebi), "memory for items, in MiB")
      ->check(whole_number(1, kMebi))
      ->default_str("1024");
  command.add_flag_callback(
      "-H,--hugepages", [] {},
      "use hugepages where there are some, which is the default; the server says which pages it got");
  command.add_flag("--require-hugepages", server.require_hugepages, "refuse to start without hugepages");
  command.add_option("-w,--workers", server.workers, "pinned polling threads")
      ->check(whole_number(1, 64))
      ->capture_default_str();
  add_wait_option(command, server.wait, "workers that have cores of their own");
  command.add_option("--max-clients", server.max_clients, "clients at a time")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  command
      .add_option("--max-clients-per-user", server.max_clients_per_user,
                  "clients of each --allow-uid (default: half of --max-clients)")
      ->check(whole_number(1, 1024));
  command
      .add_option_function<std::size_t>(
          "--max-value-mib", in_units(server.max_value_bytes, kMebi),
          "longest value (default: nearly half of a worker's memory, so that it can be replaced)")
      ->check(whole_number(1, kMebi));
  command
      .add_option_function<std::size_t>("--lease-kib", in_units(server.lease_bytes, kKibi),
                                        "window that each client writes large values into")
      ->check(whole_number(64, kMebi))
      ->default_str("2048");
  command.add_option("--max-items", server.max_items, "keys there may be (default: one for every 128 bytes of memory)")
      ->check(whole_number(0, kMostItems));
  command.add_option("--max-cells", server.max_cells, "cells there may be (default: none)")
      ->check(whole_number(0, kMostItems));
  add_choice(command, "--evict", server.evict, {kv::Evict::kNone, kv::Evict::kLru}, "none or lru",
             "what a full store removes: none, or lru (keys that were not used lately); default none");
  command.add_flag("--checksum-large-values", server.checksum_large_values,
                   "readers check all bytes of values of 4 KiB and more");
  command
      .add_flag_callback(
          "--trusted-clients",
          [] {
            throw CLI::ValidationError(
                "--trusted-clients was removed in 0.1: the server reads large values itself, which is faster; "
                "leave it out");
          },
          "removed in 0.1")
      ->group("");  // The help does not name it.
  command
      .add_option_function<std::uint32_t>(
          "--grace-ms", [&server](std::uint32_t ms) { server.grace = std::chrono::milliseconds{ms}; },
          "how long a replaced large value keeps its memory for readers")
      ->check(whole_number(1, 60'000))
      ->default_str("500");
  command.add_option("--depth", server.depth, "operations in flight of one client")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
}

void add_bench_options(CLI::App& command, BenchArguments& a) {
  command.add_option("--seconds", a.seconds, "how long to measure")
      ->check(positive_number(86'400))
      ->capture_default_str();
  command.add_option("--count", a.count, "operations, after which it ends before its time (0: no limit)")
      ->check(whole_number(0, kMostBytes));
  command.add_option("--keys", a.keys, "keys in use (0: 10000, or what 64 MiB of values hold)")
      ->check(whole_number(0, kMostBytes));
  command.add_option("--key-size", a.key_bytes, "bytes of a key")
      ->transform(byte_size(1, kv::kMaxKeyBytes))
      ->capture_default_str();
  command.add_option("--value-size", a.value_bytes, "bytes of a value")
      ->transform(byte_size(0, kMostBytes))
      ->capture_default_str();
  command.add_option("--read-percent", a.read_percent, "share of gets; the others are puts")
      ->check(whole_number(0, 100))
      ->capture_default_str();
  command.add_option("--depth", a.depth, "operations in flight; 1 measures blocking calls")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  command.add_option("--batch", a.batch, "keys in a call of get or put, at depth 1")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  add_choice(command, "--lookup", a.lookup, {kv::Lookup::kAuto, kv::Lookup::kMessage, kv::Lookup::kOneSided},
             "auto, message or one-sided", "how gets find items: auto, message, one-sided (default auto)");
  command
      .add_option("--known-locations", a.known_locations, "locations that the client keeps, 0 or a power of two from 4")
      ->check(whole_number(0, kMostItems))
      ->capture_default_str();
  command.add_option("--clock-every", a.clock_every, "operations between readings of the clock, at depth 1")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  command.add_flag("--no-fill", a.no_fill, "the keys are there, from a bench with --no-erase: do not store them first");
  command.add_flag("--no-erase", a.no_erase, "leave the keys there in the end");
  command.add_option("--rounds", a.rounds, "rounds, with the cache line measured between them")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  command.add_flag("--json", a.json, "print one JSON object");
  CLI::Option* const sweep =
      command.add_flag("--sweep", a.sweep, "measure values of 1 B to 16 MiB, one call at a time, and print a table");
  command.add_option("--plot", a.plot, "file for a drawing of the sweep's rates, in SVG")
      ->type_name("FILE")
      ->needs(sweep);
}

std::expected<BenchArguments, std::string> parse_bench_words(std::span<const std::string> words) {
  BenchArguments arguments;
  CLI::App command("measure");
  add_bench_options(command, arguments);
  std::vector<std::string> reversed(words.rbegin(), words.rend());  // CLI11 wants them in reverse.
  try {
    command.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    return std::unexpected(
        std::string("bench takes --seconds --count --keys --key-size --value-size --read-percent "
                    "--depth --batch --lookup --known-locations --clock-every --no-fill --no-erase --rounds --json "
                    "--sweep --plot"));
  } catch (const CLI::ParseError& error) {
    return std::unexpected("bench: " + error_text(command, error));
  }
  if (std::string wrong = check_bench_arguments(arguments); !wrong.empty()) return std::unexpected("bench: " + wrong);
  return arguments;
}

}  // namespace verbena::programs
