// The C API of the key-value store, as its users call it. VERBENA_NIC and VERBENA_BOOTSTRAP choose what it runs over.
#include "key_file.hpp"
#include "pattern.hpp"
#include "peer.hpp"
#include "transport.hpp"

#include <verbena/kv.h>
#include <verbena/deadline.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace verbena::test {
namespace {

conn_mode_t mode() { return transport_under_test().bootstrap == Bootstrap::kCm ? CONN_MODE_CM : CONN_MODE_SOCKET; }
const char* device() {
  static const std::string kept = transport_under_test().device;
  return kept.c_str();
}
const char* address() { return is_soft_under_test() ? "127.0.0.1" : nullptr; }

kv_server_options_t small_server() {
  kv_server_options_t options;
  EXPECT_EQ(kv_server_options_init(&options), KV_OK);
  options.mode = mode();
  options.device = device();
  options.port = 0;
  options.memory_bytes = std::size_t{64} << 20;
  options.max_value_bytes = std::size_t{4} << 20;
  options.max_items = 20'000;
  options.max_clients = 8;
  options.grace_ms = 200;
  options.pin_workers = 0;
  return options;
}

kv_client_options_t client_options() {
  kv_client_options_t options;
  EXPECT_EQ(kv_client_options_init(&options), KV_OK);
  options.device = device();
  options.timeout_ms = options.connect_timeout_ms = 20'000;
  return options;
}

std::string text_pattern(std::size_t length, std::uint64_t seed) {
  std::string text(length, '\0');
  fill(std::as_writable_bytes(std::span(text)), seed);
  return text;
}

class KvApi : public testing::Test {
 protected:
  ~KvApi() override {
    for (kv_client_t* made : clients_) kv_client_destroy(made);
    kv_server_destroy(server);
  }
  void start(const kv_server_options_t& options = small_server()) {
    server = kv_server_create(&options);
    ASSERT_NE(server, nullptr) << kv_error_detail();
    ASSERT_EQ(kv_server_start(server), KV_OK) << kv_error_detail();
    port = kv_server_port(server);
    ASSERT_GT(port, 0);
  }
  [[nodiscard]] kv_client_t* make(const kv_client_options_t& options = client_options()) {
    kv_client_t* const made = kv_client_create(mode());
    EXPECT_NE(made, nullptr);
    EXPECT_EQ(kv_client_set_options(made, &options), KV_OK) << kv_error_detail();
    clients_.push_back(made);
    return made;
  }
  [[nodiscard]] kv_client_t* connect(const kv_client_options_t& options = client_options()) {
    kv_client_t* const made = make(options);
    EXPECT_EQ(kv_client_connect(made, address(), port), KV_OK) << kv_error_detail();
    return made;
  }
  void begin() {
    start();
    client = connect();
  }
  int put(std::string_view key, std::string_view value) {
    return kv_client_put(client, key.data(), key.size(), value.data(), value.size());
  }
  /// The value, or the code in words.
  std::string get(std::string_view key, std::size_t room = std::size_t{5} << 20) {
    std::string out(room, '\0');
    std::size_t length = room;
    const int code = kv_client_get(client, key.data(), key.size(), out.data(), &length);
    if (code != KV_OK) return "code " + std::to_string(code);
    out.resize(length);
    return out;
  }
  int remove(std::string_view key) { return kv_client_delete(client, key.data(), key.size()); }

  kv_server_t* server = nullptr;
  kv_client_t* client = nullptr;
  int port = 0;

