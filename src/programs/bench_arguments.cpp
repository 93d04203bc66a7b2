#include "programs/bench_arguments.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <vector>

namespace verbena::programs {
namespace {

void add_lookup_options(CLI::App& app, BenchArguments& a) {
  const auto take = [&a](const std::string& name) {
    constexpr std::array kLookups{kv::Lookup::kAuto, kv::Lookup::kMessage, kv::Lookup::kOneSided};
    const auto* const lookup = std::ranges::find_if(kLookups, [&](kv::Lookup each) { return name == to_string(each); });
    if (lookup == kLookups.end()) throw CLI::ValidationError("--lookup " + name, "takes auto, message or one-sided");
    a.lookup = *lookup;
  };
  app.add_option_function<std::string>("--lookup", take,
                                       "how gets find items: auto, message, one-sided (default auto)");
  app.add_option("--known-locations", a.known_locations, "locations that the client keeps, 0 or a power of two from 4")
      ->capture_default_str();
}

}  // namespace

void add_bench_options(CLI::App& app, BenchArguments& a) {
  const auto size = CLI::AsSizeValue(false);  // K is 1024.
  app.add_option("--seconds", a.seconds, "how long to measure")->capture_default_str();
  app.add_option("--count", a.count, "operations, after which it ends before its time (0: no limit)");
  app.add_option("--keys", a.keys, "keys in use (0: 10000, or what 64 MiB of values hold)");
  app.add_option("--key-size", a.key_bytes, "bytes of a key, 1 to 1024")->transform(size)->capture_default_str();
  app.add_option("--value-size", a.value_bytes, "bytes of a value, such as 64, 4K or 1M")
      ->transform(size)
      ->capture_default_str();
  app.add_option("--read-percent", a.read_percent, "share of gets, 0 to 100; the others are puts")
      ->capture_default_str();
  app.add_option("--depth", a.depth, "operations in flight, 1 to 1024; 1 measures blocking calls")
      ->capture_default_str();
  app.add_option("--batch", a.batch, "keys in a call of get or put, 1 to 1024, at depth 1")->capture_default_str();
  add_lookup_options(app, a);
  app.add_option("--clock-every", a.clock_every, "operations between readings of the clock, 1 to 4096, at depth 1")
      ->capture_default_str();
  app.add_flag("--no-fill", a.no_fill, "the keys are there, from a bench with --no-erase: do not store them first");
  app.add_flag("--no-erase", a.no_erase, "leave the keys there in the end");
  app.add_option("--rounds", a.rounds, "rounds, with the cache line measured between them")->capture_default_str();
  app.add_flag("--json", a.json, "print one JSON object");
}

std::expected<BenchArguments, std::string> parse_bench_words(std::span<const std::string> words) {
  BenchArguments arguments;
  CLI::App app("measure");
  add_bench_options(app, arguments);
  std::vector<std::string> reversed(words.rbegin(), words.rend());  // As CLI11 wants them.
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    return std::unexpected(
        std::string("bench takes --seconds --count --keys --key-size --value-size --read-percent "
                    "--depth --batch --lookup --known-locations --clock-every --no-fill --no-erase --rounds --json"));
  } catch (const CLI::ParseError& error) {
    return std::unexpected(std::string("bench: ") + error.what());
  }
  if (std::string wrong = check_bench_arguments(arguments); !wrong.empty()) return std::unexpected("bench: " + wrong);
  return arguments;
}

}  // namespace verbena::programs
