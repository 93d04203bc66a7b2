// Clients of verbena/kv.h: calls, batches, and those on C strings.
#include "api/c/kv.hpp"
#include "api/c/transport.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace verbena::api::c {
namespace {

/// The one thread that uses a client.
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

/// A status of an operation as a code. The client has said what is wrong with an argument; where the connection is dead
/// it says why.
[[gnu::cold]] int tell_failure(const kv::Client& client, Status status, const char* call,
                               std::uint64_t failures_before) noexcept {
  if (failure_count() != failures_before) return code_of(note_as(call, last_failure()));
  if (damage_of(status) == Damage::kConnection || status == Status::kTimedOut)
    if (const Error error = client.connection_error(); error.status() == status) return code_of(note_as(call, error));
  return tell(status, call);
}

[[gnu::cold]] int refuse_unconnected(const char* call) noexcept {
  return code_of(note(Status::kClosed, call, "there is no connection: call kv_client_connect first"));
}

/// What `body` makes of the client itself, as a code.
template <class Body>
int on_handle(kv_client_t* client, const char* call, Body&& body) noexcept {
  if (client == nullptr) return refuse_null(call, "client");
  const Use use(*client);
  return use ? body(*client)
             : code_of(note(Status::kBusy, call, "another thread is in a call of this client: make one for each"));
}

/// The status that `body` makes of the connection, as a code.
template <class Body>
int on_connection(kv_client_t* client, const char* call, Body&& body) noexcept {
  return on_handle(client, call, [&](kv_client_t& of) {
    if (!of.client) return refuse_unconnected(call);
    const std::uint64_t failures = failure_count();
    const Status status = body(*of.client);
    return status == Status::kOk ? KV_OK : tell_failure(*of.client, status, call, failures);
  });
}

template <class T>
[[nodiscard]] bool is_null(T* data, std::size_t length) noexcept {
  return data == nullptr && length != 0;
}

/// Whether bytes are there as their length says; else the failure is remembered.
template <class T>
[[nodiscard]] bool is_given(const char* call, const char* name, T* data, const char* length_name,
                            std::size_t length) noexcept {
  if (!is_null(data, length)) [[likely]]
    return true;
  (void)refuse(call, "{} must not be null with a {} of {}", name, length_name, length);
  return false;
}

/// As many items as one batch of the client takes.
constexpr std::size_t kItemsAtOnce = 64;

void carry_out(kv::Client& client, std::span<kv_get_item_t> items, Deadline deadline) noexcept {
  std::array<kv::GetRequest, kItemsAtOnce> requests;
  for (std::size_t i = 0; i < items.size(); ++i) {
    requests[i].key = bytes_at(items[i].key, items[i].klen);
    requests[i].out = std::span(static_cast<std::byte*>(items[i].buf), items[i].len);
  }
  client.get(std::span(requests).first(items.size()), deadline);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const kv::Outcome& outcome = requests[i].outcome;
    items[i].code = code_of(outcome.status);
    if (outcome.status == Status::kOk) items[i].version = outcome.version;
    if (outcome.status == Status::kOk || outcome.status == Status::kBufferTooSmall) items[i].len = outcome.length;
  }
}

void carry_out(kv::Client& client, std::span<kv_put_item_t> items, Deadline deadline) noexcept {
  std::array<kv::PutRequest, kItemsAtOnce> requests;
  for (std::size_t i = 0; i < items.size(); ++i) {
    requests[i].key = bytes_at(items[i].key, items[i].klen);
    requests[i].value = bytes_at(items[i].value, items[i].vlen);
  }
  client.put(std::span(requests).first(items.size()), deadline);
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i].code = code_of(requests[i].outcome.status);
    if (requests[i].outcome.status == Status::kOk) items[i].version = requests[i].outcome.version;
  }
}

/// The first item of a batch whose code is not KV_OK.
struct Verdict {
  int code = KV_OK;
  std::size_t item = 0;
};

/// The verdict's code, remembered as the failure.
int tell_verdict(const kv::Client& client, const Verdict& verdict, const char* call) noexcept {
  if (verdict.code == KV_OK) return KV_OK;
  const Error error = client.connection_error();
  if (code_of(error.status()) == verdict.code) return code_of(note_as(call, error));
  return code_of(note(status_of(verdict.code), call, "item {}: {}", verdict.item, kv_error_string(verdict.code)));
}

