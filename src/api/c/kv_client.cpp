// Clients of verbena/kv.h: calls, batches, and calls on C strings.
#include "api/c/arguments.hpp"
#include "api/c/kv.hpp"
#include "api/c/transport.hpp"

#include "base/error.hpp"

#include <verbena/compat/key_versions.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace verbena::api::c {
namespace {

/// Marks the calling thread as the client's only user.
class Use {
 public:
  explicit Use(verbena_kv_client& client) noexcept
      : client_(client), is_ours_(!client.is_busy.exchange(true, std::memory_order_acquire)) {}
  ~Use() {
    if (is_ours_) client_.is_busy.store(false, std::memory_order_release);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  [[nodiscard]] explicit operator bool() const noexcept { return is_ours_; }

 private:
  verbena_kv_client& client_;
  const bool is_ours_;
};

/// The code of an operation's status. The client has named a wrong argument; for a dead connection it gives the reason.
[[gnu::cold]] int tell_failure(const kv::Client& client, Status status, const char* call,
                               std::uint64_t failures_before) noexcept {
  if (failure_count() != failures_before) return code_of(note_as(as_written(call), last_failure()));
  if (damage_of(status) == Damage::kConnection || status == Status::kTimedOut)
    if (const Error error = client.connection_error(); error.status() == status)
      return code_of(note_as(as_written(call), error));
  return tell(status, call);
}

[[gnu::cold]] int refuse_unconnected(const char* call) noexcept {
  return code_of(note(Status::kClosed, as_written(call), "there is no connection: call kv_client_connect first"));
}

/// The code of `body` for the client itself.
template <class Body>
int on_handle(kv_client_t* client, const char* call, Body&& body) noexcept {
  if (!is_given(call, {"client", client})) return KV_ERR_BAD_ARGUMENT;
  if (is_forked()) [[unlikely]]
    return refuse_forked(call);
  const Use use(*client);
  return use ? body(*client)
             : code_of(note(Status::kBusy, as_written(call),
                            "another thread is in a call of this client: make one for each"));
}

/// The same for a `body` that returns a Result.
template <class Body>
int set_up(kv_client_t* client, const char* call, Body&& body) noexcept {
  return on_handle(client, call, [&](kv_client_t& of) { return told(call, [&] { return body(of); }); });
}

/// The code of `body`'s status for the connection, if all arguments are given.
template <class Body, class... Arguments>
int on_connection(kv_client_t* client, const char* call, Body&& body, const Arguments&... arguments) noexcept {
  if (!(is_given(call, arguments) && ...)) return KV_ERR_BAD_ARGUMENT;
  return on_handle(client, call, [&](kv_client_t& of) {
    if (!of.client) return refuse_unconnected(call);
    const std::uint64_t failures = failure_count();
    const Status status = body(*of.client);
    return status == Status::kOk ? KV_OK : tell_failure(*of.client, status, call, failures);
  });
}

/// Whether the arrays of a batch are given, if it has items.
[[nodiscard]] bool are_given(const char* call, auto* keys, auto* klens, auto* values, auto* vlens,
                             std::size_t count) noexcept {
  return is_given(call, {"keys", keys, "count", count}) && is_given(call, {"klens", klens, "count", count}) &&
         is_given(call, {"values", values, "count", count}) && is_given(call, {"vlens", vlens, "count", count});
}

/// Items that one batch of the client takes.
constexpr std::size_t kItemsAtOnce = 64;

void carry_out(kv::Client& client, std::span<kv_get_item_t> items, const kv::PutOptions& /*of puts*/,
               Deadline deadline) noexcept {
  std::array<kv::GetRequest, kItemsAtOnce> requests;
  for (std::size_t i = 0; i < items.size(); ++i) {
    requests[i].key = bytes_at(items[i].key, items[i].klen);
    requests[i].out = std::span(static_cast<std::byte*>(items[i].buf), items[i].len);
  }
  client.get(std::span(requests).first(items.size()), deadline);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const kv::Outcome& outcome = requests[i].outcome;
    items[i].code = code_of(outcome.status);
    items[i].version = outcome.status == Status::kOk ? outcome.version : 0;
    if (outcome.status == Status::kOk || outcome.status == Status::kBufferTooSmall) items[i].len = outcome.length;
  }
}

void carry_out(kv::Client& client, std::span<kv_put_item_t> items, const kv::PutOptions& options,
               Deadline deadline) noexcept {
  std::array<kv::PutRequest, kItemsAtOnce> requests;
  for (std::size_t i = 0; i < items.size(); ++i) {
    requests[i].key = bytes_at(items[i].key, items[i].klen);
    requests[i].value = bytes_at(items[i].value, items[i].vlen);
    requests[i].options = options;
  }
  client.put(std::span(requests).first(items.size()), deadline);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const kv::Outcome& outcome = requests[i].outcome;
    items[i].code = code_of(outcome.status);
    items[i].version = outcome.status == Status::kOk ? outcome.version : 0;
  }
}

