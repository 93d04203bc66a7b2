// Commands of one operation each: put, get, cas, del and stats.
#include "programs/commands.hpp"
#include "programs/files.hpp"
#include "programs/option_words.hpp"
#include "programs/statistics.hpp"
#include "programs/values.hpp"

#include <fmt/core.h>

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <span>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

Exit finish(const kv::Client& client, const ItemArguments& item, const kv::Outcome& outcome) {
  if (outcome.status == Status::kOk) return Exit::kDone;
  complain("{}: {}", quoted_bytes(item.key), explain(outcome, client.connection_error()));
  return exit_of(outcome.status);
}

/// stdout is checked: a full disk or a closed pipe must not look like success.
Exit print_or_complain(std::string_view text) {
  const auto written = write_all(STDOUT_FILENO, "standard output", std::as_bytes(std::span(text)));
  if (written) return Exit::kDone;
  complain("{}", written.error().text());
  return Exit::kError;
}

/// For so long, or until nobody reads stdout any more: then the next print ends it.
void pause_while_read(std::chrono::milliseconds time) {
  pollfd out{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  (void)::poll(&out, 1, static_cast<int>(time.count()));
}

Exit finish_with_version(const kv::Client& client, const ItemArguments& item, const kv::Outcome& outcome) {
  if (outcome.status != Status::kOk) return finish(client, item, outcome);
  return print_or_complain(fmt::format("{}\n", outcome.version));
}

/// The value from the command line, a file or stdin. False after a complaint.
bool read_value(const ItemArguments& item, std::size_t most, std::vector<std::byte>& storage,
                std::span<const std::byte>& value) {
  if (item.value) {
    value = std::as_bytes(std::span(*item.value));
    return true;
  }
  const auto read =
      item.file == "-" ? read_all(STDIN_FILENO, "standard input", most, storage) : read_file(*item.file, most, storage);
  if (!read) {
    complain("{}", read.error().text());
    return false;
  }
  value = storage;
  return true;
}

}  // namespace

kv::ClientOptions client_options(const ConnectArguments& arguments) {
  kv::ClientOptions options;
  options.transport = arguments.transport;
  options.address = arguments.address;
  options.port = arguments.port;
  options.connect_timeout = std::chrono::milliseconds{arguments.timeout_ms};
  options.timeout = options.connect_timeout;
  options.wait = arguments.wait;
  options.allowed_uids = arguments.allowed_uids;
  return options;
}

std::unique_ptr<kv::Client> connect_or_complain(const kv::ClientOptions& options, const ConnectArguments& where) {
  auto client = kv::Client::connect(options);
  if (client && where.is_verbose) fmt::print(stderr, "verbena-kv: {}\n", (*client)->description());
  if (client) return std::move(*client);
  complain("cannot connect to {}: {}: {}", endpoint(options.address, options.port), to_string(client.error().status()),
           by_option(client.error().text()));
  return nullptr;
}

Exit run_put(const ConnectArguments& where, const ItemArguments& item) {
  const auto client = connect_or_complain(client_options(where), where);
  std::vector<std::byte> storage;
  std::span<const std::byte> value;
  if (!client || !read_value(item, client->max_value_bytes(), storage, value)) return Exit::kError;
  return finish_with_version(*client, item, client->put(as_key(item.key), value));
}

Exit run_cas(const ConnectArguments& where, const ItemArguments& item) {
  const auto client = connect_or_complain(client_options(where), where);
  std::vector<std::byte> storage;
  std::span<const std::byte> value;
  if (!client || !read_value(item, client->max_value_bytes(), storage, value)) return Exit::kError;
  return finish_with_version(*client, item, client->cas(as_key(item.key), item.version, value));
}

Exit run_get(const ConnectArguments& where, const ItemArguments& item) {
  const auto client = connect_or_complain(client_options(where), where);
  if (!client) return Exit::kError;
  std::vector<std::byte> value;
  const kv::Outcome outcome = get_whole(*client, item.key, value);
  if (outcome.status != Status::kOk) return finish(*client, item, outcome);
  const auto written = write_all(STDOUT_FILENO, "standard output", std::span(value).first(outcome.length));
  if (written) return Exit::kDone;
  complain("{}", written.error().text());
  return Exit::kError;
}

Exit run_del(const ConnectArguments& where, const ItemArguments& item) {
  const auto client = connect_or_complain(client_options(where), where);
  if (!client) return Exit::kError;
  return finish(*client, item, client->erase(as_key(item.key)));
}

Exit run_stats(const ConnectArguments& where, const StatsArguments& stats) {
  const kv::ClientOptions options = client_options(where);
  const auto client = connect_or_complain(options, where);
  if (!client) return Exit::kError;
  std::unique_ptr<kv::ServerStatistics> before;
  for (std::uint64_t then = 0;;) {
    const auto statistics = client->server_statistics(Deadline::after(options.timeout));
    const std::uint64_t now = ticks_now();
    if (!statistics) {
      complain("cannot read the server's statistics: {}", statistics.error().text());
      return Exit::kError;
    }
    const double seconds = static_cast<double>(now - std::exchange(then, now)) / ticks_per_us() / 1e6;
    const std::string text = stats.json ? statistics_json(*statistics)
                             : before   ? interval_text(*before, *statistics, seconds) + '\n'
                                        : statistics_text(*statistics) + (stats.watch_s ? "\n" : "");
    const Exit printed = print_or_complain(text);
    if (!stats.watch_s || printed != Exit::kDone) return printed;
    before = std::make_unique<kv::ServerStatistics>(*statistics);
    pause_while_read(std::chrono::seconds{*stats.watch_s});
  }
}

}  // namespace verbena::programs
