// Each call sets what it returns through pointers on every way out: a caller that overlooks the code finds zeros there,
// and nothing that looks like success.
#include "every_call.hpp"

#include <verbena/compat/hash_table.h>
#include <verbena/compat/key_versions.h>
#include <verbena/compat/rdma_common.h>
#include <verbena/mesh.h>

#include "../../host/child.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace verbena::test {
namespace {

using namespace std::chrono_literals;

/// A place for what a call returns. It holds bytes that no call of ours leaves.
template <class Value>
class Out {
 public:
  Out() { std::ranges::fill(std::as_writable_bytes(std::span(&value, 1)), kPoison); }
  [[nodiscard]] bool is_set() const {
    return std::ranges::any_of(std::as_bytes(std::span(&value, 1)), [](std::byte byte) { return byte != kPoison; });
  }

  Value value;

 private:
  static constexpr std::byte kPoison{0xa5};
};

/// A call with outs, on a client of the store or on a connection.
template <class Handle>
struct OutCall {
  const char* name;
  /// Returns the call's code; `is_set` becomes whether it has set all of its outs.
  int (*call)(Handle* handle, bool& is_set);
};
using StoreCall = OutCall<kv_client_t>;
using ConnectionCall = OutCall<RdmaConn>;

/// Runs `call` with a place for one value.
template <class Value, class Call>
int sets(bool& is_set, Call&& call) {
  Out<Value> out;
  const int code = call(&out.value);
  is_set = out.is_set();
  return code;
}
using Number = std::uint64_t;

constexpr std::uint64_t kNoVersion = ~std::uint64_t{0};

/// A batch whose items look done before, as those of a caller who repeats one.
template <class Item, class Run>
int batch(bool& is_set, Run&& run) {
  std::array<Item, 3> items{};
  std::array<char, 3> bytes{};
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i].key = "outs";
    items[i].klen = 4;
    items[i].code = KV_OK;
    items[i].version = kNoVersion;
    if constexpr (std::is_same_v<Item, kv_get_item_t>) {
      items[i].buf = &bytes[i];
      items[i].len = 1;
    } else {
      items[i].value = &bytes[i];
      items[i].vlen = 1;
    }
  }
  const int code = run(items.data(), items.size());
  is_set = std::ranges::all_of(items, [&](const Item& item) {
    return code == KV_OK ? item.version != kNoVersion : item.code != KV_OK && item.version == 0;
  });
  return code;
}