/// The first item of a batch whose code is not KV_OK.
struct Verdict {
  int code = KV_OK;
  std::size_t item = 0;
};

/// Returns the verdict's code; remembers it as the failure.
int tell_verdict(const kv::Client& client, const Verdict& verdict, const char* call) noexcept {
  if (verdict.code == KV_OK) return KV_OK;
  const Error error = client.connection_error();
  if (code_of(error.status()) == verdict.code) return code_of(note_as(as_written(call), error));
  return code_of(
      note(status_of(verdict.code), as_written(call), "item {}: {}", verdict.item, kv_error_string(verdict.code)));
}

// Otherwise a batch repeated with the lengths that it returned could have SIZE_MAX as capacity.
[[nodiscard]] bool is_possible(const kv_get_item_t& item) noexcept {
  return (item.key != nullptr || item.klen == 0) && (item.buf != nullptr || item.len == 0) && item.len <= PTRDIFF_MAX;
}
[[nodiscard]] bool is_possible(const kv_put_item_t& item) noexcept {
  return (item.key != nullptr || item.klen == 0) && (item.value != nullptr || item.vlen == 0);
}

/// Carries out a batch of `count` items, some at a time and all under one deadline. Checks all pointers first: a bad
/// one refuses the whole batch. Sets `has_begun` before the first `end`.
template <class Item, class Make, class End>
int try_items(kv_client_t* client, std::size_t count, const char* call, const Make& item, const End& end,
              const kv::PutOptions& options, bool& has_begun) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    if (!is_possible(item(i)))
      return refuse(call, "item {} must have no null pointer with a length, and no capacity of SIZE_MAX", i);
  return on_handle(client, call, [&](kv_client_t& of) {
    if (!of.client) return refuse_unconnected(call);
    has_begun = true;
    const Deadline deadline = Deadline::after(of.options.timeout);
    Verdict verdict;
    std::array<Item, kItemsAtOnce> items;
    for (std::size_t from = 0; from < count; from += kItemsAtOnce) {
      const std::span some = std::span(items).first(std::min(kItemsAtOnce, count - from));
      for (std::size_t i = 0; i < some.size(); ++i) some[i] = item(from + i);
      carry_out(*of.client, some, options, deadline);
      for (std::size_t i = 0; i < some.size(); ++i) {
        if (verdict.code == KV_OK && some[i].code != KV_OK) verdict = {some[i].code, from + i};
        end(from + i, some[i]);
      }
    }
    return tell_verdict(*of.client, verdict, call);
  });
}

/// Runs a batch of `count` items: `item(i)` gives an item, and `end(i, item)` gets its outcome, which is the batch's
/// where that is refused as a whole.
template <class Item, class Make, class End>
int on_items(kv_client_t* client, std::size_t count, const char* call, const Make& item, const End& end,
             const kv::PutOptions& options = {}) noexcept {
  bool has_begun = false;
  const int code = try_items<Item>(client, count, call, item, end, options, has_begun);
  if (has_begun) return code;
  for (std::size_t i = 0; i < count; ++i) {
    Item refused = item(i);
    refused.code = code;
    refused.version = 0;
    end(i, refused);
  }
  return code;
}

/// The same for an array of items.
template <class Item>
int on_items(kv_client_t* client, Item* items, std::size_t count, const char* call,
             const kv::PutOptions& options = {}) noexcept {
  if (!is_given(call, {"items", items, "count", count})) return KV_ERR_BAD_ARGUMENT;
  return on_items<Item>(
      client, count, call, [&](std::size_t i) { return items[i]; },
      [&](std::size_t i, const Item& item) { items[i] = item; }, options);
}

