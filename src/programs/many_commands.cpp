// keys, flush, mget, mput, incr and cell as commands, each with a connection of its own.
#include "programs/files.hpp"
#include "programs/many_keys.hpp"

#include <fmt/core.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace verbena::programs {
namespace {

template <class Body>
Exit on_client(const ConnectArguments& where, Body&& body) {
  const auto client = connect_or_complain(where);
  return client ? body(*client) : Exit::kError;
}

/// Asks on stderr; the answer is a line of stdin.
bool is_confirmed(const std::string& question) {
  fmt::print(stderr, "{} [y/N] ", question);
  std::fflush(stderr);
  char* text = nullptr;
  std::size_t capacity = 0;
  const ssize_t length = ::getline(&text, &capacity, stdin);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  const std::string_view answer(text, length > 0 ? static_cast<std::size_t>(length) : 0);
  return answer == "y\n" || answer == "Y\n" || answer == "yes\n";
}

}  // namespace

Exit run_keys(const ConnectArguments& where, const KeysArguments& keys) {
  return on_client(where, [&](kv::Client& client) { return print_keys(client, keys); });
}

Exit run_flush(const ConnectArguments& where, const FlushArguments& flush) {
  const std::string at = endpoint(where.options.address, where.options.port);
  const std::string question =
      flush.is_all ? fmt::format("erase all keys of {}?", at)
                   : fmt::format("erase the keys of {} that begin with {}?", at, quoted_bytes(flush.prefix));
  if (!flush.is_sure && ::isatty(STDIN_FILENO) != 1)
    return error_exit("flush: stdin is no terminal, so nobody can be asked: confirm with --yes");
  if (!flush.is_sure && !is_confirmed(question)) return error_exit("flush: nothing is erased: the answer was not y");
  return on_client(where, [&](kv::Client& client) { return flush_keys(client, flush.prefix); });
}

Exit run_mget(const ConnectArguments& where, std::span<const std::string> keys) {
  return on_client(where, [&](kv::Client& client) { return get_many(client, keys); });
}

Exit run_mput(const ConnectArguments& where, std::span<const std::string> words, const kv::PutOptions& options) {
  return on_client(where, [&](kv::Client& client) { return put_many(client, words, options); });
}

Exit run_incr(const ConnectArguments& where, const std::string& key, std::uint64_t by) {
  return on_client(where, [&](kv::Client& client) { return add_to_cell(client, key, by); });
}

Exit run_cell(const ConnectArguments& where, const std::string& key) {
  return on_client(where, [&](kv::Client& client) { return print_cell(client, key); });
}

}  // namespace verbena::programs