constexpr std::array kStoreCalls{
    StoreCall{"kv_client_get_version",
              [](kv_client_t* of, bool& is_set) {
                std::byte room{};
                std::size_t length = 1;
                return sets<Number>(is_set, [&](Number* version) {
                  return kv_client_get_version(of, "outs", 4, &room, &length, version);
                });
              }},
    StoreCall{"kv_client_cas",
              [](kv_client_t* of, bool& is_set) {
                return sets<Number>(is_set,
                                    [&](Number* version) { return kv_client_cas(of, "outs", 4, 1, "x", 1, version); });
              }},
    StoreCall{"kv_client_get_ttl",
              [](kv_client_t* of, bool& is_set) {
                return sets<std::int64_t>(is_set,
                                          [&](std::int64_t* left) { return kv_client_get_ttl(of, "outs", 4, left); });
              }},
    StoreCall{"kv_client_cell_open",
              [](kv_client_t* of, bool& is_set) {
                return sets<kv_cell_t>(
                    is_set, [&](kv_cell_t* cell) { return kv_client_cell_open(of, "outs cell", 9, 0, cell); });
              }},
    StoreCall{"kv_client_cell_fetch_add",
              [](kv_client_t* of, bool& is_set) {
                const kv_cell_t cell{};
                return sets<Number>(is_set, [&](Number* old) { return kv_client_cell_fetch_add(of, &cell, 1, old); });
              }},
    StoreCall{"kv_client_cell_compare_swap",
              [](kv_client_t* of, bool& is_set) {
                const kv_cell_t cell{};
                return sets<Number>(is_set,
                                    [&](Number* old) { return kv_client_cell_compare_swap(of, &cell, 1, 2, old); });
              }},
    StoreCall{"kv_client_cell_read",
              [](kv_client_t* of, bool& is_set) {
                const kv_cell_t cell{};
                return sets<Number>(is_set, [&](Number* value) { return kv_client_cell_read(of, &cell, value); });
              }},
    StoreCall{"kv_client_keys",
              [](kv_client_t* of, bool& is_set) {
                kv_cursor_t cursor{};
                kv_key_page_t page;
                Out<std::uint32_t> poison;
                page.count = page.length = poison.value;
                const int code = kv_client_keys(of, "outs", 4, &cursor, &page);
                is_set = page.count != poison.value && page.length != poison.value;
                return code;
              }},
    StoreCall{"kv_client_flush",
              [](kv_client_t* of, bool& is_set) {
                return sets<Number>(is_set,
                                    [&](Number* erased) { return kv_client_flush(of, "no such key", 11, erased); });
              }},
    StoreCall{"kv_client_put_counted",
              [](kv_client_t* of, bool& is_set) {
                return sets<Number>(is_set,
                                    [&](Number* version) { return kv_client_put_counted(of, "", 0, "x", 1, version); });
              }},
    StoreCall{"kv_client_get_counted",
              [](kv_client_t* of, bool& is_set) {
                std::byte room{};
                std::size_t length = 1;
                return sets<Number>(is_set, [&](Number* version) {
                  return kv_client_get_counted(of, "outs", 4, &room, &length, version);
                });
              }},
    StoreCall{"kv_client_cas_counted",
              [](kv_client_t* of, bool& is_set) {
                return sets<Number>(
                    is_set, [&](Number* version) { return kv_client_cas_counted(of, "outs", 4, 1, "x", 1, version); });
              }},
    StoreCall{"kv_get",
              [](kv_client_t* of, bool& is_set) {
                return sets<char*>(is_set, [&](char** value) { return kv_get(of, "no such key", value); });
              }},
    StoreCall{"kv_client_get_items",
              [](kv_client_t* of, bool& is_set) {
                return batch<kv_get_item_t>(is_set, [&](kv_get_item_t* items, std::size_t count) {
                  return kv_client_get_items(of, items, count);
                });
              }},
    StoreCall{"kv_client_put_items",
              [](kv_client_t* of, bool& is_set) {
                return batch<kv_put_item_t>(is_set, [&](kv_put_item_t* items, std::size_t count) {
                  return kv_client_put_items(of, items, count);
                });
              }},
    StoreCall{"kv_client_put_items_ttl",
              [](kv_client_t* of, bool& is_set) {
                return batch<kv_put_item_t>(is_set, [&](kv_put_item_t* items, std::size_t count) {
                  return kv_client_put_items_ttl(of, items, count, 60'000);
                });
              }},
    StoreCall{"kv_client_put_items, one of them wrong",
              [](kv_client_t* of, bool& is_set) {
                return batch<kv_put_item_t>(is_set, [&](kv_put_item_t* items, std::size_t count) {
                  items[count - 1].key = nullptr;
                  return kv_client_put_items(of, items, count);
                });
              }},
    StoreCall{"kv_client_batch_get",
              [](kv_client_t* of, bool& is_set) {
                const char* const keys[] = {"outs", "never"};
                const std::size_t klens[] = {4, 5};
                std::array<char, 2> room{};
                void* const places[] = {&room[0], &room[1]};
                std::size_t lengths[] = {1, 1};
                const int code = kv_client_batch_get(of, keys, klens, places, lengths, 2);
                is_set = lengths[1] == SIZE_MAX && (code == KV_ERR_NOT_FOUND || lengths[0] == SIZE_MAX);
                return code;
              }},
};

/// Names the calls that leave an out as it was, or whose code is none that `is_expected`.
template <class Handle, std::size_t kCount>
[[nodiscard]] std::string left_by(const std::array<OutCall<Handle>, kCount>& calls, Handle* handle,
                                  const std::function<bool(int)>& is_expected) {
  std::string left;
  for (const OutCall<Handle>& each : calls) {
    bool is_set = false;
    const int code = each.call(handle, is_set);
    if (!is_expected(code)) left += each.name + std::string(" returned ") + std::to_string(code) + "; ";
    if (!is_set) left += each.name + std::string(" left it with ") + std::to_string(code) + "; ";
  }
  return left;
}
[[nodiscard]] std::string left_by_the_store(kv_client_t* client, const std::function<bool(int)>& is_expected) {
  return left_by(kStoreCalls, client, is_expected);
}

/// A server, and a client of the C API that is connected to it.
class Outs : public testing::Test {
 protected:
  EveryCallOfTheStore all_;
  kv_client_t* const client_ = all_.c_client();
};

TEST_F(Outs, OfTheStoreAreSetWithoutAClient) {
  EXPECT_EQ(left_by_the_store(nullptr, [](int code) { return code == KV_ERR_BAD_ARGUMENT; }), "");
}

TEST_F(Outs, OfTheStoreAreSetWithoutAConnection) {
  kv_client_t* const idle = kv_client_create(CONN_MODE_CM);
  ASSERT_NE(idle, nullptr);
  EXPECT_EQ(left_by_the_store(idle, [](int code) { return code == KV_ERR_CLOSED || code == KV_ERR_BAD_ARGUMENT; }), "");
  kv_client_destroy(idle);
}

TEST_F(Outs, OfTheStoreAreSetInAForkedChild) {
  EXPECT_TRUE(in_child([&] {
    return left_by_the_store(client_, [](int code) { return code == KV_ERR_FORKED || code == KV_ERR_BAD_ARGUMENT; });
  }));
}

TEST_F(Outs, OfTheStoreAreSetWhereTheKeyIsNotThere) {
  EXPECT_EQ(kv_client_put(client_, "outs", 4, "x", 1), KV_OK);
  EXPECT_EQ(kv_client_delete(client_, "outs", 4), KV_OK);
  for (const StoreCall& each : kStoreCalls) {
    bool is_set = false;
    const int code = each.call(client_, is_set);
    EXPECT_TRUE(is_set) << each.name << " with " << code;
  }
}

TEST_F(Outs, OfTheStoreAreSetAfterItsServerHasGone) {
  all_.server.reset();
  EXPECT_EQ(left_by_the_store(client_, [](int code) { return code != KV_OK; }), "");
}

/// A batch beside another thread's call is refused as a whole, and says so in each item.
TEST_F(Outs, OfTheStoreAreSetWhileAnotherThreadCalls) {
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    const std::string value(4000, 'v');
    while (!is_over.load()) (void)kv_client_put(client_, "other", 5, value.data(), value.size());
  });
  const Deadline deadline = Deadline::after(60s);
  for (const StoreCall& each : kStoreCalls) {
    int code = KV_OK;
    while (code != KV_ERR_BUSY && code != KV_ERR_BAD_ARGUMENT && !deadline.passed()) {
      bool is_set = false;
      code = each.call(client_, is_set);
      ASSERT_TRUE(is_set || code == KV_OK) << each.name << " with " << code;
    }
    EXPECT_TRUE(code == KV_ERR_BUSY || code == KV_ERR_BAD_ARGUMENT) << each.name << " with " << code;
  }
  is_over.store(true);
  other.join();
}