/// The code of `body` for a cell's word; sets `*found`, unless null, to the value found there.
template <class Body, class... Arguments>
int on_cell(kv_client_t* client, const kv_cell_t* cell, std::uint64_t* found, const char* call, Body&& body,
            const Arguments&... arguments) noexcept {
  clear(found);
  const auto on_word = [&](kv::Client& of) {
    std::uint64_t there = 0;
    const Status status = body(of, kv::Cell{.address = cell->address, .worker = cell->worker}, there);
    if (status == Status::kOk && found != nullptr) *found = there;
    return status;
  };
  return on_connection(client, call, on_word, arguments..., Argument{"cell", cell});
}

/// "host", "host:port", "[address]:port" or "address" with colons of its own.
Result<std::pair<std::string, std::uint16_t>> split_server(std::string_view server) {
  std::string_view host = server;
  std::string_view port;
  const std::size_t colon = server.rfind(':');
  if (server.starts_with('[')) {
    const std::size_t end = server.find(']');
    const bool is_whole = end != std::string_view::npos;
    host = is_whole ? server.substr(1, end - 1) : server;
    if (is_whole && end + 1 < server.size() && server[end + 1] == ':') port = server.substr(end + 2);
    if (!is_whole || (port.empty() && end + 1 != server.size()))
      return fail(Status::kBadArgument, "", 0, "server \"{}\" must be [address] or [address]:port", server);
  } else if (colon != std::string_view::npos && server.find(':') == colon) {
    host = server.substr(0, colon);
    port = server.substr(colon + 1);
    if (port.empty()) return fail(Status::kBadArgument, "", 0, "server \"{}\" lacks its port", server);
  }
  std::uint16_t number = KV_DEFAULT_PORT;
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), number);
  if (!port.empty() && (parsed.ec != std::errc{} || parsed.ptr != port.data() + port.size()))
    return fail(Status::kBadArgument, "", 0, "the port of \"{}\" must be 1 to 65535", server);
  return std::pair{std::string(host), number};
}

/// Attempts for a value that grows between them.
constexpr int kMaxGrowths = 16;

/// Gets the value with a zero after it, in memory from malloc.
kv::Outcome get_string(kv::Client& client, kv::Key key, char*& value) noexcept {
  std::array<std::byte, kv::kEagerBytes> small;
  kv::Outcome outcome = client.get(key, small);
  std::unique_ptr<char, decltype(&std::free)> text(nullptr, std::free);
  const auto make_room = [&] {
    text.reset(static_cast<char*>(std::malloc(outcome.length + 1)));
    return text != nullptr;
  };
  for (int i = 0; outcome.status == Status::kBufferTooSmall && i < kMaxGrowths; ++i) {
    if (!make_room()) return {.status = Status::kNoMemory};
    outcome = client.get(key, std::as_writable_bytes(std::span(text.get(), outcome.length)));
  }
  if (outcome.status != Status::kOk) return outcome;
  if (text == nullptr) {
    if (!make_room()) return {.status = Status::kNoMemory};
    std::copy_n(reinterpret_cast<const char*>(small.data()), outcome.length, text.get());
  }
  text.get()[outcome.length] = '\0';
  value = text.release();
  return outcome;
}

std::span<const std::byte> bytes_of(const char* text) noexcept { return bytes_at(text, std::string_view(text).size()); }

/// Connects `client`, which no other thread knows, or whose `is_busy` this thread has set. Errors: as
/// kv_client_connect.
Result<void> connect_kv(verbena_kv_client& client, const char* address, int port) {
  if (client.client) return fail(Status::kBusy, "", 0, "the client is connected already: kv_client_disconnect first");
  VERBENA_TRY(check_port(port, 0));
  client.options.address = or_empty(address);
  client.options.port = static_cast<std::uint16_t>(port);
  VERBENA_ASSIGN(client.client, kv::Client::connect(client.options));
  return {};
}

}  // namespace
}  // namespace verbena::api::c