// A batch that is repeated with the lengths it gave back would else have SIZE_MAX as capacity.
[[nodiscard]] bool is_impossible(const kv_get_item_t& item) noexcept {
  return is_null(item.key, item.klen) || is_null(item.buf, item.len) || item.len > PTRDIFF_MAX;
}
[[nodiscard]] bool is_impossible(const kv_put_item_t& item) noexcept {
  return is_null(item.key, item.klen) || is_null(item.value, item.vlen);
}

/// A batch of `count` items, some at a time and all by one deadline: `item(i)` is one of them, and `end(i, item)` is
/// told what came of it. Their pointers are looked at first, so that it is all or nothing as far as these go.
template <class Item, class Make, class End>
int on_items(kv_client_t* client, std::size_t count, const char* call, Make&& item, End&& end) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    if (is_impossible(item(i)))
      return refuse(call, "item {} must have no null pointer with a length, and no capacity of SIZE_MAX", i);
  return on_handle(client, call, [&](kv_client_t& of) {
    if (!of.client) return refuse_unconnected(call);
    const Deadline deadline = Deadline::after(of.options.timeout);
    Verdict verdict;
    std::array<Item, kItemsAtOnce> items;
    for (std::size_t from = 0; from < count; from += kItemsAtOnce) {
      const std::span some = std::span(items).first(std::min(kItemsAtOnce, count - from));
      for (std::size_t i = 0; i < some.size(); ++i) some[i] = item(from + i);
      carry_out(*of.client, some, deadline);
      for (std::size_t i = 0; i < some.size(); ++i) {
        if (verdict.code == KV_OK && some[i].code != KV_OK) verdict = {some[i].code, from + i};
        end(from + i, some[i]);
      }
    }
    return tell_verdict(*of.client, verdict, call);
  });
}

/// The same, of an array of them.
template <class Item>
int on_items(kv_client_t* client, Item* items, std::size_t count, const char* call) noexcept {
  if (!is_given(call, "items", items, "count", count)) return KV_ERR_BAD_ARGUMENT;
  return on_items<Item>(
      client, count, call, [&](std::size_t i) { return items[i]; },
      [&](std::size_t i, const Item& item) { items[i] = item; });
}

/// What `body` makes of a cell's word, as a code; `*found`, unless null, is what it found there.
template <class Body>
int on_cell(kv_client_t* client, const kv_cell_t* cell, std::uint64_t* found, const char* call, Body&& body) noexcept {
  if (cell == nullptr) return refuse_null(call, "cell");
  return on_connection(client, call, [&](kv::Client& of) {
    std::uint64_t there = 0;
    const Status status = body(of, kv::Cell{.address = cell->address, .worker = cell->worker}, there);
    if (status == Status::kOk && found != nullptr) *found = there;
    return status;
  });
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
      return fail(Status::kBadArgument, "kv_open", 0, "server \"{}\" is no [address] or [address]:port", server);
  } else if (colon != std::string_view::npos && server.find(':') == colon) {
    host = server.substr(0, colon);
    port = server.substr(colon + 1);
    if (port.empty()) return fail(Status::kBadArgument, "kv_open", 0, "server \"{}\" lacks its port", server);
  }
  std::uint16_t number = KV_DEFAULT_PORT;
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), number);
  if (!port.empty() && (parsed.ec != std::errc{} || parsed.ptr != port.data() + port.size()))
    return fail(Status::kBadArgument, "kv_open", 0, "the port of \"{}\" must be 1 to 65535", server);
  return std::pair{std::string(host), number};
}

/// A value that grows each time it is looked at is given up after so many.
constexpr int kMaxGrowths = 16;

