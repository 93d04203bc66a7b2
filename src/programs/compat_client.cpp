// kv_client: rdma_kv's prompt, over a connection of ours.
#include "base/text.hpp"
#include "programs/compat.hpp"
#include "programs/files.hpp"
#include "programs/line_editor.hpp"
#include "programs/options.hpp"

#include "api/c/codes.hpp"
#include "api/counted_values.hpp"

#include <verbena/version.h>

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

constexpr const char* kPrompt = "kv> ";
constexpr std::string_view kCommands =
    "\nInteractive mode. Commands:\n"
    "  put <key> <value>   - Store a key-value pair\n"
    "  get <key>           - Retrieve a value\n"
    "  del <key>           - Delete a key\n"
    "  cas <key> <ver> <value> - Compare and swap\n"
    "  bench <num>         - Run benchmark with <num> operations\n"
    "  quit                - Exit\n\n";
constexpr std::uint64_t kMostOperations = 1'000'000'000;
constexpr std::uint64_t kUsualOperations = 1000;
constexpr std::size_t kBenchValueBytes = 1024;
constexpr std::string_view kBlanks = " \t\r\n\v\f";

/// Takes the next word off the front of `line`; empty at its end.
std::string_view word_of(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
  line.remove_prefix(word.size());
  return word;
}

/// What is left of `line`, without the blanks before it: a value may contain some.
std::string_view rest_of(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  return line;
}

std::optional<std::uint64_t> number_in(std::string_view word) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(number) : std::nullopt;
}

/// The store as the prompt sees it: versions by key or, if asked for, the server's own.
class Values {
 public:
  enum class Versions : bool { kOfKey, kOfServer };

  Values(kv::Client& client, std::chrono::milliseconds timeout, Versions versions)
      : client_(client), timeout_(timeout), versions_(versions) {}

  kv::Outcome put(std::string_view key, std::string_view value) {
    const auto bytes = bytes_of_text(value);
    return is_counted() ? counted_.put(client_, bytes_of_text(key), bytes, deadline())
                        : client_.put(bytes_of_text(key), bytes);
  }
  kv::Outcome cas(std::string_view key, std::uint64_t expected, std::string_view value) {
    const auto bytes = bytes_of_text(value);
    return is_counted() ? counted_.cas(client_, bytes_of_text(key), expected, bytes, deadline())
                        : client_.cas(bytes_of_text(key), expected, bytes);
  }
  kv::Outcome erase(std::string_view key) { return client_.erase(bytes_of_text(key)); }
  /// `value` is valid until the next call.
  kv::Outcome get(std::string_view key, std::string_view& value) {
    std::span<const std::byte> bytes;
    kv::Outcome outcome;
    if (is_counted()) {
      outcome = counted_.get(client_, bytes_of_text(key), bytes, deadline());
    } else {
      outcome = get_whole(client_, key, buffer_);
      bytes = std::span(buffer_).first(outcome.status == Status::kOk ? outcome.length : 0);
    }
    value = text_of(bytes);
    return outcome;
  }
  [[nodiscard]] Error connection_error() const { return client_.connection_error(); }

 private:
  [[nodiscard]] bool is_counted() const noexcept { return versions_ == Versions::kOfKey; }
  [[nodiscard]] Deadline deadline() const noexcept { return Deadline::after(timeout_); }

  kv::Client& client_;
  api::CountedValues counted_;
  std::vector<std::byte> buffer_;
  std::chrono::milliseconds timeout_;
  Versions versions_;
};

class Prompt {
 public:
  explicit Prompt(Values& values) : values_(values) {}

  /// Until the end of input, or `quit`.
  Exit run() {
    const auto editor = LineEditor::create({.name = "kv_client", .prompt = kPrompt, .history = {}});
    fmt::print("{}", kCommands);
    for (;;) {
      // A script sees the prompts too, as rdma_kv's client prints them.
      if (!editor->interactive()) fmt::print("{}", kPrompt);
      std::fflush(stdout);
      const auto line = editor->next();
      if (!line || !execute(*line)) break;
    }
    // A script whose server went away must not look like success.
    return values_.connection_error().status() == Status::kOk ? Exit::kDone : Exit::kError;
  }

 private:
  /// False: to quit.
  bool execute(std::string_view line) {
    const std::string_view command = word_of(line);
    if (command.empty()) return true;
    if (command == "quit" || command == "exit") return false;
    if (command == "put") {
      put(line);
    } else if (command == "get") {
      get(line);
    } else if (command == "del") {
      del(line);
    } else if (command == "cas") {
      cas(line);
    } else if (command == "bench") {
      bench(line);
    } else {
      fmt::print("Unknown command: {}\n", command);
    }
    return true;
  }

  void put(std::string_view line) {
    const std::string_view key = word_of(line), value = rest_of(line);
    if (key.empty() || value.empty()) return fmt::print("Usage: put <key> <value>\n");
    const kv::Outcome outcome = values_.put(key, value);
    outcome.status == Status::kOk ? fmt::print("OK\n") : print_failure(outcome);
  }