using namespace verbena::api;
using namespace verbena::api::c;
using verbena::Result;
using verbena::Status;
using verbena::kv::Cell;
using verbena::kv::Client;
using verbena::kv::Outcome;

kv_client_t* kv_client_create(conn_mode_t mode) {
  kv_client_t* made = nullptr;
  (void)told(__func__, [&]() -> Result<void> {
    VERBENA_ASSIGN(const verbena::Transport transport, transport_of(kModes, mode, nullptr, -1));
    made = new verbena_kv_client(transport.bootstrap);
    return {};
  });
  return made;
}

int kv_client_set_options(kv_client_t* client, const kv_client_options_t* options) {
  return set_up(client, __func__, [&](kv_client_t& of) -> Result<void> {
    VERBENA_TRY(check_given("options", options));
    if (of.client) return fail(Status::kBusy, "", 0, "the client is connected: call this before kv_client_connect");
    const bool is_cm = of.options.transport.bootstrap == verbena::Bootstrap::kCm;
    VERBENA_ASSIGN(of.options, kv_client_options_of(is_cm ? CONN_MODE_CM : CONN_MODE_SOCKET, *options));
    return {};
  });
}

int kv_client_connect(kv_client_t* client, const char* ip, int port) {
  return set_up(client, __func__, [&](kv_client_t& of) { return connect_kv(of, ip, port); });
}

int kv_client_connect_socket(kv_client_t* client, const char* ip, int port, const char* device) {
  return set_up(client, __func__, [&](kv_client_t& of) -> Result<void> {
    if (of.options.transport.bootstrap != verbena::Bootstrap::kSocket)
      return fail(Status::kBadArgument, "", 0,
                  "the client was created with CONN_MODE_CM: create it with CONN_MODE_SOCKET");
    const std::string before = of.options.transport.device;
    if (device != nullptr) of.options.transport.device = device;
    Result<void> connected = connect_kv(of, ip, port);
    of.options.transport.device = before;
    return connected;
  });
}

int kv_client_disconnect(kv_client_t* client) {
  return on_handle(client, __func__, [](kv_client_t& of) {
    of.client.reset();
    return KV_OK;
  });
}

void kv_client_destroy(kv_client_t* client) { delete client; }

int kv_client_put(kv_client_t* client, const void* key, size_t klen, const void* value, size_t vlen) {
  return on_connection(
      client, __func__, [&](Client& of) { return of.put(bytes_at(key, klen), bytes_at(value, vlen)).status; },
      Argument{"key", key, "klen", klen}, Argument{"value", value, "vlen", vlen});
}

namespace {

int get_version(const char* call, kv_client_t* client, const void* key, size_t klen, void* buf, size_t* len,
                uint64_t* version) {
  clear(version);
  const auto get = [&](Client& of) {
    const Outcome outcome = of.get(bytes_at(key, klen), std::span(static_cast<std::byte*>(buf), *len));
    const bool is_here = outcome.status == Status::kOk;
    if (is_here || outcome.status == Status::kBufferTooSmall) *len = outcome.length;
    if (is_here && version != nullptr) *version = outcome.version;
    return outcome.status;
  };
  return on_connection(client, call, get, Argument{"len", len}, Argument{"key", key, "klen", klen},
                       Argument{"buf", buf, "*len", len != nullptr ? *len : 0});
}

}  // namespace

int kv_client_get_version(kv_client_t* client, const void* key, size_t klen, void* buf, size_t* len,
                          uint64_t* version) {
  return get_version(__func__, client, key, klen, buf, len, version);
}

int kv_client_get(kv_client_t* client, const void* key, size_t klen, void* buf, size_t* len) {
  return get_version(__func__, client, key, klen, buf, len, nullptr);
}

int kv_client_cas(kv_client_t* client, const void* key, size_t klen, uint64_t expected, const void* value, size_t vlen,
                  uint64_t* version) {
  clear(version);
  const auto cas = [&](Client& of) {
    const Outcome outcome = of.cas(bytes_at(key, klen), expected, bytes_at(value, vlen));
    const bool is_known = outcome.status == Status::kOk || outcome.status == Status::kVersionMismatch ||
                          outcome.status == Status::kNotFound;
    if (is_known && version != nullptr) *version = outcome.version;
    return outcome.status;
  };
  return on_connection(client, __func__, cas, Argument{"key", key, "klen", klen},
                       Argument{"value", value, "vlen", vlen});
}