/// The value with a zero behind it, from malloc.
kv::Outcome get_string(kv::Client& client, kv::Key key, char*& value) noexcept {
  std::array<std::byte, kv::kEagerBytes> small;
  kv::Outcome outcome = client.get(key, small);
  char* text = nullptr;
  for (int i = 0; outcome.status == Status::kBufferTooSmall && i < kMaxGrowths; ++i) {
    std::free(text);
    text = static_cast<char*>(std::malloc(outcome.length + 1));
    if (text == nullptr) return {.status = Status::kNoMemory};
    outcome = client.get(key, std::as_writable_bytes(std::span(text, outcome.length)));
  }
  if (outcome.status != Status::kOk) {
    std::free(text);
    return outcome;
  }
  if (text == nullptr) {
    text = static_cast<char*>(std::malloc(outcome.length + 1));
    if (text == nullptr) return {.status = Status::kNoMemory};
    std::copy_n(reinterpret_cast<const char*>(small.data()), outcome.length, text);
  }
  text[outcome.length] = '\0';
  value = text;
  return outcome;
}

std::span<const std::byte> bytes_of(const char* text) noexcept { return bytes_at(text, std::string_view(text).size()); }

}  // namespace

Result<void> connect_kv(verbena_kv_client& client, const char* address, int port) {
  if (client.client)
    return fail(Status::kBusy, "connect", 0, "the client is connected already: kv_client_disconnect first");
  client.options.address = or_empty(address);
  VERBENA_ASSIGN(client.options.port, kv_port(port));
  VERBENA_ASSIGN(client.client, kv::Client::connect(client.options));
  return {};
}

}  // namespace verbena::api::c

using namespace verbena::api::c;
using verbena::Result;
using verbena::Status;
using verbena::kv::Cell;
using verbena::kv::Client;
using verbena::kv::Outcome;

kv_client_t* kv_client_create(conn_mode_t mode) {
  kv_client_t* made = nullptr;
  (void)told("kv_client_create", [&]() -> Result<void> {
    VERBENA_ASSIGN(const verbena::Transport transport, transport_of(kModes, mode, nullptr, -1));
    made = new verbena_kv_client(transport.bootstrap);
    return {};
  });
  return made;
}

int kv_client_set_options(kv_client_t* client, const kv_client_options_t* options) {
  constexpr const char* kCall = "kv_client_set_options";
  if (options == nullptr) return refuse_null(kCall, "options");
  return on_handle(client, kCall, [&](kv_client_t& of) {
    if (of.client)
      return code_of(note(Status::kBusy, kCall, "the client is connected: this is for before kv_client_connect"));
    const bool is_cm = of.options.transport.bootstrap == verbena::Bootstrap::kCm;
    return told(kCall, [&]() -> Result<void> {
      VERBENA_ASSIGN(of.options, kv_client_options_of(is_cm ? CONN_MODE_CM : CONN_MODE_SOCKET, *options));
      return {};
    });
  });
}

int kv_client_connect(kv_client_t* client, const char* ip, int port) {
  constexpr const char* kCall = "kv_client_connect";
  return on_handle(client, kCall,
                   [&](kv_client_t& of) { return told(kCall, [&] { return connect_kv(of, ip, port); }); });
}

int kv_client_connect_socket(kv_client_t* client, const char* ip, int port, const char* device) {
  constexpr const char* kCall = "kv_client_connect_socket";
  return on_handle(client, kCall, [&](kv_client_t& of) {
    return told(kCall, [&]() -> Result<void> {
      if (of.options.transport.bootstrap != verbena::Bootstrap::kSocket)
        return verbena::fail(Status::kBadArgument, kCall, 0,
                             "the client was created with CONN_MODE_CM: create it with CONN_MODE_SOCKET");
      const std::string before = of.options.transport.device;
      if (device != nullptr) of.options.transport.device = device;
      Result<void> connected = connect_kv(of, ip, port);
      of.options.transport.device = before;
      return connected;
    });
  });
}

int kv_client_disconnect(kv_client_t* client) {
  return on_handle(client, "kv_client_disconnect", [](kv_client_t& of) {
    of.client.reset();
    return KV_OK;
  });
}

void kv_client_destroy(kv_client_t* client) { delete client; }

int kv_client_put(kv_client_t* client, const void* key, size_t klen, const void* value, size_t vlen) {
  constexpr const char* kCall = "kv_client_put";
  if (!is_given(kCall, "key", key, "klen", klen) || !is_given(kCall, "value", value, "vlen", vlen))
    return KV_ERR_BAD_ARGUMENT;
  return on_connection(client, kCall,
                       [&](Client& of) { return of.put(bytes_at(key, klen), bytes_at(value, vlen)).status; });
}