  void get(std::string_view line) {
    const std::string_view key = word_of(line);
    if (key.empty()) return fmt::print("Usage: get <key>\n");
    std::string_view value;
    const kv::Outcome outcome = values_.get(key, value);
    outcome.status == Status::kOk ? fmt::print("{}\n", value) : print_failure(outcome);
  }

  void del(std::string_view line) {
    const std::string_view key = word_of(line);
    if (key.empty()) return fmt::print("Usage: del <key>\n");
    const kv::Outcome outcome = values_.erase(key);
    outcome.status == Status::kOk ? fmt::print("OK\n") : print_failure(outcome);
  }

  void cas(std::string_view line) {
    const std::string_view key = word_of(line);
    const auto expected = number_in(word_of(line));
    const std::string_view value = rest_of(line);
    if (key.empty() || !expected || value.empty())
      return fmt::print("Usage: cas <key> <expected_version> <new_value>\n");
    const kv::Outcome outcome = values_.cas(key, *expected, value);
    if (outcome.status == Status::kOk) return fmt::print("OK (new version: {})\n", outcome.version);
    if (outcome.status == Status::kVersionMismatch)
      return fmt::print("CAS FAILED (current version: {})\n", outcome.version);
    print_failure(outcome);
  }

  /// As rdma_kv's, with the cause behind the code.
  void print_failure(const kv::Outcome& outcome) {
    if (outcome.status == Status::kNotFound) return fmt::print("(nil)\n");
    fmt::print("ERROR: {} ({})\n", api::c::code_of(outcome.status), explain(outcome, values_.connection_error()));
  }

  void bench(std::string_view line) {
    const std::string_view word = word_of(line);
    const auto given = word.empty() ? kUsualOperations : number_in(word).value_or(0);
    if (given == 0 || given > kMostOperations)
      return fmt::print("Usage: bench <num>, with 1 to {} operations\n", kMostOperations);
    fmt::print("\n=== Running Benchmark ===\nOperations: {}\n", given);
    const std::string value(kBenchValueBytes, 'A');
    std::string_view got;
    phase("PUT", given, [&](std::string_view key) { return values_.put(key, value); });
    phase("GET", given, [&](std::string_view key) { return values_.get(key, got); });
    phase("DELETE", given, [&](std::string_view key) { return values_.erase(key); });
    fmt::print("\n=========================\n");
  }

  template <class Operation>
  void phase(std::string_view name, std::uint64_t operations, Operation&& operation) {
    std::uint64_t succeeded = 0, done = 0;
    const std::uint64_t begin = ticks_now();
    for (; done < operations && values_.connection_error().status() == Status::kOk; ++done) {
      const std::string key = fmt::format("benchmark_key_{:08}", done);
      if (operation(key).status == Status::kOk) ++succeeded;
    }
    const double seconds = std::max(static_cast<double>(ticks_now() - begin) / ticks_per_us() / 1e6, 1e-9);
    fmt::print("\n{}: {}/{} successful in {:.3f} seconds\n", name, succeeded, operations, seconds);
    fmt::print("{} throughput: {:.2f} ops/sec\n", name, static_cast<double>(done) / seconds);
  }

  Values& values_;
};

Exit converse(const kv::ClientOptions& options, Values::Versions versions) {
  const bool is_socket = options.transport.bootstrap == Bootstrap::kSocket;
  fmt::print("=== RDMA KV Store Client ===\n");
  fmt::print("Connecting to {} ({} mode)...\n", endpoint(options.address, options.port),
             is_socket ? "Socket" : "RDMA CM");
  std::fflush(stdout);
  const auto client = connect_or_complain({.options = options});
  if (!client) return Exit::kError;
  fmt::print("Connected!\n");
  Values values(*client, options.timeout, versions);
  const Exit exit = Prompt(values).run();
  fmt::print("Goodbye!\n");
  return std::fflush(stdout) == 0 ? exit : Exit::kError;
}

}  // namespace

Exit run_kv_client(int argc, char** argv) {
  kv::ClientOptions options{.port = kRdmaKvPort};
  auto versions = Values::Versions::kOfKey;
  Exit exit = Exit::kDone;
  CLI::App app("A prompt to a key-value store, with the command line of rdma_kv's client.\n", "kv_client");
  app.set_version_flag("--version", "kv_client " VERBENA_VERSION);
  add_address(app, options.address, "the server's address or name; required");
  add_number(app, "-p,--port", options.port, "the server's port", 1, 65535);
  add_transport_options(app, options.transport);
  add_timeout(app, options, "how long to wait for the server");
  app.add_flag_callback(
      "--server-versions", [&versions] { versions = Values::Versions::kOfServer; },
      "versions and values as verbena-kv has them, instead of a count for each key");
  app.callback([&] {
    exit = options.address.empty() ? usage(app, "-a, the server's address, is required") : converse(options, versions);
  });
  return run_parsed(app, argc, argv, exit);
}

}  // namespace verbena::programs