int kv_client_delete(kv_client_t* client, const void* key, size_t klen) {
  return on_connection(
      client, __func__, [&](Client& of) { return of.erase(bytes_at(key, klen)).status; },
      Argument{"key", key, "klen", klen});
}

namespace {

/// The code of `body`, a call of `client`'s counted values.
template <class Body, class... Arguments>
int on_counted(kv_client_t* client, const char* call, Body&& body, const Arguments&... arguments) noexcept {
  const auto counted = [&](Client& of) {
    const Outcome outcome = body(client->counted, of, verbena::Deadline::after(client->options.timeout));
    if (outcome.status != Status::kWrongKind) return outcome.status;
    return note(Status::kWrongKind, "",
                "the key has a cell, or a value without a version of its own: put it by kv_client_put_counted");
  };
  return on_connection(client, call, counted, arguments...);
}

}  // namespace

int kv_client_put_counted(kv_client_t* client, const void* key, size_t klen, const void* value, size_t vlen,
                          uint64_t* version) {
  clear(version);
  const auto put = [&](CountedValues& values, Client& of, verbena::Deadline deadline) {
    const Outcome outcome = values.put(of, bytes_at(key, klen), bytes_at(value, vlen), deadline);
    if (outcome.status == Status::kOk && version != nullptr) *version = outcome.version;
    return outcome;
  };
  return on_counted(client, __func__, put, Argument{"key", key, "klen", klen}, Argument{"value", value, "vlen", vlen});
}

int kv_client_get_counted(kv_client_t* client, const void* key, size_t klen, void* buf, size_t* len,
                          uint64_t* version) {
  clear(version);
  const auto get = [&](CountedValues& values, Client& of, verbena::Deadline deadline) {
    std::span<const std::byte> value;
    Outcome outcome = values.get(of, bytes_at(key, klen), value, deadline);
    if (outcome.status != Status::kOk) return outcome;
    const std::size_t capacity = std::exchange(*len, value.size());
    if (value.size() > capacity) return Outcome{.status = Status::kBufferTooSmall};
    std::ranges::copy(value, static_cast<std::byte*>(buf));
    if (version != nullptr) *version = outcome.version;
    return outcome;
  };
  return on_counted(client, __func__, get, Argument{"len", len}, Argument{"key", key, "klen", klen},
                    Argument{"buf", buf, "*len", len != nullptr ? *len : 0});
}

int kv_client_cas_counted(kv_client_t* client, const void* key, size_t klen, uint64_t expected, const void* value,
                          size_t vlen, uint64_t* version) {
  clear(version);
  const auto cas = [&](CountedValues& values, Client& of, verbena::Deadline deadline) {
    const Outcome outcome = values.cas(of, bytes_at(key, klen), expected, bytes_at(value, vlen), deadline);
    const bool is_known = outcome.status == Status::kOk || outcome.status == Status::kVersionMismatch;
    if (is_known && version != nullptr) *version = outcome.version;
    return outcome;
  };
  return on_counted(client, __func__, cas, Argument{"key", key, "klen", klen}, Argument{"value", value, "vlen", vlen});
}

int kv_client_put_ttl(kv_client_t* client, const void* key, size_t klen, const void* value, size_t vlen,
                      int64_t ttl_ms) {
  const auto put = [&](Client& of) {
    const verbena::kv::PutOptions options{.time_to_live = std::chrono::milliseconds(ttl_ms)};
    return of.put(bytes_at(key, klen), bytes_at(value, vlen), options).status;
  };
  return on_connection(client, __func__, put, Argument{"key", key, "klen", klen},
                       Argument{"value", value, "vlen", vlen});
}

int kv_client_get_ttl(kv_client_t* client, const void* key, size_t klen, int64_t* left_ms) {
  clear(left_ms);
  const auto look = [&](Client& of) {
    const Outcome outcome = of.get(bytes_at(key, klen), {});
    const bool is_here = outcome.status == Status::kOk || outcome.status == Status::kBufferTooSmall;
    if (is_here) *left_ms = std::chrono::ceil<std::chrono::milliseconds>(outcome.time_left).count();
    return is_here ? Status::kOk : outcome.status;
  };
  return on_connection(client, __func__, look, Argument{"key", key, "klen", klen}, Argument{"left_ms", left_ms});
}