constexpr std::array kConnectionCalls{
    ConnectionCall{"rdmaConnRecv",
                   [](RdmaConn* of, bool& is_set) {
                     std::byte room{};
                     return sets<RdmaMessage>(
                         is_set, [&](RdmaMessage* message) { return rdmaConnRecv(of, &room, 1, message, 1); });
                   }},
    ConnectionCall{"rdmaConnWindow",
                   [](RdmaConn* of, bool& is_set) {
                     return sets<std::size_t>(
                         is_set, [&](std::size_t* length) { return (void)rdmaConnWindow(of, length), int{RDMA_OK}; });
                   }},
    ConnectionCall{"rdmaConnPeerWindow",
                   [](RdmaConn* of, bool& is_set) {
                     return sets<RdmaWindow>(is_set,
                                             [&](RdmaWindow* window) { return rdmaConnPeerWindow(of, window); });
                   }},
    ConnectionCall{"rdmaConnLookup",
                   [](RdmaConn* of, bool& is_set) {
                     return sets<RdmaWindow>(
                         is_set, [&](RdmaWindow* window) { return rdmaConnLookup(of, "never", window, 1); });
                   }},
    ConnectionCall{"rdmaSyncFetchAdd",
                   [](RdmaConn* of, bool& is_set) {
                     return sets<Number>(is_set, [&](Number* old) { return rdmaSyncFetchAdd(of, 8, 0, 1, old); });
                   }},
    ConnectionCall{"rdmaSyncCompareSwap",
                   [](RdmaConn* of, bool& is_set) {
                     return sets<Number>(is_set, [&](Number* old) { return rdmaSyncCompareSwap(of, 9, 0, 1, 2, old); });
                   }},
    ConnectionCall{"rdmaConnComplete",
                   [](RdmaConn* of, bool& is_set) {
                     return sets<RdmaCompletion>(
                         is_set, [&](RdmaCompletion* completion) { return rdmaConnComplete(of, completion, 1); });
                   }},
    ConnectionCall{"rdmaPAExport",
                   [](RdmaConn* of, bool& is_set) {
                     return sets<Number>(is_set, [&](Number* physical) { return rdmaPAExport(of, nullptr, physical); });
                   }},
    ConnectionCall{"rdmaPAAddress",
                   [](RdmaConn* of, bool& is_set) {
                     return sets<Number>(is_set,
                                         [&](Number* physical) { return rdmaPAAddress(of, nullptr, physical); });
                   }},
    ConnectionCall{"rdmaPASyncFetchAdd",
                   [](RdmaConn* of, bool& is_set) {
                     return sets<Number>(is_set, [&](Number* old) { return rdmaPASyncFetchAdd(of, 8, 1, old); });
                   }},
    ConnectionCall{"rdmaPASyncCompareSwap",
                   [](RdmaConn* of, bool& is_set) {
                     return sets<Number>(is_set, [&](Number* old) { return rdmaPASyncCompareSwap(of, 8, 1, 2, old); });
                   }},
    ConnectionCall{"hash_table_remote_get",
                   [](RdmaConn* of, bool& is_set) {
                     const hash_table_place_t place{};
                     const RdmaMemory scratch{};
                     std::byte room{};
                     std::size_t length = 1;
                     return sets<Number>(is_set, [&](Number* version) {
                       return hash_table_remote_get(of, &place, 0, &scratch, "outs", 4, &room, &length, version);
                     });
                   }},
};

