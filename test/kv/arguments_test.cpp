// Each call of the store's C++ API and of verbena/kv.h with each argument that it refuses: the status, and the text,
// which names the argument, its value and what it may be. And how little a server can be told.
#include "model.hpp"

#include <words.hpp>

#include <verbena/kv.h>
#include <verbena/kv.hpp>

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;
using Says = std::vector<std::string>;

constexpr std::array<std::string_view, 4> kOfC{"kv_client", "kv_server", "KV_ERR", "CONN_MODE"};
constexpr std::array<std::string_view, 5> kOfCxx{"::", "kAdopt", "kClosed", "kCm", "kSocket"};

template <class T>
void expect_refused(const Result<T>& result, Status status, const Says& says) {
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().status(), status) << to_string(result.error().status()) << ": " << result.error().text();
  test::expect_words(result.error().text(), kOfC, says);
}

TEST(KvArguments, OptionsOfAServerAreNamed) {
  using std::chrono::microseconds;
  using std::chrono::milliseconds;
  const auto refuse = [](auto set, const Says& says, Status status = Status::kBadArgument) {
    ServerOptions wrong = small_server();
    set(wrong);
    expect_refused(Server::start(wrong), status, says);
  };
  refuse([](ServerOptions& o) { o.memory_bytes = 1; }, {"memory_bytes", "got 1", "1048576 to 1099511627776"});
  refuse([](ServerOptions& o) { o.workers = 0; }, {"workers", "got 0", "1 to 64"});
  refuse([](ServerOptions& o) { o.workers = 65; }, {"workers", "got 65", "1 to 64"});
  refuse([](ServerOptions& o) { o.max_clients = 0; }, {"max_clients", "got 0", "1 to 1024"});
  refuse([](ServerOptions& o) { o.max_clients_per_user = o.max_clients + 1; },
         {"max_clients_per_user", "got 9", "0 to 8"});
  refuse([](ServerOptions& o) { o.depth = 1025; }, {"depth", "got 1025", "1 to 1024"});
  refuse([](ServerOptions& o) { o.lease_bytes = 1; }, {"lease_bytes", "got 1", "65536 to 1073741824"});
  refuse([](ServerOptions& o) { o.grace = milliseconds{0}; }, {"grace", "got 0", "1 to 60000"});
  refuse([](ServerOptions& o) { o.spin = microseconds{1'000'001}; }, {"spin", "got 1000001", "0 to 1000000"});
  refuse([](ServerOptions& o) { o.wait = static_cast<WaitPolicy>(9); }, {"wait", "got 9", "0 to 2"});
  refuse([](ServerOptions& o) { o.large_put = static_cast<LargePut>(9); }, {"large_put", "got 9", "0 to 0"});
  refuse([](ServerOptions& o) { o.max_value_bytes = o.memory_bytes; }, {"max_value_bytes", "67108864", "33521664"});
  refuse([](ServerOptions& o) { o.max_items = 1'000'000'000; }, {"max_items", "1000000000", "memory_bytes"});
  refuse([](ServerOptions& o) { o.max_cells = 1'000'000'000; }, {"max_cells", "1000000000", "max_items"});
  refuse([](ServerOptions& o) { o.transport.gid_index = 256; }, {"gid_index", "got 256", "0 to 255"});
  refuse([](ServerOptions& o) { o.transport.bootstrap = static_cast<Bootstrap>(9); }, {"bootstrap", "got 9", "kCm"});
  refuse([](ServerOptions& o) { o.transport.device = "mlx5_0:x"; }, {"device", "mlx5_0:x", "mlx5_0:2"});
}

// They stay for one version, so that a program that sets them is told what to do.
TEST(KvArguments, RemovedOptionsOfAServerAreRefused) {
  const auto refuse = [](auto set, const Says& says) {
    ServerOptions wrong = small_server();
    set(wrong);
    expect_refused(Server::start(wrong), Status::kUnsupported, says);
  };
  refuse([](ServerOptions& o) { o.large_put = LargePut::kAdopt; },
         {"large_put kAdopt was removed in 0.1: the server reads large values itself, which is faster; leave large_put "
          "at its default"});
  refuse([](ServerOptions& o) { o.client_leases = 5; },
         {"client_leases was removed in 0.1", "leave it at its default, 4; got 5"});
  refuse([](ServerOptions& o) { o.lease_term = std::chrono::seconds{1}; },
         {"lease_term (ms) was removed in 0.1", "leave it at its default, 2000; got 1000"});
}

// The same in C, where each has a name of its own.
TEST(KvArguments, RemovedMembersOfServerOptionsAreRefused) {
  const auto refuse = [](auto set, const Says& says) {
    kv_server_options_t wrong;
    ASSERT_EQ(kv_server_options_init(&wrong), KV_OK);
    set(wrong);
    EXPECT_EQ(kv_server_create(&wrong), nullptr);
    test::expect_words(kv_error_detail(), kOfCxx, says);
  };
  refuse([](kv_server_options_t& o) { o.trusted_clients = 1; },
         {"trusted_clients was removed in 0.1: the server reads large values itself, which is faster; leave it at its "
          "default, 0; got 1"});
  refuse([](kv_server_options_t& o) { o.client_leases = 5; }, {"client_leases was removed in 0.1", "4; got 5"});
  refuse([](kv_server_options_t& o) { o.lease_term_ms = 1000; },
         {"lease_term_ms was removed in 0.1", "2000; got 1000"});
}

TEST(KvArguments, OptionsOfAClientAreNamed) {
  const auto refuse = [](auto set, const Says& says) {
    ClientOptions wrong = client_options(1);
    set(wrong);
    expect_refused(Client::connect(wrong), Status::kBadArgument, says);
  };
  refuse([](ClientOptions& o) { o.port = 0; }, {"port", "got 0", "1 to 65535"});
  refuse([](ClientOptions& o) { o.depth = 0; }, {"depth", "0", "1 to 1024"});
  refuse([](ClientOptions& o) { o.depth = 1025; }, {"depth", "1025", "1 to 1024"});
  refuse([](ClientOptions& o) { o.buffer_bytes = (std::size_t{1} << 40) + 1; },
         {"buffer_bytes", "1099511627777", "1 TiB"});
  refuse([](ClientOptions& o) { o.wait = static_cast<WaitPolicy>(9); }, {"wait", "got 9", "0 to 2"});
  refuse([](ClientOptions& o) { o.lookup = static_cast<Lookup>(9); }, {"lookup", "got 9", "0 to 2"});
  refuse([](ClientOptions& o) { o.known_locations = 3; }, {"known_locations", "3", "power of two"});
  refuse([](ClientOptions& o) { o.transport.gid_index = 256; }, {"gid_index", "got 256", "0 to 255"});
  refuse([](ClientOptions& o) { o.transport.bootstrap = static_cast<Bootstrap>(9); }, {"bootstrap", "got 9", "kCm"});
}

TEST(KvArguments, MemoryAloneIsEnough) {
  for (const std::size_t mib : {std::size_t{1}, std::size_t{64}}) {
    SCOPED_TRACE(mib);
    const auto server = start({.transport = test::transport_under_test(), .port = 0, .memory_bytes = mib << 20});
    ASSERT_NE(server, nullptr);
    const auto client = connect(client_options(*server));
    ASSERT_NE(client, nullptr);
    EXPECT_GE(client->max_value_bytes(), (mib << 20) * 49 / 100) << "derived from the memory";
    EXPECT_LT(client->max_value_bytes(), (mib << 20) / 2) << "two of them, and what names them";
    EXPECT_EQ(client->put(key_of("key"), bytes_of("value")).status, Status::kOk);
  }
}

/// A server, and a connected client of each API.
class KvCallArguments : public testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options = small_server();
    options.max_cells = 4;
    server_ = start(options);
    ASSERT_NE(server_, nullptr);
    const Transport transport = test::transport_under_test();
    kv_client_options_t client;
    ASSERT_EQ(kv_client_options_init(&client), KV_OK);
    client.device = transport.device.c_str();
    client_ = kv_client_create(mode_of(transport));
    fresh_ = kv_client_create(mode_of(transport));
    ASSERT_EQ(kv_client_set_options(client_, &client), KV_OK) << kv_error_detail();
    ASSERT_EQ(kv_client_connect(client_, nullptr, server_->port()), KV_OK) << kv_error_detail();
  }
  ~KvCallArguments() override {
    kv_client_destroy(client_);
    kv_client_destroy(fresh_);
  }
  [[nodiscard]] static conn_mode_t mode_of(const Transport& transport) {
    return transport.bootstrap == Bootstrap::kCm ? CONN_MODE_CM : CONN_MODE_SOCKET;
  }
  struct Wrong {
    const char* call;
    std::function<int()> make;
    int code;
    Says says{};
  };
  static void expect_refused_in_c(const std::vector<Wrong>& all) {
    for (const Wrong& each : all) {
      SCOPED_TRACE(each.call);
      EXPECT_EQ(each.make(), each.code);
      const std::string text = kv_error_detail();
      const std::string front = std::string(each.call) + ": ";
      EXPECT_TRUE(text.starts_with(front)) << text;
      if (text.starts_with(front)) test::expect_words(std::string_view(text).substr(front.size()), kOfCxx, each.says);
    }
  }

  std::unique_ptr<Server> server_;
  kv_client_t* client_ = nullptr;
  kv_client_t* fresh_ = nullptr;  ///< Never connected.
};

TEST_F(KvCallArguments, InCxx) {
  const auto client = connect(client_options(*server_));
  ASSERT_NE(client, nullptr);
  const std::string longest(1025, 'k');
  const Key bad[] = {{}, key_of(longest)};
  std::array<std::byte, 16> out;
  const auto told = [&](Status got, Status status, const Says& says) {
    EXPECT_EQ(got, status) << to_string(got);
    test::expect_words(error_detail(), kOfC, says);
  };
  for (const Key key : bad) {
    const Says says{"key", "1 to 1024 bytes", "got " + std::to_string(key.size())};
    told(client->put(key, bytes_of("v")).status, Status::kBadKey, says);
    told(client->get(key, out).status, Status::kBadKey, says);
    told(client->cas(key, 0, bytes_of("v")).status, Status::kBadKey, says);
    told(client->erase(key).status, Status::kBadKey, says);
    told(client->start_put(key, bytes_of("v"), 1), Status::kBadKey, says);
    told(client->start_get(key, out, 1), Status::kBadKey, says);
    expect_refused(client->open_cell(key, 0), Status::kBadKey, says);
  }
  const std::vector<std::byte> large(client->max_value_bytes() + 1);
  const Says too_long{"value", std::to_string(large.size()), std::to_string(client->max_value_bytes())};
  told(client->put(key_of("k"), large).status, Status::kTooLong, too_long);
  told(client->cas(key_of("k"), 0, large).status, Status::kTooLong, too_long);
  told(client->cas(key_of("k"), ~std::uint64_t{0}, bytes_of("v")).status, Status::kBadArgument,
       {"expected", "18446744073709551615"});
  told(client->start_put(key_of("k"), std::span(large).first(kEagerBytes), 1), Status::kBadArgument,
       {"value", "4096", "allocate"});
  std::uint64_t old = 0;
  told(client->fetch_add(Cell{.address = 3}, 1, old), Status::kBadArgument, {"cell", "0x3", "open it"});
  told(client->fetch_add(Cell{.address = 8, .worker = 9}, 1, old), Status::kBadArgument, {"worker", "9"});
  EXPECT_EQ(client->connection_error().status(), Status::kOk);
}

TEST_F(KvCallArguments, InC) {
  char buffer[16];
  std::size_t length = sizeof buffer;
  kv_cell_t cell{};
  std::uint64_t old = 0;
  void* handle = nullptr;
  char* value = nullptr;
  kv_client_options_t defaults;
  ASSERT_EQ(kv_client_options_init(&defaults), KV_OK);
  kv_server_options_t server_defaults;
  ASSERT_EQ(kv_server_options_init(&server_defaults), KV_OK);
  constexpr int kBad = KV_ERR_BAD_ARGUMENT;
  const auto null = [](const char* name) { return Says{name, "must not be null"}; };
  kv_get_item_t get{.key = nullptr, .klen = 1, .buf = buffer, .len = 1, .version = 0, .code = 0};
  kv_put_item_t put{.key = "k", .klen = 1, .value = nullptr, .vlen = 1, .version = 0, .code = 0};
  std::vector<Wrong> all{
      {"kv_client_options_init", [] { return kv_client_options_init(nullptr); }, kBad, null("options")},
      {"kv_server_options_init", [] { return kv_server_options_init(nullptr); }, kBad, null("options")},
      {"kv_client_create",
       [] {
         kv_client_t* const made = kv_client_create(static_cast<conn_mode_t>(2));
         kv_client_destroy(made);
         return made == nullptr ? KV_ERR_BAD_ARGUMENT : KV_OK;
       },
       kBad,
       {"mode", "got 2", "CONN_MODE_CM"}},
      {"kv_client_set_options", [&] { return kv_client_set_options(nullptr, &defaults); }, kBad, null("client")},
      {"kv_client_set_options", [&] { return kv_client_set_options(fresh_, nullptr); }, kBad, null("options")},
      {"kv_client_set_options",
       [&] { return kv_client_set_options(client_, &defaults); },
       KV_ERR_BUSY,
       {"connected", "kv_client_connect"}},
      {"kv_client_connect", [] { return kv_client_connect(nullptr, nullptr, 1); }, kBad, null("client")},
      {"kv_client_connect",
       [&] { return kv_client_connect(fresh_, nullptr, 70000); },
       kBad,
       {"port", "got 70000", "65535"}},
      {"kv_client_connect", [&] { return kv_client_connect(fresh_, nullptr, -1); }, kBad, {"port", "got -1", "65535"}},
      {"kv_client_connect",
       [&] { return kv_client_connect(fresh_, nullptr, 0); },
       kBad,
       {"port", "got 0", "1 to 65535"}},
      {"kv_client_connect",
       [&] { return kv_client_connect(client_, nullptr, 1); },
       KV_ERR_BUSY,
       {"connected already", "kv_client_disconnect"}},
      {"kv_client_disconnect", [] { return kv_client_disconnect(nullptr); }, kBad, null("client")},
      {"kv_client_put", [&] { return kv_client_put(client_, nullptr, 3, "v", 1); }, kBad, {"key", "null", "klen", "3"}},
      {"kv_client_put",
       [&] { return kv_client_put(client_, "k", 1, nullptr, 3); },
       kBad,
       {"value", "null", "vlen", "3"}},
      {"kv_client_put", [&] { return kv_client_put(nullptr, "k", 1, "v", 1); }, kBad, null("client")},
      {"kv_client_put",
       [&] { return kv_client_put(client_, "k", 0, "v", 1); },
       KV_ERR_BAD_KEY,
       {"key", "1 to 1024 bytes", "got 0"}},
      {"kv_client_get", [&] { return kv_client_get(client_, "k", 1, buffer, nullptr); }, kBad, null("len")},
      {"kv_client_get",
       [&] { return kv_client_get(client_, nullptr, 1, buffer, &length); },
       kBad,
       {"key", "null", "klen"}},
      {"kv_client_get", [&] { return kv_client_get(client_, "k", 1, nullptr, &length); }, kBad, {"buf", "null", "len"}},
      {"kv_client_get_version", [&] { return kv_client_get_version(client_, "k", 1, buffer, nullptr, &old); }, kBad,
       null("len")},
      {"kv_client_cas", [&] { return kv_client_cas(client_, nullptr, 1, 0, "v", 1, &old); }, kBad, {"key", "null"}},
      {"kv_client_cas", [&] { return kv_client_cas(client_, "k", 1, 0, nullptr, 1, &old); }, kBad, {"value", "null"}},
      {"kv_client_delete", [&] { return kv_client_delete(client_, nullptr, 1); }, kBad, {"key", "null"}},
      {"kv_client_cell_open", [&] { return kv_client_cell_open(client_, "k", 1, 0, nullptr); }, kBad, null("cell")},
      {"kv_client_cell_open",
       [&] { return kv_client_cell_open(client_, nullptr, 1, 0, &cell); },
       kBad,
       {"key", "null"}},
      {"kv_client_cell_fetch_add", [&] { return kv_client_cell_fetch_add(client_, nullptr, 1, &old); }, kBad,
       null("cell")},
      {"kv_client_cell_compare_swap", [&] { return kv_client_cell_compare_swap(client_, nullptr, 1, 2, &old); }, kBad,
       null("cell")},
      {"kv_client_cell_read", [&] { return kv_client_cell_read(client_, &cell, nullptr); }, kBad, null("value")},
      {"kv_client_get_items",
       [&] { return kv_client_get_items(client_, nullptr, 2); },
       kBad,
       {"items", "null", "count", "2"}},
      {"kv_client_put_items",
       [&] { return kv_client_put_items(client_, nullptr, 2); },
       kBad,
       {"items", "null", "count", "2"}},
      {"kv_client_get_items", [&] { return kv_client_get_items(client_, &get, 1); }, kBad, {"item 0", "null"}},
      {"kv_client_put_items", [&] { return kv_client_put_items(client_, &put, 1); }, kBad, {"item 0", "null"}},
      {"kv_client_batch_get",
       [&] { return kv_client_batch_get(client_, nullptr, nullptr, nullptr, nullptr, 2); },
       kBad,
       {"keys", "null", "count", "2"}},
      {"kv_client_batch_put",
       [&] { return kv_client_batch_put(client_, nullptr, nullptr, nullptr, nullptr, 2); },
       kBad,
       {"keys", "null", "count", "2"}},
      {"kv_server_start", [] { return kv_server_start(nullptr); }, kBad, null("server")},
      {"kv_server_port", [] { return kv_server_port(nullptr); }, kBad, null("server")},
      {"kv_server_stop", [] { return kv_server_stop(nullptr); }, kBad, null("server")},
      {"kv_open", [] { return kv_open(nullptr, nullptr); }, kBad, null("handle")},
      {"kv_open", [&] { return kv_open("host:70000", &handle); }, kBad, {"port", "host:70000", "1 to 65535"}},
      {"kv_open", [&] { return kv_open("host:", &handle); }, kBad, {"server", "host:", "port"}},
      {"kv_open_with", [] { return kv_open_with(nullptr, CONN_MODE_CM, nullptr, nullptr); }, kBad, null("handle")},
      {"kv_open_with",
       [&] { return kv_open_with(nullptr, static_cast<conn_mode_t>(2), nullptr, &handle); },
       kBad,
       {"mode", "got 2", "CONN_MODE_CM"}},
      {"kv_set", [] { return kv_set(nullptr, "k", "v"); }, kBad, null("handle")},
      {"kv_set", [&] { return kv_set(client_, nullptr, "v"); }, kBad, null("key")},
      {"kv_set", [&] { return kv_set(client_, "k", nullptr); }, kBad, null("value")},
      {"kv_get", [&] { return kv_get(nullptr, "k", &value); }, kBad, null("handle")},
      {"kv_get", [&] { return kv_get(client_, nullptr, &value); }, kBad, null("key")},
      {"kv_get", [&] { return kv_get(client_, "k", nullptr); }, kBad, null("value")},
  };
  const Says unconnected{"no connection", "kv_client_connect"};
  all.insert(
      all.end(),
      {{"kv_client_put", [&] { return kv_client_put(fresh_, "k", 1, "v", 1); }, KV_ERR_CLOSED, unconnected},
       {"kv_client_get", [&] { return kv_client_get(fresh_, "k", 1, buffer, &length); }, KV_ERR_CLOSED, unconnected},
       {"kv_client_cas", [&] { return kv_client_cas(fresh_, "k", 1, 0, "v", 1, &old); }, KV_ERR_CLOSED, unconnected},
       {"kv_client_delete", [&] { return kv_client_delete(fresh_, "k", 1); }, KV_ERR_CLOSED, unconnected},
       {"kv_client_cell_open", [&] { return kv_client_cell_open(fresh_, "k", 1, 0, &cell); }, KV_ERR_CLOSED,
        unconnected},
       {"kv_client_cell_read", [&] { return kv_client_cell_read(fresh_, &cell, &old); }, KV_ERR_CLOSED, unconnected},
       {"kv_client_allocate", [&] { return kv_client_allocate(fresh_, 1) == nullptr ? KV_ERR_CLOSED : KV_OK; },
        KV_ERR_CLOSED, unconnected}});
  const auto refuse_client = [&](auto set, const Says& says) {
    kv_client_options_t wrong = defaults;
    set(wrong);
    all.push_back({"kv_client_set_options", [this, wrong] { return kv_client_set_options(fresh_, &wrong); },
                   KV_ERR_BAD_ARGUMENT, says});
  };
  refuse_client([](kv_client_options_t& o) { o.timeout_ms = 0; }, {"timeout_ms", "got 0", "at least 1"});
  refuse_client([](kv_client_options_t& o) { o.connect_timeout_ms = 0; },
                {"connect_timeout_ms", "got 0", "at least 1"});
  refuse_client([](kv_client_options_t& o) { o.gid_index = 256; }, {"gid_index", "got 256", "0 to 255"});
  refuse_client([](kv_client_options_t& o) { o.lookup = static_cast<kv_lookup_t>(3); },
                {"lookup", "got 3", "KV_LOOKUP_"});
  refuse_client([](kv_client_options_t& o) { o.allowed_uid_count = 3; }, {"allowed_uids", "null", "3"});
  const auto refuse_server = [&](auto set, const Says& says) {
    kv_server_options_t wrong = server_defaults;
    set(wrong);
    all.push_back({"kv_server_create",
                   [wrong] {
                     kv_server_t* const made = kv_server_create(&wrong);
                     kv_server_destroy(made);
                     return made == nullptr ? KV_ERR_BAD_ARGUMENT : KV_OK;
                   },
                   KV_ERR_BAD_ARGUMENT, says});
  };
  refuse_server([](kv_server_options_t& o) { o.port = 70000; }, {"port", "got 70000", "0 to 65535"});
  refuse_server([](kv_server_options_t& o) { o.mode = static_cast<conn_mode_t>(2); },
                {"mode", "got 2", "CONN_MODE_CM"});
  refuse_server([](kv_server_options_t& o) { o.gid_index = -2; }, {"gid_index", "got -2", "0 to 255"});
  refuse_server([](kv_server_options_t& o) { o.allowed_uid_count = 3; }, {"allowed_uids", "null", "3"});
  expect_refused_in_c(all);

  // A server that was made with limits that are none.
  server_defaults.grace_ms = 0;
  kv_server_t* const server = kv_server_create(&server_defaults);
  ASSERT_NE(server, nullptr);
  expect_refused_in_c(
      {{"kv_server_start", [&] { return kv_server_start(server); }, kBad, {"grace", "got 0", "1 to 60000"}},
       {"kv_server_port", [&] { return kv_server_port(server); }, KV_ERR_CLOSED, {"does not run", "kv_server_start"}}});
  kv_server_destroy(server);
  for (int code = KV_ERR_SYSTEM; code <= KV_OK; ++code) EXPECT_GT(std::string_view(kv_error_string(code)).size(), 6u);
}

TEST(KvArguments, GrantsAreNamedInC) {
  const auto refuse = [](const kv_grant_t* grants, std::size_t count, const Says& says) {
    kv_server_options_t options;
    ASSERT_EQ(kv_server_options_init(&options), KV_OK);
    options.grants = grants;
    options.grant_count = count;
    EXPECT_EQ(kv_server_create(&options), nullptr);
    test::expect_words(kv_error_detail(), kOfCxx, says);
  };
  kv_grant_t grant{.uid = 1, .rights = 1, .prefix = nullptr, .prefix_length = 2, .max_memory_bytes = 0, .max_items = 0};
  refuse(nullptr, 3, {"kv_server_create", "grants", "null", "grant_count", "got 3"});
  refuse(&grant, 1, {"grants[0].prefix", "null", "prefix_length", "got 2"});
  refuse(&grant, 257, {"grant_count", "0 to 256", "got 257"});
  grant.prefix = "p";
  grant.prefix_length = 1025;
  refuse(&grant, 1, {"grants[0].prefix_length", "0 to 1024", "got 1025"});
  grant.prefix_length = 1;
  grant.rights = 8;
  refuse(&grant, 1, {"grants[0].rights", "KV_RIGHT_", "0 to 7", "got 8"});
}

TEST(KvArguments, MemoryAloneIsEnoughInC) {
  const Transport transport = test::transport_under_test();
  kv_server_options_t options;
  ASSERT_EQ(kv_server_options_init(&options), KV_OK);
  options.device = transport.device.c_str();
  options.mode = transport.bootstrap == Bootstrap::kCm ? CONN_MODE_CM : CONN_MODE_SOCKET;
  options.port = 0;
  options.memory_bytes = std::size_t{64} << 20;
  kv_server_t* const server = kv_server_create(&options);
  ASSERT_NE(server, nullptr) << kv_error_detail();
  EXPECT_EQ(kv_server_start(server), KV_OK) << kv_error_detail();
  EXPECT_GT(kv_server_port(server), 0);
  kv_server_destroy(server);
}

}  // namespace
}  // namespace verbena::kv