namespace {

int get_version(const char* call, kv_client_t* client, const void* key, size_t klen, void* buf, size_t* len,
                uint64_t* version) {
  if (len == nullptr) return refuse_null(call, "len");
  if (!is_given(call, "key", key, "klen", klen) || !is_given(call, "buf", buf, "*len", *len))
    return KV_ERR_BAD_ARGUMENT;
  return on_connection(client, call, [&](Client& of) {
    const Outcome outcome = of.get(bytes_at(key, klen), std::span(static_cast<std::byte*>(buf), *len));
    const bool is_here = outcome.status == Status::kOk;
    if (is_here || outcome.status == Status::kBufferTooSmall) *len = outcome.length;
    if (is_here && version != nullptr) *version = outcome.version;
    return outcome.status;
  });
}

}  // namespace

int kv_client_get_version(kv_client_t* client, const void* key, size_t klen, void* buf, size_t* len,
                          uint64_t* version) {
  return get_version("kv_client_get_version", client, key, klen, buf, len, version);
}

int kv_client_get(kv_client_t* client, const void* key, size_t klen, void* buf, size_t* len) {
  return get_version("kv_client_get", client, key, klen, buf, len, nullptr);
}

int kv_client_cas(kv_client_t* client, const void* key, size_t klen, uint64_t expected, const void* value, size_t vlen,
                  uint64_t* version) {
  constexpr const char* kCall = "kv_client_cas";
  if (!is_given(kCall, "key", key, "klen", klen) || !is_given(kCall, "value", value, "vlen", vlen))
    return KV_ERR_BAD_ARGUMENT;
  return on_connection(client, kCall, [&](Client& of) {
    const Outcome outcome = of.cas(bytes_at(key, klen), expected, bytes_at(value, vlen));
    const bool is_known = outcome.status == Status::kOk || outcome.status == Status::kVersionMismatch ||
                          outcome.status == Status::kNotFound;
    if (is_known && version != nullptr) *version = outcome.version;
    return outcome.status;
  });
}

int kv_client_delete(kv_client_t* client, const void* key, size_t klen) {
  constexpr const char* kCall = "kv_client_delete";
  if (!is_given(kCall, "key", key, "klen", klen)) return KV_ERR_BAD_ARGUMENT;
  return on_connection(client, kCall, [&](Client& of) { return of.erase(bytes_at(key, klen)).status; });
}

void* kv_client_allocate(kv_client_t* client, size_t bytes) {
  constexpr const char* kCall = "kv_client_allocate";
  void* memory = nullptr;
  (void)on_connection(client, kCall, [&](Client& of) {
    if (bytes == 0) return note(Status::kBadArgument, kCall, "bytes must be at least 1; got 0");
    memory = of.allocate(bytes).data();
    if (memory != nullptr) return Status::kOk;
    return note(Status::kLimit, kCall, "bytes must be at most what is left of buffer_bytes; got {}: raise that", bytes);
  });
  return memory;
}

// --- cells

int kv_client_cell_open(kv_client_t* client, const void* key, size_t klen, uint64_t initial, kv_cell_t* cell) {
  constexpr const char* kCall = "kv_client_cell_open";
  if (cell == nullptr) return refuse_null(kCall, "cell");
  if (!is_given(kCall, "key", key, "klen", klen)) return KV_ERR_BAD_ARGUMENT;
  return on_connection(client, kCall, [&](Client& of) {
    const Result<Cell> opened = of.open_cell(bytes_at(key, klen), initial);
    if (!opened) return note(opened.error());
    *cell = {.address = opened->address, .worker = opened->worker, .is_new = opened->is_new ? 1u : 0u};
    return Status::kOk;
  });
}

int kv_client_cell_fetch_add(kv_client_t* client, const kv_cell_t* cell, uint64_t delta, uint64_t* old) {
  return on_cell(client, cell, old, "kv_client_cell_fetch_add",
                 [=](Client& of, const Cell& at, uint64_t& there) { return of.fetch_add(at, delta, there); });
}

int kv_client_cell_compare_swap(kv_client_t* client, const kv_cell_t* cell, uint64_t expected, uint64_t desired,
                                uint64_t* old) {
  return on_cell(client, cell, old, "kv_client_cell_compare_swap", [=](Client& of, const Cell& at, uint64_t& there) {
    return of.compare_swap(at, expected, desired, there);
  });
}

