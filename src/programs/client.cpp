// Commands with one operation each: put, get, cas, del and stats.
#include "base/text.hpp"
#include "programs/commands.hpp"
#include "programs/files.hpp"
#include "programs/statistics.hpp"

#include <fmt/core.h>

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

Exit finish(const kv::Client& client, const ItemArguments& item, const kv::Outcome& outcome) {
  if (outcome.status == Status::kOk) return Exit::kDone;
  complain("{}: {}", quoted_bytes(item.key), explain(outcome, client.connection_error()));
  return exit_of(outcome.status);
}

/// Pauses for `time`, or until nobody reads stdout any more: the next print then ends the program.
void pause_while_read(std::chrono::milliseconds time) {
  pollfd out{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  (void)::poll(&out, 1, static_cast<int>(time.count()));
}

/// Reads the value from the command line, a file or stdin. False after a complaint.
bool read_value(const ItemArguments& item, std::size_t most, std::vector<std::byte>& storage,
                std::span<const std::byte>& value) {
  if (item.value) {
    value = bytes_of_text(*item.value);
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

/// Stores the value with `operation` and prints its version.
template <class Operation>
Exit store(const ConnectArguments& where, const ItemArguments& item, Operation&& operation) {
  const auto client = connect_or_complain(where);
  std::vector<std::byte> storage;
  std::span<const std::byte> value;
  if (!client || !read_value(item, client->max_value_bytes(), storage, value)) return Exit::kError;
  const kv::Outcome outcome = operation(*client, value);
  if (outcome.status != Status::kOk) return finish(*client, item, outcome);
  return write_out(fmt::format("{}\n", outcome.version));
}

}  // namespace

std::unique_ptr<kv::Client> connect_or_complain(const ConnectArguments& where) {
  auto client = kv::Client::connect(where.options);
  if (client && where.is_verbose) fmt::print(stderr, "verbena-kv: {}\n", (*client)->description());
  if (client) return std::move(*client);
  complain("cannot connect to {}: {}: {}", endpoint(where.options.address, where.options.port),
           to_string(client.error().status()), by_option(client.error().text()));
  return nullptr;
}

Exit run_put(const ConnectArguments& where, const ItemArguments& item) {
  return store(where, item, [&](kv::Client& client, std::span<const std::byte> value) {
    return client.put(bytes_of_text(item.key), value, {.time_to_live = item.ttl});
  });
}

Exit run_cas(const ConnectArguments& where, const ItemArguments& item) {
  return store(where, item, [&](kv::Client& client, std::span<const std::byte> value) {
    return client.put(bytes_of_text(item.key), value, {.time_to_live = item.ttl, .expected = item.version});
  });
}

Exit run_get(const ConnectArguments& where, const ItemArguments& item) {
  const auto client = connect_or_complain(where);
  if (!client) return Exit::kError;
  std::vector<std::byte> value;
  const kv::Outcome outcome = get_whole(*client, item.key, value);
  if (outcome.status != Status::kOk) return finish(*client, item, outcome);
  if (where.is_verbose) {
    const double left_s = std::chrono::duration<double>(outcome.time_left).count();
    fmt::print(stderr, "verbena-kv: version {}{}\n", outcome.version,
               left_s > 0 ? fmt::format(", {:.3f} s to live", left_s) : "");
  }
  const std::string_view text = text_of(std::span(value).first(outcome.length));
  const Exit written = write_out(text);
  // The prompt goes on a line of its own; a file gets the value and nothing else.
  const bool is_open = ::isatty(STDOUT_FILENO) == 1 && !text.ends_with('\n');
  return written == Exit::kDone && is_open ? write_out("\n") : written;
}

Exit run_del(const ConnectArguments& where, const ItemArguments& item) {
  const auto client = connect_or_complain(where);
  if (!client) return Exit::kError;
  return finish(*client, item, client->erase(bytes_of_text(item.key)));
}

Exit run_stats(const ConnectArguments& where, const StatsArguments& stats) {
  const auto client = connect_or_complain(where);
  if (!client) return Exit::kError;
  std::unique_ptr<kv::ServerStatistics> before;
  for (std::uint64_t then = 0;;) {
    const auto statistics = client->server_statistics(Deadline::after(where.options.timeout));
    const std::uint64_t now = ticks_now();
    if (!statistics) return error_exit("cannot read the server's statistics: {}", statistics.error().text());
    const double seconds = static_cast<double>(now - std::exchange(then, now)) / ticks_per_us() / 1e6;
    const std::string text = stats.json ? statistics_json(*statistics)
                             : before   ? interval_text(*before, *statistics, seconds) + '\n'
                                        : statistics_text(*statistics) + (stats.watch_s ? "\n" : "");
    const Exit printed = write_out(text);
    if (!stats.watch_s || printed != Exit::kDone) return printed;
    before = std::make_unique<kv::ServerStatistics>(*statistics);
    pause_while_read(std::chrono::seconds{*stats.watch_s});
  }
}

}  // namespace verbena::programs