void* kv_client_allocate(kv_client_t* client, size_t bytes) {
  void* memory = nullptr;
  (void)on_connection(client, __func__, [&](Client& of) {
    if (bytes == 0) return note(Status::kBadArgument, "", "bytes must be at least 1; got 0");
    memory = of.allocate(bytes).data();
    if (memory != nullptr) return Status::kOk;
    return note(Status::kLimit, "", "bytes must be at most what is left of buffer_bytes; got {}: raise that", bytes);
  });
  return memory;
}

// --- cells

int kv_client_cell_open(kv_client_t* client, const void* key, size_t klen, uint64_t initial, kv_cell_t* cell) {
  clear(cell);
  const auto open = [&](Client& of) {
    const Result<Cell> opened = of.open_cell(bytes_at(key, klen), initial);
    if (!opened) return note(opened.error());
    *cell = {.address = opened->address, .worker = opened->worker, .is_new = opened->is_new ? 1u : 0u};
    return Status::kOk;
  };
  return on_connection(client, __func__, open, Argument{"cell", cell}, Argument{"key", key, "klen", klen});
}

int kv_client_cell_fetch_add(kv_client_t* client, const kv_cell_t* cell, uint64_t delta, uint64_t* old) {
  return on_cell(client, cell, old, __func__,
                 [=](Client& of, const Cell& at, uint64_t& there) { return of.fetch_add(at, delta, there); });
}

int kv_client_cell_compare_swap(kv_client_t* client, const kv_cell_t* cell, uint64_t expected, uint64_t desired,
                                uint64_t* old) {
  return on_cell(client, cell, old, __func__, [=](Client& of, const Cell& at, uint64_t& there) {
    return of.compare_swap(at, expected, desired, there);
  });
}

int kv_client_cell_read(kv_client_t* client, const kv_cell_t* cell, uint64_t* value) {
  return on_cell(
      client, cell, value, __func__, [](Client& of, const Cell& at, uint64_t& there) { return of.read(at, there); },
      Argument{"value", value});
}

// --- many keys

int kv_client_keys(kv_client_t* client, const void* prefix, size_t plen, kv_cursor_t* cursor, kv_key_page_t* page) {
  if (page != nullptr) page->count = page->length = 0;
  const auto list = [&](Client& of) {
    verbena::kv::KeyCursor at{.place = cursor->place,
                              .moves = cursor->moves,
                              .seal = cursor->seal,
                              .worker = cursor->worker,
                              .is_over = cursor->is_over != 0};
    verbena::kv::KeyPage keys;
    const Status status = of.keys(bytes_at(prefix, plen), at, keys);
    page->count = keys.count;
    page->length = keys.length;
    std::memcpy(page->bytes, keys.bytes.data(), keys.length);
    *cursor = {
        .place = at.place, .moves = at.moves, .seal = at.seal, .worker = at.worker, .is_over = at.is_over ? 1u : 0u};
    return status;
  };
  return on_connection(client, __func__, list, Argument{"cursor", cursor}, Argument{"page", page},
                       Argument{"prefix", prefix, "plen", plen});
}

const void* kv_key_page_next(const kv_key_page_t* page, size_t* at, size_t* klen) {
  constexpr std::size_t kLengthBytes = 2;
  static_assert(KV_KEY_PAGE_BYTES == verbena::kv::KeyPage::kBytes);
  clear(klen);
  if (page == nullptr || at == nullptr || klen == nullptr) return nullptr;
  const std::size_t end = std::min<std::size_t>(page->length, KV_KEY_PAGE_BYTES);
  if (*at >= end || end - *at <= kLengthBytes) return nullptr;
  const std::size_t length = page->bytes[*at] | std::size_t{page->bytes[*at + 1]} << 8;
  if (length > end - *at - kLengthBytes) return nullptr;
  const unsigned char* const key = page->bytes + *at + kLengthBytes;
  *at += kLengthBytes + length;
  *klen = length;
  return key;
}