 private:
  std::vector<kv_client_t*> clients_;
};

TEST_F(KvApi, StoresEverySizeAndForgets) {
  begin();
  EXPECT_EQ(get("k"), "code -4");
  for (const std::size_t length : {0u, 1u, 64u, 4095u, 4096u, 4097u, 300'000u, 4u << 20, 5u}) {
    const std::string value = text_pattern(length, length);
    ASSERT_EQ(put("k", value), KV_OK) << length;
    ASSERT_TRUE(get("k") == value) << length;
  }
  EXPECT_EQ(remove("k"), KV_OK);
  EXPECT_EQ(remove("k"), KV_ERR_NOT_FOUND);
  EXPECT_STREQ(kv_error_detail(), (std::string("kv_client_delete: ") + kv_error_string(KV_ERR_NOT_FOUND)).c_str());
  const std::string binary("\0\xff\0", 3);
  EXPECT_EQ(put(binary, binary), KV_OK);
  EXPECT_EQ(get(binary), binary);
}

TEST_F(KvApi, TooSmallABufferTellsWhatIsNeeded) {
  begin();
  for (const std::size_t length : {100u, 10'000u}) {
    ASSERT_EQ(put("k", text_pattern(length, 1)), KV_OK);
    for (const std::size_t room : {std::size_t{0}, length - 1}) {
      std::string out(length, '\0');
      std::size_t size = room;
      std::uint64_t version = 77;
      EXPECT_EQ(kv_client_get_version(client, "k", 1, room != 0 ? out.data() : nullptr, &size, &version),
                KV_ERR_BUFFER_TOO_SMALL);
      EXPECT_EQ(size, length);
      EXPECT_EQ(version, 0u);
      EXPECT_EQ(out.back(), '\0') << "behind the buffer";
      EXPECT_EQ(kv_client_get_version(client, "k", 1, out.data(), &size, &version), KV_OK);
      EXPECT_TRUE(out == text_pattern(length, 1));
      EXPECT_NE(version, 77u);
    }
  }
  std::size_t size = 9;
  char byte = 0;
  EXPECT_EQ(kv_client_get(client, "none", 4, &byte, &size), KV_ERR_NOT_FOUND);
  EXPECT_EQ(size, 9u) << "it is still the capacity";
}

TEST_F(KvApi, ComparesAndSwaps) {
  begin();
  for (const std::size_t length : {3u, 50'000u}) {
    const std::string key = "cas" + std::to_string(length);
    const std::string value = text_pattern(length, 2);
    const auto cas = [&](std::uint64_t expected, std::uint64_t* version) {
      return kv_client_cas(client, key.data(), key.size(), expected, value.data(), length, version);
    };
    std::uint64_t version = 5;
    EXPECT_EQ(cas(7, &version), KV_ERR_NOT_FOUND);
    EXPECT_EQ(version, 0u);
    ASSERT_EQ(cas(0, &version), KV_OK) << kv_error_detail();
    std::uint64_t current = 0;
    EXPECT_EQ(cas(0, &current), KV_ERR_VERSION_MISMATCH);
    EXPECT_EQ(current, version);
    EXPECT_EQ(cas(version + 1000, nullptr), KV_ERR_VERSION_MISMATCH);
    std::uint64_t next = 0;
    EXPECT_EQ(cas(current, &next), KV_OK);
    EXPECT_GT(next, current);
    ASSERT_EQ(put(key, "other"), KV_OK);
    EXPECT_EQ(cas(next, &current), KV_ERR_VERSION_MISMATCH);
    EXPECT_GT(current, next);
    char out[8];
    std::size_t room = sizeof out;
    std::uint64_t read = 0;
    ASSERT_EQ(kv_client_get_version(client, key.data(), key.size(), out, &room, &read), KV_OK);
    EXPECT_EQ(read, current);
  }
  std::uint64_t version = 5;
  EXPECT_EQ(kv_client_cas(client, "k", 1, std::numeric_limits<std::uint64_t>::max(), "v", 1, &version),
            KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(version, 0u);
}

TEST_F(KvApi, EveryLookupFindsTheSame) {
  start();
  for (const kv_lookup_t lookup : {KV_LOOKUP_AUTO, KV_LOOKUP_MESSAGE, KV_LOOKUP_ONE_SIDED}) {
    for (const std::size_t known : {0u, 16u}) {
      kv_client_options_t options = client_options();
      options.lookup = lookup;
      options.known_locations = known;
      client = connect(options);
      for (const std::size_t length : {5u, 100'000u}) {
        ASSERT_EQ(put("k", text_pattern(length, lookup)), KV_OK) << kv_error_detail();
        for (int i = 0; i < 3; ++i) ASSERT_TRUE(get("k") == text_pattern(length, lookup));
      }
      EXPECT_EQ(remove("k"), KV_OK);
      EXPECT_EQ(get("k"), "code -4");
    }
  }
  kv_client_options_t options = client_options();
  options.lookup = static_cast<kv_lookup_t>(3);
  kv_client_t* const one = make();
  EXPECT_EQ(kv_client_set_options(one, &options), KV_ERR_BAD_ARGUMENT);
  EXPECT_NE(std::string_view(kv_error_detail()).find("got 3"), std::string_view::npos) << kv_error_detail();
  options = client_options();
  options.known_locations = 3;
  EXPECT_EQ(kv_client_set_options(one, &options), KV_OK);
  EXPECT_EQ(kv_client_connect(one, address(), port), KV_ERR_BAD_ARGUMENT);
  EXPECT_NE(std::string_view(kv_error_detail()).find("known_locations"), std::string_view::npos) << kv_error_detail();
}

TEST_F(KvApi, InsertsOnlyWhatIsAbsent) {
  begin();
  std::uint64_t first = 0, there = 0;
  ASSERT_EQ(kv_client_cas(client, "k", 1, 0, "one", 3, &first), KV_OK);
  // The version comes with the refusal, in the same round trip, and is good for the next.
  EXPECT_EQ(kv_client_cas(client, "k", 1, 0, "two", 3, &there), KV_ERR_VERSION_MISMATCH);
  EXPECT_EQ(there, first);
  EXPECT_EQ(get("k"), "one");
  ASSERT_EQ(remove("k"), KV_OK);
  EXPECT_EQ(kv_client_cas(client, "k", 1, first, "two", 3, &there), KV_ERR_NOT_FOUND);
  EXPECT_EQ(there, 0u);
  ASSERT_EQ(kv_client_cas(client, "k", 1, 0, "three", 5, &there), KV_OK);
  EXPECT_GT(there, first) << "no version comes twice";
}

kv_server_options_t server_of_cells(std::size_t max_cells) {
  kv_server_options_t options = small_server();
  options.max_cells = max_cells;
  return options;
}

TEST_F(KvApi, Cells) {
  start(server_of_cells(2));
  client = connect();
  const auto open = [&](std::string_view key, std::uint64_t initial, kv_cell_t* cell) {
    return kv_client_cell_open(client, key.data(), key.size(), initial, cell);
  };
  kv_cell_t cell{};
  ASSERT_EQ(open("cell", 5, &cell), KV_OK) << kv_error_detail();
  EXPECT_EQ(cell.is_new, 1u);
  std::uint64_t old = 0;
  EXPECT_EQ(kv_client_cell_fetch_add(client, &cell, 2, &old), KV_OK) << kv_error_detail();
  EXPECT_EQ(old, 5u);
  EXPECT_EQ(kv_client_cell_fetch_add(client, &cell, 1, nullptr), KV_OK);
  EXPECT_EQ(kv_client_cell_compare_swap(client, &cell, 7, 70, &old), KV_OK);
  EXPECT_EQ(old, 8u);
  EXPECT_EQ(kv_client_cell_compare_swap(client, &cell, 8, 80, &old), KV_OK);
  EXPECT_EQ(old, 8u);
  EXPECT_EQ(kv_client_cell_read(client, &cell, &old), KV_OK);
  EXPECT_EQ(old, 80u);

  kv_client_t* const other = connect();
  kv_cell_t same{};
  EXPECT_EQ(kv_client_cell_read(other, &cell, &old), KV_ERR_BAD_ARGUMENT) << "it has opened none";
  ASSERT_EQ(kv_client_cell_open(other, "cell", 4, 1, &same), KV_OK) << kv_error_detail();
  EXPECT_EQ(same.is_new, 0u);
  EXPECT_EQ(same.address, cell.address);
  EXPECT_EQ(kv_client_cell_fetch_add(other, &same, 1, &old), KV_OK);
  EXPECT_EQ(old, 80u);

  EXPECT_EQ(put("cell", "v"), KV_ERR_WRONG_KIND);
  EXPECT_EQ(get("cell"), "code -11");
  EXPECT_EQ(remove("cell"), KV_ERR_WRONG_KIND);
  EXPECT_EQ(kv_client_cas(client, "cell", 4, 0, "v", 1, nullptr), KV_ERR_WRONG_KIND);
  ASSERT_EQ(put("value", "v"), KV_OK);
  kv_cell_t none{1, 2, 3};
  EXPECT_EQ(open("value", 0, &none), KV_ERR_WRONG_KIND);
  EXPECT_EQ(open("", 0, &none), KV_ERR_BAD_KEY);
  EXPECT_EQ(open("second", 0, &same), KV_OK);
  EXPECT_EQ(open("third", 0, &none), KV_ERR_LIMIT);
  EXPECT_NE(std::string_view(kv_error_detail()).find("max_cells"), std::string_view::npos) << kv_error_detail();
  EXPECT_EQ(none.address, 0u);

  EXPECT_EQ(open("cell", 0, nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_cell_open(client, nullptr, 1, 0, &none), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_cell_fetch_add(client, nullptr, 1, &old), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_cell_compare_swap(client, nullptr, 1, 1, &old), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_cell_read(client, nullptr, &old), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_cell_read(client, &cell, nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_cell_read(nullptr, &cell, &old), KV_ERR_BAD_ARGUMENT);
  none = {cell.address + 1, cell.worker, 0};
  EXPECT_EQ(kv_client_cell_fetch_add(client, &none, 1, &old), KV_ERR_BAD_ARGUMENT);
  none.address = cell.address + (1 << 20);
  EXPECT_EQ(kv_client_cell_fetch_add(client, &none, 1, &old), KV_ERR_OUT_OF_RANGE);
  EXPECT_EQ(old, 0u);
  ASSERT_EQ(kv_server_stop(server), KV_OK);
  EXPECT_EQ(open("cell", 0, &none), KV_ERR_CLOSED);
  EXPECT_EQ(kv_client_cell_read(client, &cell, &old), KV_ERR_CLOSED);
  EXPECT_EQ(kv_client_disconnect(client), KV_OK);
  EXPECT_EQ(kv_client_cell_read(client, &cell, &old), KV_ERR_CLOSED);
}

TEST_F(KvApi, CellsOfAServerWithoutThem) {
  begin();
  kv_cell_t cell{};
  EXPECT_EQ(kv_client_cell_open(client, "cell", 4, 0, &cell), KV_ERR_UNSUPPORTED);
  EXPECT_NE(std::string_view(kv_error_detail()).find("max_cells"), std::string_view::npos) << kv_error_detail();
}

TEST_F(KvApi, BadKeysAndValuesHaveTheirCodes) {
  begin();
  EXPECT_EQ(put("", "v"), KV_ERR_BAD_KEY);
  EXPECT_EQ(put(std::string(KV_MAX_KEY_BYTES + 1, 'k'), "v"), KV_ERR_BAD_KEY);
  EXPECT_EQ(kv_client_put(client, "k", std::numeric_limits<std::size_t>::max(), "v", 1), KV_ERR_BAD_KEY);
  EXPECT_EQ(put(std::string(KV_MAX_KEY_BYTES, 'k'), "v"), KV_OK);
  EXPECT_EQ(get(std::string(KV_MAX_KEY_BYTES, 'k')), "v");
  EXPECT_EQ(get("", 10), "code -6");
  EXPECT_EQ(remove(""), KV_ERR_BAD_KEY);
  EXPECT_EQ(put("k", std::string((4u << 20) + 1, 'v')), KV_ERR_TOO_LONG);
  EXPECT_EQ(kv_client_put(client, "k", 1, "v", std::numeric_limits<std::size_t>::max()), KV_ERR_TOO_LONG);
  EXPECT_EQ(kv_client_cas(client, "", 0, 0, "v", 1, nullptr), KV_ERR_BAD_KEY);
  EXPECT_EQ(put("k", "well"), KV_OK);
}

TEST_F(KvApi, FullStoreSaysSo) {
  kv_server_options_t options = small_server();
  options.memory_bytes = std::size_t{8} << 20;
  options.max_value_bytes = std::size_t{2} << 20;
  start(options);
  kv_client_options_t quick = client_options();
  quick.timeout_ms = 2000;
  client = connect(quick);
  int code = KV_OK;
  for (int i = 0; i < 100 && code == KV_OK; ++i) code = put(std::to_string(i), text_pattern(1 << 20, 1));
  EXPECT_EQ(code, KV_ERR_STORE_FULL);
  EXPECT_TRUE(get("0") == text_pattern(1 << 20, 1));
}

TEST_F(KvApi, TimesToLiveOutOfRangeAreRefused) {
  begin();
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(kv_client_put_ttl(client, "k", 1, "v", 1, bad), KV_ERR_BAD_ARGUMENT);
    EXPECT_NE(std::string_view(kv_error_detail()).find("time_to_live must be 1 to"), std::string_view::npos);
    kv_put_item_t item{.key = "k", .klen = 1, .value = "v", .vlen = 1, .version = 0, .code = 0};
    EXPECT_EQ(kv_client_put_items_ttl(client, &item, 1, bad), KV_ERR_BAD_ARGUMENT);
    EXPECT_EQ(item.code, KV_ERR_BAD_ARGUMENT);
  }
  EXPECT_EQ(kv_client_put_items_ttl(client, nullptr, 2, 1000), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_get_ttl(client, "k", 1, nullptr), KV_ERR_BAD_ARGUMENT);
}

TEST_F(KvApi, NullIsRefused) {
  begin();
  std::size_t length = 1;
  char byte = 0;
  char* text = &byte;
  EXPECT_EQ(kv_client_options_init(nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_server_options_init(nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_set_options(client, nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_put(client, nullptr, 1, "v", 1), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_put(client, "k", 1, nullptr, 1), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_put(client, "k", 1, nullptr, 0), KV_OK);
  EXPECT_EQ(kv_client_get(client, nullptr, 1, &byte, &length), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_get(client, "k", 1, nullptr, &length), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_get(client, "k", 1, &byte, nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_cas(client, nullptr, 1, 0, "v", 1, nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_delete(client, nullptr, 1), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_get_items(client, nullptr, 1), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_put_items(client, nullptr, 1), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_get_items(client, nullptr, 0), KV_OK);
  EXPECT_EQ(kv_client_batch_get(client, nullptr, nullptr, nullptr, nullptr, 1), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_batch_put(client, nullptr, nullptr, nullptr, nullptr, 1), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_set(client, nullptr, "v"), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_set(client, "k", nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_get(client, nullptr, &text), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(text, nullptr);
  EXPECT_EQ(kv_get(client, "k", nullptr), KV_ERR_BAD_ARGUMENT);

  EXPECT_EQ(kv_client_set_options(nullptr, nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_connect(nullptr, address(), port), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_connect_socket(nullptr, address(), port, nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_put(nullptr, "k", 1, "v", 1), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_get(nullptr, "k", 1, &byte, &length), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_cas(nullptr, "k", 1, 0, "v", 1, nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_delete(nullptr, "k", 1), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_allocate(nullptr, 1), nullptr);
  EXPECT_EQ(kv_client_disconnect(nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_server_start(nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_server_port(nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_server_stop(nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_open(nullptr, nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_set(nullptr, "k", "v"), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_get(nullptr, "k", &text), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_close(nullptr), KV_OK);
  kv_release(nullptr);
  kv_client_destroy(nullptr);
  kv_server_destroy(nullptr);
  EXPECT_EQ(put("k", "well"), KV_OK);
}

TEST_F(KvApi, AKeyOnBothSides) {
  if (!verbena::test::has_keys()) GTEST_SKIP() << "this build has no keys";
  const verbena::test::KeyFile keys;
  kv_server_options_t of_server = small_server();
  of_server.key_file = keys.path().c_str();
  start(of_server);
  kv_client_options_t options = client_options();
  options.key_file = keys.path().c_str();
  for (const char* const name : {static_cast<const char*>(nullptr), "", "old"}) {
    options.key_name = name;
    client = connect(options);
    EXPECT_EQ(put("key", "value"), KV_OK);
  }
  options.key_name = "none";
  EXPECT_EQ(kv_client_connect(make(options), address(), port), KV_ERR_NOT_FOUND);
  options.key_file = options.key_name = nullptr;
  const int without = kv_client_connect(make(options), address(), port);
  // By RDMA CM a device's server with keys is not there.
  EXPECT_EQ(without,
            is_soft_under_test() || mode() == CONN_MODE_SOCKET ? KV_ERR_NOT_ALLOWED : KV_ERR_CONNECTION_REFUSED);
}

TEST_F(KvApi, BadOptionsAndModesAreRefused) {
  EXPECT_EQ(kv_client_create(static_cast<conn_mode_t>(7)), nullptr);
  EXPECT_NE(std::string_view(kv_error_detail()).find("got 7"), std::string_view::npos) << kv_error_detail();
  kv_server_options_t bad = small_server();
  bad.mode = static_cast<conn_mode_t>(7);
  EXPECT_EQ(kv_server_create(&bad), nullptr);
  for (const int number : {-1, 65536}) {
    bad = small_server();
    bad.port = number;
    EXPECT_EQ(kv_server_create(&bad), nullptr) << number;
  }
  bad = small_server();
  bad.allowed_uid_count = 1;
  EXPECT_EQ(kv_server_create(&bad), nullptr);
  bad = small_server();
  bad.gid_index = 256;
  EXPECT_EQ(kv_server_create(&bad), nullptr);
  bad = small_server();
  bad.workers = 0;
  kv_server_t* const made = kv_server_create(&bad);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(kv_server_start(made), KV_ERR_BAD_ARGUMENT);
  EXPECT_NE(std::string_view(kv_error_detail()).find("workers"), std::string_view::npos) << kv_error_detail();
  EXPECT_EQ(kv_server_port(made), KV_ERR_CLOSED);
  kv_server_destroy(made);

  kv_client_t* const one = make();
  kv_client_options_t options{};
  EXPECT_EQ(kv_client_set_options(one, &options), KV_ERR_BAD_ARGUMENT) << "never initialised";
  options = client_options();
  options.gid_index = -2;
  EXPECT_EQ(kv_client_set_options(one, &options), KV_ERR_BAD_ARGUMENT);
  options = client_options();
  options.allowed_uid_count = 2;
  EXPECT_EQ(kv_client_set_options(one, &options), KV_ERR_BAD_ARGUMENT);
  options = client_options();
  options.depth = 0;
  EXPECT_EQ(kv_client_set_options(one, &options), KV_OK);
  EXPECT_EQ(kv_client_connect(one, address(), 1), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_connect(one, address(), 65536), KV_ERR_BAD_ARGUMENT);
  void* handle = one;
  EXPECT_EQ(kv_open_with("host", static_cast<conn_mode_t>(9), nullptr, &handle), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(handle, nullptr);
}

TEST_F(KvApi, TheModeIsTheClients) {
  kv_client_t* const by_cm = kv_client_create(CONN_MODE_CM);
  EXPECT_EQ(kv_client_connect_socket(by_cm, address(), 1, nullptr), KV_ERR_BAD_ARGUMENT);
  kv_client_destroy(by_cm);
  kv_server_options_t options = small_server();
  options.mode = CONN_MODE_SOCKET;
  start(options);
  kv_client_t* const by_socket = kv_client_create(CONN_MODE_SOCKET);
  const int nowhere = kv_client_connect_socket(by_socket, address(), port, "no_such_device");
  // Which of them depends on whether the machine has any RDMA device.
  EXPECT_TRUE(nowhere == KV_ERR_NOT_FOUND || nowhere == KV_ERR_DEVICE) << nowhere;
  ASSERT_EQ(kv_client_connect_socket(by_socket, address(), port, device()), KV_OK) << kv_error_detail();
  EXPECT_EQ(kv_client_put(by_socket, "k", 1, "v", 1), KV_OK);
  kv_client_destroy(by_socket);
}

TEST_F(KvApi, ConnectsOnceAtATimeAndAgain) {
  start();
  kv_client_t* const one = make();
  std::size_t length = 1;
  char byte = 0;
  EXPECT_EQ(kv_client_put(one, "k", 1, "v", 1), KV_ERR_CLOSED);
  EXPECT_EQ(kv_client_get(one, "k", 1, &byte, &length), KV_ERR_CLOSED);
  EXPECT_EQ(kv_client_allocate(one, 10), nullptr);
  EXPECT_EQ(kv_client_disconnect(one), KV_OK);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(kv_client_connect(one, address(), port), KV_OK) << kv_error_detail();
    EXPECT_EQ(kv_client_connect(one, address(), port), KV_ERR_BUSY);
    const kv_client_options_t options = client_options();
    EXPECT_EQ(kv_client_set_options(one, &options), KV_ERR_BUSY);
    EXPECT_EQ(kv_client_get(one, "k", 1, &byte, &length), round == 0 ? KV_ERR_NOT_FOUND : KV_OK);
    EXPECT_EQ(kv_client_put(one, "k", 1, "v", 1), KV_OK);
    EXPECT_EQ(kv_client_disconnect(one), KV_OK);
    EXPECT_EQ(kv_client_put(one, "k", 1, "v", 1), KV_ERR_CLOSED);
  }
  EXPECT_EQ(kv_server_start(server), KV_ERR_BUSY);
  EXPECT_EQ(kv_server_stop(server), KV_OK);
  EXPECT_EQ(kv_server_stop(server), KV_OK);
  EXPECT_EQ(kv_server_port(server), KV_ERR_CLOSED);
  ASSERT_EQ(kv_server_start(server), KV_OK) << kv_error_detail();
  ASSERT_EQ(kv_client_connect(one, address(), kv_server_port(server)), KV_OK) << kv_error_detail();
  EXPECT_EQ(kv_client_get(one, "k", 1, &byte, &length), KV_ERR_NOT_FOUND) << "it starts empty";
}

TEST_F(KvApi, StoppedServerIsTold) {
  begin();
  ASSERT_EQ(put("k", "v"), KV_OK);
  ASSERT_EQ(kv_server_stop(server), KV_OK);
  EXPECT_EQ(put("k", "v"), KV_ERR_CLOSED);
  EXPECT_NE(std::string_view(kv_error_detail()).find("the server"), std::string_view::npos) << kv_error_detail();
}

int serve() {
  const kv_server_options_t options = small_server();
  kv_server_t* const server = kv_server_create(&options);
  if (kv_server_start(server) != KV_OK) return 1;
  std::printf("%d\n", kv_server_port(server));
  std::fflush(stdout);
  for (;;) pause();
}

TEST_F(KvApi, KilledServerIsPeerLost) {
  Peer peer({"serve"});
  port = peer.read_number();
  ASSERT_GT(port, 0);
  client = connect();
  ASSERT_EQ(put("k", "v"), KV_OK);
  peer.kill();
  // First, because memory of the dead can be read until its end is noticed.
  EXPECT_EQ(put("k", "v"), KV_ERR_PEER_LOST);
  std::vector<kv_get_item_t> items(40);
  for (kv_get_item_t& item : items) item = {"k", 1, nullptr, 0, 0, 0};
  EXPECT_EQ(kv_client_get_items(client, items.data(), items.size()), KV_ERR_PEER_LOST) << kv_error_detail();
  for (const kv_get_item_t& item : items) EXPECT_EQ(item.code, KV_ERR_PEER_LOST);
  EXPECT_EQ(put("k", text_pattern(1 << 20, 1)), KV_ERR_PEER_LOST);
  EXPECT_EQ(get("k"), "code -17");
  EXPECT_EQ(remove("k"), KV_ERR_PEER_LOST);
  EXPECT_NE(std::string_view(kv_error_detail()).find("killed"), std::string_view::npos) << kv_error_detail();
  EXPECT_EQ(kv_client_connect(client, address(), port), KV_ERR_BUSY) << "not disconnected";
  EXPECT_EQ(kv_client_disconnect(client), KV_OK);
  EXPECT_NE(kv_client_connect(client, address(), port), KV_OK);
  start();
  EXPECT_EQ(kv_client_connect(client, address(), port), KV_OK) << kv_error_detail();
  EXPECT_EQ(put("k", "v"), KV_OK);
}

// A server that stands still: calls and batches of small values leave the connection.
TEST_F(KvApi, PausedServerTimesOut) {
  Peer peer({"serve"});
  port = peer.read_number();
  kv_client_options_t options = client_options();
  options.timeout_ms = 50;
  client = connect(options);
  peer.pause();
  EXPECT_EQ(put("k", "v"), KV_ERR_TIMED_OUT);
  peer.resume();
  Deadline deadline = Deadline::after(std::chrono::seconds{20});
  int code = KV_ERR_TIMED_OUT;
  while (code == KV_ERR_TIMED_OUT && !deadline.passed()) code = put("k", "w");
  EXPECT_EQ(code, KV_OK);
  peer.pause();
  kv_put_item_t item{"k", 1, "v", 1, 0, 0};
  EXPECT_EQ(kv_client_put_items(client, &item, 1), KV_ERR_TIMED_OUT);
  EXPECT_EQ(item.code, KV_ERR_TIMED_OUT);
  peer.resume();
  deadline = Deadline::after(std::chrono::seconds{20});
  code = KV_ERR_TIMED_OUT;
  while (code == KV_ERR_TIMED_OUT && !deadline.passed()) code = kv_client_put_items(client, &item, 1);
  EXPECT_EQ(code, KV_OK);
}

// However many they are, all items of a batch have the one deadline.
TEST_F(KvApi, BatchesOfAPausedServerTimeOutOnce) {
  constexpr std::size_t kCount = 6400;
  constexpr auto kTimeout = std::chrono::milliseconds{100};
  Peer peer({"serve"});
  port = peer.read_number();
  kv_client_options_t options = client_options();
  options.timeout_ms = kTimeout.count();
  options.lookup = KV_LOOKUP_MESSAGE;
  client = connect(options);
  peer.pause();
  char value = 'v';
  const std::vector<const char*> keys(kCount, "k");
  const std::vector<std::size_t> ones(kCount, 1);
  std::vector<kv_put_item_t> puts(kCount, {"k", 1, &value, 1, 0, KV_OK});
  std::vector<kv_get_item_t> gets(kCount, {"k", 1, &value, 1, 0, KV_OK});
  const std::vector<const void*> values(kCount, &value);
  const std::vector<void*> into(kCount, &value);
  std::vector<std::size_t> lengths = ones;
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(kv_client_put_items(client, puts.data(), kCount), KV_ERR_TIMED_OUT);
  EXPECT_EQ(kv_client_get_items(client, gets.data(), kCount), KV_ERR_TIMED_OUT);
  EXPECT_EQ(kv_client_batch_put(client, keys.data(), ones.data(), values.data(), ones.data(), kCount),
            KV_ERR_TIMED_OUT);
  EXPECT_EQ(kv_client_batch_get(client, keys.data(), ones.data(), into.data(), lengths.data(), kCount),
            KV_ERR_TIMED_OUT);
  // One deadline for each 64 items would be a hundred of them for each of the four: twice what is allowed here.
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 200 * kTimeout);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(puts[i].code, KV_ERR_TIMED_OUT) << i;
    ASSERT_EQ(gets[i].code, KV_ERR_TIMED_OUT) << i;
    ASSERT_EQ(lengths[i], SIZE_MAX) << i;
  }
  peer.resume();
}

TEST_F(KvApi, NothingListens) {
  start();
  const int gone = port;
  ASSERT_EQ(kv_server_stop(server), KV_OK);
  kv_client_options_t options = client_options();
  options.connect_timeout_ms = 2000;
  const int code = kv_client_connect(make(options), address(), gone);
  EXPECT_TRUE(code == KV_ERR_CONNECTION_REFUSED || code == KV_ERR_REJECTED) << code << ' ' << kv_error_detail();
  EXPECT_STRNE(kv_error_detail(), "");
}

TEST_F(KvApi, BatchesOfEverySize) {
  begin();
  constexpr std::size_t kCount = 200;  // Many times the depth.
  std::vector<std::string> keys(kCount);
  std::vector<std::string> values(kCount);
  std::vector<kv_put_item_t> puts(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    keys[i] = "batch" + std::to_string(i);
    values[i] = text_pattern(i % 10 == 9 ? 4096 + i * 100 : i, i);  // Large ones too.
    puts[i] = {keys[i].data(), keys[i].size(), values[i].data(), values[i].size(), 0, KV_ERR_AGAIN};
  }
  ASSERT_EQ(kv_client_put_items(client, puts.data(), kCount), KV_OK) << kv_error_detail();
  std::vector<std::string> outs(kCount, std::string(30'000, '\0'));
  std::vector<kv_get_item_t> gets(kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    gets[i] = {keys[i].data(), keys[i].size(), outs[i].data(), outs[i].size(), 0, KV_ERR_AGAIN};
  gets[3].key = "nobody";
  gets[5].len = 1;
  gets[7].klen = 0;
  EXPECT_EQ(kv_client_get_items(client, gets.data(), kCount), KV_ERR_NOT_FOUND);
  EXPECT_NE(std::string_view(kv_error_detail()).find("item 3"), std::string_view::npos) << kv_error_detail();
  for (std::size_t i = 0; i < kCount; ++i) {
    if (i == 3 || i == 5 || i == 7) continue;
    ASSERT_EQ(gets[i].code, KV_OK) << i;
    ASSERT_EQ(gets[i].version, puts[i].version) << i;
    ASSERT_TRUE(outs[i].substr(0, gets[i].len) == values[i]) << i;
  }
  EXPECT_EQ(gets[3].code, KV_ERR_NOT_FOUND);
  EXPECT_EQ(gets[5].code, KV_ERR_BUFFER_TOO_SMALL);
  EXPECT_EQ(gets[5].len, 5u);
  EXPECT_EQ(gets[7].code, KV_ERR_BAD_KEY);

  gets[9].buf = nullptr;
  gets[8].code = 1;
  EXPECT_EQ(kv_client_get_items(client, gets.data(), kCount), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(gets[8].code, KV_ERR_BAD_ARGUMENT) << "nothing was done";
  puts[0].vlen = std::size_t{5} << 20;
  std::string large(puts[0].vlen, 'l');
  puts[0].value = large.data();
  EXPECT_EQ(kv_client_put_items(client, puts.data(), 2), KV_ERR_TOO_LONG);
  EXPECT_EQ(puts[0].code, KV_ERR_TOO_LONG);
  EXPECT_EQ(puts[1].code, KV_OK);
}

TEST_F(KvApi, BatchesOfArrays) {
  begin();
  constexpr std::size_t kCount = 150;  // More than one round of them.
  std::vector<std::string> names(kCount);
  std::vector<std::string> outs(kCount, std::string(20, '\0'));
  std::vector<const char*> keys;
  std::vector<std::size_t> klens;
  std::vector<std::size_t> vlens;
  std::vector<const void*> values;
  std::vector<void*> into;
  for (std::size_t i = 0; i < kCount; ++i) {
    names[i] = "array" + std::to_string(i);
    keys.push_back(names[i].data());
    klens.push_back(names[i].size());
    values.push_back(names[i].data());
    into.push_back(outs[i].data());
  }
  ASSERT_EQ(kv_client_batch_put(client, keys.data(), klens.data(), values.data(), klens.data(), kCount), KV_OK);
  vlens.assign(kCount, 20);
  vlens[1] = 2;
  keys[140] = "!!!!!!!!!";
  EXPECT_EQ(kv_client_batch_get(client, keys.data(), klens.data(), into.data(), vlens.data(), kCount),
            KV_ERR_BUFFER_TOO_SMALL);
  EXPECT_EQ(vlens[1], 6u);
  EXPECT_EQ(vlens[140], SIZE_MAX);
  // What came back is no capacity.
  EXPECT_EQ(kv_client_batch_get(client, &keys[139], &klens[139], &into[139], &vlens[139], 2), KV_ERR_BAD_ARGUMENT);
  vlens[139] = names[139].size();
  for (std::size_t i = 0; i < kCount; ++i) {
    if (i != 1 && i != 140) {
      ASSERT_EQ(outs[i].substr(0, vlens[i]), names[i]);
    }
  }
}

TEST_F(KvApi, AllocatedMemoryIsForLargeValues) {
  begin();
  EXPECT_EQ(kv_client_allocate(client, 0), nullptr);
  EXPECT_EQ(kv_client_allocate(client, std::size_t{1} << 40), nullptr);
  EXPECT_NE(std::string_view(kv_error_detail()).find("kv_client_allocate"), std::string_view::npos);
  constexpr std::size_t kLength = 200'000;
  auto* const memory = static_cast<std::byte*>(kv_client_allocate(client, 8 * kLength));
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0u);
  std::vector<kv_put_item_t> puts;
  std::vector<kv_get_item_t> gets;
  const char keys[] = "abcd";
  for (std::size_t i = 0; i < 4; ++i) {
    fill(std::span(memory + i * kLength, kLength), i);
    puts.push_back({keys + i, 1, memory + i * kLength, kLength, 0, 0});
    gets.push_back({keys + i, 1, memory + (4 + i) * kLength, kLength, 0, 0});
  }
  ASSERT_EQ(kv_client_put_items(client, puts.data(), 4), KV_OK) << kv_error_detail();
  ASSERT_EQ(kv_client_get_items(client, gets.data(), 4), KV_OK) << kv_error_detail();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(matches(std::span(memory + (4 + i) * kLength, kLength), i));
}

TEST_F(KvApi, KeysAreListedAndFlushed) {
  begin();
  std::set<std::string> all;
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "some/" + std::to_string(i);
    ASSERT_EQ(kv_client_put(client, name.data(), name.size(), "v", 1), KV_OK);
    all.insert(name);
  }
  ASSERT_EQ(kv_client_put(client, "other", 5, "v", 1), KV_OK);
  std::set<std::string> seen;
  kv_cursor_t cursor{};
  kv_key_page_t page;
  while (cursor.is_over == 0) {
    ASSERT_EQ(kv_client_keys(client, "some/", 5, &cursor, &page), KV_OK) << kv_error_detail();
    std::size_t at = 0, length = 0;
    std::uint32_t count = 0;
    for (const void* key = nullptr; (key = kv_key_page_next(&page, &at, &length)) != nullptr; ++count)
      seen.emplace(static_cast<const char*>(key), length);
    EXPECT_EQ(count, page.count);
  }
  EXPECT_EQ(seen, all);
  cursor = {.place = 1, .moves = 0, .seal = 0, .worker = 0, .is_over = 0};
  EXPECT_EQ(kv_client_keys(client, "some/", 5, &cursor, &page), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_keys(client, "some/", 5, nullptr, &page), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_keys(client, "some/", 5, &cursor, nullptr), KV_ERR_BAD_ARGUMENT);
  EXPECT_EQ(kv_client_keys(client, nullptr, 5, &cursor, &page), KV_ERR_BAD_ARGUMENT);
  page.length = 0xffffffff;  // A page that no call has filled.
  std::ranges::fill(page.bytes, static_cast<unsigned char>(0xff));
  std::size_t at = 0, length = 0;
  EXPECT_EQ(kv_key_page_next(&page, &at, &length), nullptr);
  std::uint64_t erased = 0;
  EXPECT_EQ(kv_client_flush(client, nullptr, 5, &erased), KV_ERR_BAD_ARGUMENT);
  ASSERT_EQ(kv_client_flush(client, "some/", 5, &erased), KV_OK) << kv_error_detail();
  EXPECT_EQ(erased, 2000u);
  ASSERT_EQ(kv_client_flush(client, nullptr, 0, nullptr), KV_OK) << kv_error_detail();
  length = 0;
  EXPECT_EQ(kv_client_get(client, "other", 5, nullptr, &length), KV_ERR_NOT_FOUND);
}

// More READs than the channel has places for.
TEST_F(KvApi, ABatchOfGetsOfLargeValuesIntoAllocatedMemory) {
  constexpr std::size_t kLength = std::size_t{4} << 20;
  start();
  kv_client_options_t options = client_options();
  options.buffer_bytes = 2 * kLength;
  client = connect(options);
  auto* const memory = static_cast<std::byte*>(kv_client_allocate(client, 2 * kLength));
  ASSERT_NE(memory, nullptr);
  fill(std::span(memory, kLength), 1);
  ASSERT_EQ(kv_client_put(client, "k", 1, memory, kLength), KV_OK) << kv_error_detail();
  // All to the same place, where all write the same.
  std::vector<kv_get_item_t> gets(32, {"k", 1, memory + kLength, kLength, 0, 0});
  for (int round = 0; round < 3; ++round)
    ASSERT_EQ(kv_client_get_items(client, gets.data(), gets.size()), KV_OK) << kv_error_detail();
  EXPECT_TRUE(matches(std::span(memory + kLength, kLength), 1));
}

// Puts of a batch that meet memory at rest are carried out once it is free.
TEST_F(KvApi, BatchesWaitForMemoryThatRests) {
  kv_server_options_t options = small_server();
  options.memory_bytes = std::size_t{8} << 20;
  options.max_value_bytes = std::size_t{2} << 20;
  options.grace_ms = 100;
  start(options);
  client = connect();
  auto* const memory = static_cast<std::byte*>(kv_client_allocate(client, 1 << 20));
  ASSERT_NE(memory, nullptr);
  std::string out(1 << 20, '\0');
  for (int i = 0; i < 30; ++i) {
    kv_put_item_t item{"k", 1, memory, 1 << 20, 0, 0};
    ASSERT_EQ(kv_client_put_items(client, &item, 1), KV_OK) << i << ": " << kv_error_detail();
    std::size_t length = out.size();
    ASSERT_EQ(kv_client_get(client, "k", 1, out.data(), &length), KV_OK);
  }
}

TEST_F(KvApi, SecondThreadIsRefused) {
  Peer peer({"serve"});
  port = peer.read_number();
  kv_client_options_t options = client_options();
  options.timeout_ms = 20'000;
  client = connect(options);
  peer.pause();
  std::atomic<bool> is_calling{false};
  std::thread other([&] {
    is_calling = true;
    int code = KV_ERR_BUSY;  // As often as it is the second itself.
    while (code == KV_ERR_BUSY) code = put("theirs", "v");
    EXPECT_EQ(code, KV_OK) << kv_error_detail();
  });
  // The other thread's call cannot end, so sooner or later this one meets it.
  const Deadline deadline = Deadline::after(std::chrono::seconds{10});
  bool is_refused = false;
  while (!is_refused && !deadline.passed()) {
    if (!is_calling) continue;
    EXPECT_EQ(kv_client_allocate(client, std::size_t{1} << 40), nullptr) << "more than there is";
    is_refused = std::string_view(kv_error_detail()).find("another thread") != std::string_view::npos;
  }
  EXPECT_TRUE(is_refused);
  EXPECT_EQ(put("mine", "v"), KV_ERR_BUSY);
  EXPECT_EQ(kv_client_disconnect(client), KV_ERR_BUSY);
  peer.resume();
  other.join();
  EXPECT_EQ(put("mine", "v"), KV_OK);
}

TEST_F(KvApi, ThreadsWithAClientEach) {
  start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([mine = connect(), t] {
      for (int i = 0; i < 300; ++i) {
        const std::string key = std::to_string(t);
        ASSERT_EQ(kv_client_put(mine, key.data(), key.size(), &i, sizeof i), KV_OK);
        int read = -1;
        std::size_t length = sizeof read;
        ASSERT_EQ(kv_client_get(mine, key.data(), key.size(), &read, &length), KV_OK);
        ASSERT_EQ(read, i);
        ASSERT_EQ(kv_client_delete(mine, "none", 4), KV_ERR_NOT_FOUND);
        ASSERT_NE(std::string_view(kv_error_detail()).find("kv_client_delete"), std::string_view::npos);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(KvApi, Strings) {
  start();
  const kv_client_options_t options = client_options();
  void* handle = nullptr;
  const std::string server_name = (address() != nullptr ? address() : "") + (":" + std::to_string(port));
  ASSERT_EQ(kv_open_with(server_name.c_str(), mode(), &options, &handle), KV_OK) << kv_error_detail();
  char* value = nullptr;
  EXPECT_EQ(kv_get(handle, "none", &value), KV_ERR_NOT_FOUND);
  EXPECT_EQ(value, nullptr);
  for (const std::size_t length : {0u, 5u, 4095u, 4096u, 1u << 20, 3u}) {  // Small after large as well.
    const std::string text(length, 'x');
    ASSERT_EQ(kv_set(handle, "k", text.c_str()), KV_OK) << kv_error_detail();
    ASSERT_EQ(kv_get(handle, "k", &value), KV_OK) << kv_error_detail();
    EXPECT_TRUE(value == text) << length;
    kv_release(value);
  }
  EXPECT_EQ(kv_client_put(static_cast<kv_client_t*>(handle), "k", 1, "handle", 6), KV_OK);
  ASSERT_EQ(kv_get(handle, "k", &value), KV_OK);
  EXPECT_STREQ(value, "handle");
  kv_release(value);
  EXPECT_EQ(kv_set(handle, "", "v"), KV_ERR_BAD_KEY);
  EXPECT_EQ(kv_close(handle), KV_OK);
}

TEST_F(KvApi, ServersByName) {
  void* handle = this;
  for (const char* name :
       {"localhost:", "localhost:65536", "localhost:7x", "localhost:-1", "[::1", "[::1]x", "[::1]:"}) {
    EXPECT_EQ(kv_open(name, &handle), KV_ERR_BAD_ARGUMENT) << name;
    EXPECT_EQ(handle, nullptr);
  }
  EXPECT_EQ(kv_open("no-such-host.invalid", &handle), KV_ERR_NOT_FOUND) << kv_error_detail();
}

TEST_F(KvApi, NamesWithPortsAreDialed) {
  if (!is_soft_under_test()) GTEST_SKIP() << "on an RDMA device: no loopback address leads to it";
  start();
  void* handle = nullptr;
  const kv_client_options_t options = client_options();
  const std::string number = ":" + std::to_string(port);
  for (const std::string& name : {"localhost" + number, "127.0.0.1" + number, "[127.0.0.1]" + number}) {
    EXPECT_EQ(kv_open_with(name.c_str(), mode(), &options, &handle), KV_OK) << name << ": " << kv_error_detail();
    EXPECT_EQ(kv_close(handle), KV_OK);
  }
}

TEST(KvCodes, DefaultsAgree) {
  kv_server_options_t options;
  ASSERT_EQ(kv_server_options_init(&options), KV_OK);
  EXPECT_EQ(options.port, KV_DEFAULT_PORT) << "where kv_open looks";
  EXPECT_EQ(options.mode, CONN_MODE_CM);
}

TEST_F(KvApi, GrantsLimitWhatAUserMay) {
  if (!is_soft_under_test()) GTEST_SKIP() << "a device cannot tell users";
  const std::array<kv_grant_t, 3> grants{
      kv_grant_t{.uid = geteuid(),
                 .rights = KV_RIGHT_READ | KV_RIGHT_WRITE,
                 .prefix = "a\0/",
                 .prefix_length = 3,
                 .max_memory_bytes = 0,
                 .max_items = 0},
      kv_grant_t{.uid = geteuid(),
                 .rights = KV_RIGHT_WRITE,
                 .prefix = "w",
                 .prefix_length = 1,
                 .max_memory_bytes = 0,
                 .max_items = 0},
      kv_grant_t{
          .uid = geteuid(), .rights = 0, .prefix = nullptr, .prefix_length = 0, .max_memory_bytes = 0, .max_items = 2}};
  kv_server_options_t options = small_server();
  options.grants = grants.data();
  options.grant_count = grants.size();
  ASSERT_NO_FATAL_FAILURE(start(options));
  client = connect();
  using namespace std::string_view_literals;
  const std::string large = text_pattern(100'000, 3);
  EXPECT_EQ(put("a\0/1"sv, large), KV_OK);
  EXPECT_TRUE(get("a\0/1"sv) == large);
  EXPECT_EQ(get("a"), "code " + std::to_string(KV_ERR_DENIED));
  EXPECT_NE(std::string_view(kv_error_detail()).find(R"(kv_client_get: uid )"), std::string_view::npos)
      << kv_error_detail();
  EXPECT_NE(std::string_view(kv_error_detail()).find(R"(read only keys that begin with "a\x00/")"),
            std::string_view::npos)
      << kv_error_detail();
  EXPECT_EQ(put("w1", "v"), KV_OK);
  EXPECT_EQ(get("w1"), "code " + std::to_string(KV_ERR_DENIED));
  EXPECT_EQ(put("w2", "v"), KV_ERR_OVER_QUOTA);
  EXPECT_NE(std::string_view(kv_error_detail()).find("2 items of its quota of 2"), std::string_view::npos)
      << kv_error_detail();
  EXPECT_EQ(remove("w1"), KV_OK);
  EXPECT_EQ(put("w2", "v"), KV_OK);
  EXPECT_EQ(remove("b"), KV_ERR_DENIED);
  uint64_t version = 0;
  EXPECT_EQ(kv_client_cas(client, "b", 1, 0, "v", 1, &version), KV_ERR_DENIED);
  kv_cell_t cell;
  EXPECT_EQ(kv_client_cell_open(client, "w", 1, 0, &cell), KV_ERR_DENIED);
  char room[8];
  kv_get_item_t item{.key = "w2", .klen = 2, .buf = room, .len = sizeof room, .version = 0, .code = 0};
  EXPECT_EQ(kv_client_get_items(client, &item, 1), KV_ERR_DENIED);
  EXPECT_EQ(item.code, KV_ERR_DENIED);
  kv_put_item_t both[2]{{.key = "w2", .klen = 2, .value = "w", .vlen = 1, .version = 0, .code = 0},
                        {.key = "no", .klen = 2, .value = "w", .vlen = 1, .version = 0, .code = 0}};
  EXPECT_EQ(kv_client_put_items(client, both, 2), KV_ERR_DENIED);
  EXPECT_EQ(both[0].code, KV_OK);
  EXPECT_EQ(both[1].code, KV_ERR_DENIED);
}

TEST_F(KvApi, AReadOnlyClientChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(begin());
  ASSERT_EQ(put("k", "v"), KV_OK);
  kv_client_options_t options = client_options();
  EXPECT_EQ(options.read_only, 0);
  options.read_only = 1;
  client = connect(options);
  EXPECT_EQ(put("k", "w"), KV_ERR_DENIED);
  EXPECT_NE(std::string_view(kv_error_detail()).find("read_only"), std::string_view::npos) << kv_error_detail();
  EXPECT_EQ(remove("k"), KV_ERR_DENIED);
  EXPECT_EQ(get("k"), "v");
}

TEST(KvCodes, EachHasASentenceOfItsOwn) {
  std::vector<std::string> seen;
  for (int code = KV_ERR_OVER_QUOTA; code <= KV_OK; ++code) {
    const std::string text = kv_error_string(code);
    EXPECT_FALSE(text.empty());
    EXPECT_TRUE(code == -1 || text.find("no code") == std::string::npos) << code;
    EXPECT_EQ(text.find("rdma"), std::string::npos) << code << ": " << text;
    for (const std::string& other : seen) EXPECT_NE(text, other) << code;
    seen.push_back(text);
  }
  EXPECT_NE(std::string(kv_error_string(KV_ERR_OVER_QUOTA - 1)).find("no code"), std::string::npos);
  EXPECT_NE(std::string(kv_error_string(1)).find("no code"), std::string::npos);
}

}  // namespace
}  // namespace verbena::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "peer") {
    verbena::test::die_with_the_test();
    return verbena::test::serve();
  }
  return RUN_ALL_TESTS();
}