int kv_client_cell_read(kv_client_t* client, const kv_cell_t* cell, uint64_t* value) {
  constexpr const char* kCall = "kv_client_cell_read";
  if (value == nullptr) return refuse_null(kCall, "value");
  return on_cell(client, cell, value, kCall,
                 [](Client& of, const Cell& at, uint64_t& there) { return of.read(at, there); });
}

// --- batches

int kv_client_get_items(kv_client_t* client, kv_get_item_t* items, size_t count) {
  return on_items(client, items, count, "kv_client_get_items");
}

int kv_client_put_items(kv_client_t* client, kv_put_item_t* items, size_t count) {
  return on_items(client, items, count, "kv_client_put_items");
}

int kv_client_batch_get(kv_client_t* client, const char* const* keys, const size_t* klens, void* const* values,
                        size_t* vlens, size_t count) {
  constexpr const char* kCall = "kv_client_batch_get";
  if (!is_given(kCall, "keys", keys, "count", count) || !is_given(kCall, "klens", klens, "count", count) ||
      !is_given(kCall, "values", values, "count", count) || !is_given(kCall, "vlens", vlens, "count", count))
    return KV_ERR_BAD_ARGUMENT;
  bool has_begun = false;
  const int code = on_items<kv_get_item_t>(
      client, count, kCall,
      [&](std::size_t i) {
        return kv_get_item_t{
            .key = keys[i], .klen = klens[i], .buf = values[i], .len = vlens[i], .version = 0, .code = KV_OK};
      },
      [&](std::size_t i, const kv_get_item_t& item) {
        has_begun = true;
        vlens[i] = item.code == KV_OK || item.code == KV_ERR_BUFFER_TOO_SMALL ? item.len : SIZE_MAX;
      });
  if (!has_begun) std::fill_n(vlens, count, SIZE_MAX);
  return code;
}

int kv_client_batch_put(kv_client_t* client, const char* const* keys, const size_t* klens, const void* const* values,
                        const size_t* vlens, size_t count) {
  constexpr const char* kCall = "kv_client_batch_put";
  if (!is_given(kCall, "keys", keys, "count", count) || !is_given(kCall, "klens", klens, "count", count) ||
      !is_given(kCall, "values", values, "count", count) || !is_given(kCall, "vlens", vlens, "count", count))
    return KV_ERR_BAD_ARGUMENT;
  return on_items<kv_put_item_t>(
      client, count, kCall,
      [&](std::size_t i) {
        return kv_put_item_t{
            .key = keys[i], .klen = klens[i], .value = values[i], .vlen = vlens[i], .version = 0, .code = KV_OK};
      },
      [](std::size_t, const kv_put_item_t&) {});
}

// --- C strings

namespace {

int open_handle(const char* call, const char* server, conn_mode_t mode, const kv_client_options_t* options,
                void** handle) {
  if (handle == nullptr) return refuse_null(call, "handle");
  *handle = nullptr;
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
  return open_handle("kv_open_with", server, mode, options, handle);
}
int kv_open(const char* server, void** handle) { return open_handle("kv_open", server, CONN_MODE_CM, nullptr, handle); }

int kv_set(void* handle, const char* key, const char* value) {
  constexpr const char* kCall = "kv_set";
  if (handle == nullptr) return refuse_null(kCall, "handle");
  if (key == nullptr || value == nullptr) return refuse_null(kCall, key == nullptr ? "key" : "value");
  return on_connection(static_cast<kv_client_t*>(handle), kCall,
                       [&](Client& of) { return of.put(bytes_of(key), bytes_of(value)).status; });
}

int kv_get(void* handle, const char* key, char** value) {
  constexpr const char* kCall = "kv_get";
  if (value != nullptr) *value = nullptr;
  if (handle == nullptr) return refuse_null(kCall, "handle");
  if (key == nullptr || value == nullptr) return refuse_null(kCall, key == nullptr ? "key" : "value");
  return on_connection(static_cast<kv_client_t*>(handle), kCall,
                       [&](Client& of) { return get_string(of, bytes_of(key), *value).status; });
}

void kv_release(char* value) { std::free(value); }

int kv_close(void* handle) {
  kv_client_destroy(static_cast<kv_client_t*>(handle));
  return KV_OK;
}