int kv_client_flush(kv_client_t* client, const void* prefix, size_t plen, uint64_t* erased) {
  clear(erased);
  const auto flush = [&](Client& of) {
    std::uint64_t count = 0;
    const Status status = of.flush(bytes_at(prefix, plen), count);
    if (erased != nullptr) *erased = count;
    return status;
  };
  return on_connection(client, __func__, flush, Argument{"prefix", prefix, "plen", plen});
}

// --- batches

int kv_client_get_items(kv_client_t* client, kv_get_item_t* items, size_t count) {
  return on_items(client, items, count, __func__);
}

int kv_client_put_items(kv_client_t* client, kv_put_item_t* items, size_t count) {
  return on_items(client, items, count, __func__);
}

int kv_client_put_items_ttl(kv_client_t* client, kv_put_item_t* items, size_t count, int64_t ttl_ms) {
  return on_items(client, items, count, __func__, {.time_to_live = std::chrono::milliseconds(ttl_ms)});
}

int kv_client_batch_get(kv_client_t* client, const char* const* keys, const size_t* klens, void* const* values,
                        size_t* vlens, size_t count) {
  if (!are_given(__func__, keys, klens, values, vlens, count)) {
    if (vlens != nullptr) std::fill_n(vlens, count, SIZE_MAX);
    return KV_ERR_BAD_ARGUMENT;
  }
  return on_items<kv_get_item_t>(
      client, count, __func__,
      [&](std::size_t i) { return kv_get_item_t{.key = keys[i], .klen = klens[i], .buf = values[i], .len = vlens[i]}; },
      [&](std::size_t i, const kv_get_item_t& item) {
        vlens[i] = item.code == KV_OK || item.code == KV_ERR_BUFFER_TOO_SMALL ? item.len : SIZE_MAX;
      });
}

int kv_client_batch_put(kv_client_t* client, const char* const* keys, const size_t* klens, const void* const* values,
                        const size_t* vlens, size_t count) {
  if (!are_given(__func__, keys, klens, values, vlens, count)) return KV_ERR_BAD_ARGUMENT;
  return on_items<kv_put_item_t>(
      client, count, __func__,
      [&](std::size_t i) {
        return kv_put_item_t{.key = keys[i], .klen = klens[i], .value = values[i], .vlen = vlens[i]};
      },
      [](std::size_t, const kv_put_item_t&) {});
}

// --- C strings

namespace {

int open_handle(const char* call, const char* server, conn_mode_t mode, const kv_client_options_t* options,
                void** handle) {
  clear(handle);
  if (!is_given(call, {"handle", handle})) return KV_ERR_BAD_ARGUMENT;
  return told(call, [&]() -> Result<void> {
    VERBENA_ASSIGN(const auto target, split_server(or_empty(server)));
    kv_client_options_t defaults;
    (void)kv_client_options_init(&defaults);
    auto client = std::make_unique<verbena_kv_client>(verbena::Bootstrap::kCm);
    VERBENA_ASSIGN(client->options, kv_client_options_of(mode, options != nullptr ? *options : defaults));
    VERBENA_TRY(connect_kv(*client, target.first.c_str(), target.second));
    *handle = client.release();
    return {};
  });
}

}  // namespace

int kv_open_with(const char* server, conn_mode_t mode, const kv_client_options_t* options, void** handle) {
  return open_handle(__func__, server, mode, options, handle);
}
int kv_open(const char* server, void** handle) { return open_handle(__func__, server, CONN_MODE_CM, nullptr, handle); }

int kv_set(void* handle, const char* key, const char* value) {
  return on_connection(
      static_cast<kv_client_t*>(handle), __func__,
      [&](Client& of) { return of.put(bytes_of(key), bytes_of(value)).status; }, Argument{"handle", handle},
      Argument{"key", key}, Argument{"value", value});
}

int kv_get(void* handle, const char* key, char** value) {
  clear(value);
  return on_connection(
      static_cast<kv_client_t*>(handle), __func__,
      [&](Client& of) { return get_string(of, bytes_of(key), *value).status; }, Argument{"handle", handle},
      Argument{"key", key}, Argument{"value", value});
}

void kv_release(char* value) { std::free(value); }

int kv_close(void* handle) {
  kv_client_destroy(static_cast<kv_client_t*>(handle));
  return KV_OK;
}