[[nodiscard]] std::string left_by_a_connection(RdmaConn* conn) {
  return left_by(kConnectionCalls, conn, [](int) { return true; });
}

TEST(ConnectionOuts, AreSetOnEveryWayOut) {
  EXPECT_EQ(left_by_a_connection(nullptr), "");
  RdmaConn* const idle = rdmaConn();
  EXPECT_EQ(left_by_a_connection(idle), "");
  rdmaConnClose(idle);
  Echo echo;
  Client client;
  connect(client, transport_under_test(), echo.port());
  ASSERT_NE(client.conn, nullptr);
  EXPECT_EQ(left_by_a_connection(client.conn), "");
  EXPECT_TRUE(in_child([&] { return left_by_a_connection(client.conn); }));
  rdmaConnClose(client.conn);
}

TEST(ConnectionOuts, OfAContextAreSetWithoutOne) {
  std::uint64_t result = 5;
  EXPECT_NE(rdma_cas(nullptr, 8, 0, 1, 2, &result), 0);
  EXPECT_EQ(result, 0u);
}

TEST(ConnectionOuts, OfWhatIsMadeAreNull) {
  Out<RdmaListener*> listener;
  EXPECT_EQ(rdmaServer(&listener.value, "127.0.0.1", -1), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(listener.value, nullptr);
  RdmaNodeOptions options;
  rdmaNodeOptionsInit(&options);
  options.device = "no such device";
  Out<RdmaNode*> node;
  EXPECT_NE(rdmaNode(&node.value, &options), RDMA_OK);
  EXPECT_EQ(node.value, nullptr);
  std::array<char, 4> address{'w', 'a', 's', '\0'};
  EXPECT_NE(rdmaServerAddress(nullptr, address.data(), address.size()), RDMA_OK);
  EXPECT_EQ(address[0], '\0');
  Out<void*> handle;
  EXPECT_NE(kv_open("[no address", &handle.value), KV_OK);
  EXPECT_EQ(handle.value, nullptr);
}

TEST(MeshOuts, AreSetWithoutALane) {
  Out<void*> message;
  EXPECT_EQ(mesh_reserve(nullptr, 0, &message.value), MESH_ERR_BAD_ARGUMENT);
  EXPECT_EQ(message.value, nullptr);
  Out<mesh_window_t> window;
  EXPECT_EQ(mesh_find(nullptr, 0, "name", 0, &window.value), MESH_ERR_BAD_ARGUMENT);
  EXPECT_TRUE(window.is_set());
  Out<mesh_counters_t> counters;
  EXPECT_EQ(mesh_lane_counters(nullptr, &counters.value), MESH_ERR_BAD_ARGUMENT);
  EXPECT_TRUE(counters.is_set());
  Out<mesh_t*> mesh;
  EXPECT_EQ(mesh_join(nullptr, nullptr, &mesh.value), MESH_ERR_BAD_ARGUMENT);
  EXPECT_EQ(mesh.value, nullptr);
  Out<mesh_carrier_t*> carrier;
  EXPECT_EQ(mesh_carrier_hosts(nullptr, 1, &carrier.value), MESH_ERR_BAD_ARGUMENT);
  EXPECT_EQ(carrier.value, nullptr);
  Out<void*> memory;
  EXPECT_EQ(mesh_allocate(nullptr, 1, &memory.value), MESH_ERR_BAD_ARGUMENT);
  EXPECT_EQ(memory.value, nullptr);
}

TEST(CxxOuts, OfACellThatWasNotOpenedAreSet) {
  EveryCallOfTheStore all;
  std::uint64_t old = 5;
  EXPECT_NE(all.client->fetch_add({}, 1, old), Status::kOk);
  EXPECT_EQ(old, 0u);
  old = 5;
  EXPECT_NE(all.client->compare_swap({}, 1, 2, old), Status::kOk);
  EXPECT_EQ(old, 0u);
  old = 5;
  EXPECT_NE(all.client->read({}, old), Status::kOk);
  EXPECT_EQ(old, 0u);
}

TEST(TableOuts, AreSetWithoutATable) {
  std::byte room{};
  std::size_t length = 1;
  Out<std::uint64_t> version;
  EXPECT_EQ(hash_table_copy(nullptr, "outs", 4, &room, &length, &version.value), KV_ERR_BAD_ARGUMENT);
  EXPECT_TRUE(version.is_set());
  Out<std::uint64_t> address;
  Out<std::size_t> size;
  EXPECT_EQ(hash_table_get_entry_addr(nullptr, "outs", 4, &address.value, &size.value), KV_ERR_BAD_ARGUMENT);
  EXPECT_TRUE(address.is_set() && size.is_set());
  Out<hash_table_place_t> place;
  EXPECT_EQ(hash_table_get_place(nullptr, &place.value), KV_ERR_BAD_ARGUMENT);
  EXPECT_TRUE(place.is_set());
  const kv_key_page_t page{};
  std::size_t at = 0;
  EXPECT_EQ(kv_key_page_next(&page, &at, &length), nullptr);
  EXPECT_EQ(length, 0u);
}

}  // namespace
}  // namespace verbena::test
