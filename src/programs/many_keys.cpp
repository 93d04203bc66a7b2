#include "programs/many_keys.hpp"

#include "base/text.hpp"
#include "programs/environment.hpp"
#include "programs/files.hpp"
#include "programs/shell_words.hpp"

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <vector>

namespace verbena::programs {
namespace {

/// Keys in a batch.
constexpr std::size_t kAtOnce = 64;
/// A value of a batch up to this size comes with it; a longer one takes a get of its own.
constexpr std::size_t kShort = kv::kEagerBytes;
/// A flush of a terabyte of small items takes minutes. A dead server ends it at once.
constexpr std::chrono::minutes kFlushTime{30};

Exit fail_keys(const kv::Client& client, std::string_view prefix, Status status) {
  complain("keys {}...: {}", quoted_bytes(prefix), explain({.status = status}, client.connection_error()));
  return exit_of(status);
}

/// kOk, or the status after a complaint.
Status list(kv::Client& client, std::string_view prefix, std::vector<std::string>& keys) {
  kv::KeyPage page;
  for (kv::KeyCursor cursor; !cursor.is_over;) {
    if (const Status status = client.keys(bytes_of_text(prefix), cursor, page); status != Status::kOk) {
      (void)fail_keys(client, prefix, status);
      return status;
    }
    for (const kv::Key key : page) keys.emplace_back(text_of(key));
  }
  // A key that moved meanwhile may have come twice.
  std::ranges::sort(keys);
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  return Status::kOk;
}

Exit fail_key(const kv::Client& client, std::string_view key, const kv::Outcome& outcome) {
  complain("{}: {}", quoted_bytes(key), explain(outcome, client.connection_error()));
  return exit_of(outcome.status);
}

Exit fail_cell(std::string_view key, const Error& error) {
  complain("{}: {}: {}", quoted_bytes(key), to_string(error.status()), by_option(error.text()));
  return exit_of(error.status());
}

Exit print_word(const kv::Client& client, std::string_view key, Status status, std::uint64_t word) {
  return status == Status::kOk ? write_out(fmt::format("{}\n", word)) : fail_key(client, key, {.status = status});
}

}  // namespace

Exit print_keys(kv::Client& client, const KeysArguments& arguments) {
  std::vector<std::string> keys;
  if (const Status status = list(client, arguments.prefix, keys); status != Status::kOk) return exit_of(status);
  if (arguments.is_count) return write_out(fmt::format("{}\n", keys.size()));
  std::string text;
  for (const std::string& key : keys) {
    text += arguments.is_raw ? key : escaped(key);
    text.push_back(arguments.is_raw ? '\0' : '\n');
  }
  return write_out(text);
}

Exit flush_keys(kv::Client& client, std::string_view prefix) {
  std::uint64_t erased = 0;
  const Status status = client.flush(bytes_of_text(prefix), erased, Deadline::after(kFlushTime));
  if (status == Status::kOk) return write_out(fmt::format("{} key{} erased\n", erased, erased == 1 ? "" : "s"));
  if (erased != 0) complain("{} keys were erased before this:", erased);
  return fail_keys(client, prefix, status);
}

Exit get_many(kv::Client& client, std::span<const std::string> keys) {
  std::vector<std::byte> values(kAtOnce * kShort), longer;
  std::array<kv::GetRequest, kAtOnce> requests;
  Exit exit = Exit::kDone;
  std::string text;
  for (std::size_t from = 0; from < keys.size(); from += kAtOnce) {
    const auto some = keys.subspan(from, std::min(kAtOnce, keys.size() - from));
    for (std::size_t i = 0; i < some.size(); ++i)
      requests[i] = {
          .key = bytes_of_text(some[i]), .out = std::span(values).subspan(i * kShort, kShort), .outcome = {}};
    client.get(std::span(requests).first(some.size()));
    for (std::size_t i = 0; i < some.size(); ++i) {
      kv::Outcome outcome = requests[i].outcome;
      std::span<const std::byte> value = requests[i].out;
      if (outcome.status == Status::kBufferTooSmall) {
        outcome = get_whole(client, some[i], longer);
        value = longer;
      }
      if (outcome.status != Status::kOk) {
        exit = worse(exit, fail_key(client, some[i], outcome));
        continue;
      }
      append(text, "{}\t{}\n", escaped(some[i]), escaped(text_of(value.first(outcome.length))));
    }
    exit = worse(exit, write_out(std::exchange(text, {})));
  }
  return exit;
}

Exit put_many(kv::Client& client, std::span<const std::string> words, const kv::PutOptions& options) {
  std::array<kv::PutRequest, kAtOnce> requests;
  Exit exit = Exit::kDone;
  std::string text;
  for (std::size_t from = 0; from < words.size(); from += 2 * kAtOnce) {
    const auto some = words.subspan(from, std::min(2 * kAtOnce, words.size() - from));
    const auto puts = std::span(requests).first(some.size() / 2);
    for (std::size_t i = 0; i < puts.size(); ++i)
      puts[i] = {.key = bytes_of_text(some[2 * i]),
                 .value = bytes_of_text(some[2 * i + 1]),
                 .outcome = {},
                 .options = options};
    client.put(puts);
    for (std::size_t i = 0; i < puts.size(); ++i) {
      if (puts[i].outcome.status == Status::kOk) {
        append(text, "{}\n", puts[i].outcome.version);
      } else {
        exit = worse(exit, fail_key(client, some[2 * i], puts[i].outcome));
      }
    }
    exit = worse(exit, write_out(std::exchange(text, {})));
  }
  return exit;
}

Exit add_to_cell(kv::Client& client, const std::string& key, std::uint64_t by) {
  const auto cell = client.open_cell(bytes_of_text(key), 0);
  if (!cell) return fail_cell(key, cell.error());
  std::uint64_t before = 0;
  const Status status = client.fetch_add(*cell, by, before);
  return print_word(client, key, status, before + by);
}

Exit print_cell(kv::Client& client, const std::string& key) {
  // `open_cell` would make one.
  const kv::Outcome there = client.get(bytes_of_text(key), {});
  if (there.status == Status::kOk || there.status == Status::kBufferTooSmall)
    return fail_key(client, key, {.status = Status::kWrongKind});
  if (there.status != Status::kWrongKind) return fail_key(client, key, there);
  const auto cell = client.open_cell(bytes_of_text(key), 0);
  if (!cell) return fail_cell(key, cell.error());
  std::uint64_t word = 0;
  const Status status = client.read(*cell, word);
  return print_word(client, key, status, word);
}

std::optional<std::uint64_t> parse_step(std::string_view text) noexcept {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  std::uint64_t forward = 0;
  if (const auto parsed = std::from_chars(begin, end, forward); parsed.ec == std::errc() && parsed.ptr == end)
    return forward;
  std::int64_t back = 0;
  if (const auto parsed = std::from_chars(begin, end, back); parsed.ec == std::errc() && parsed.ptr == end)
    return static_cast<std::uint64_t>(back);
  return std::nullopt;
}

}  // namespace verbena::programs
