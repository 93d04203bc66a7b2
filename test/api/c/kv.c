/* A program in strict C11 against verbena/kv.h: what rdma_kv's README shows, and the calls on C strings. */
#include <verbena/kv.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, kv_error_detail()); \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)

static kv_server_t* serve(conn_mode_t mode) {
  kv_server_options_t options;
  CHECK(kv_server_options_init(&options) == KV_OK);
  options.mode = mode;
  options.device = "soft";
  options.port = 0;
  options.memory_bytes = (size_t)64 << 20;
  options.max_value_bytes = (size_t)16 << 20;
  options.pin_workers = 0;
  options.max_cells = 10;
  kv_server_t* server = kv_server_create(&options);
  CHECK(server && kv_server_start(server) == KV_OK);
  return server;
}

static void use(kv_client_t* client) {
  char buf[16];
  size_t len = sizeof buf;
  uint64_t ver = 0;
  CHECK(kv_client_put(client, "key", 3, "value", 5) == 0);
  CHECK(kv_client_get_version(client, "key", 3, buf, &len, &ver) == 0);
  CHECK(len == 5 && memcmp(buf, "value", 5) == 0);
  CHECK(kv_client_cas(client, "key", 3, ver + 1, "new", 3, &ver) == KV_ERR_VERSION_MISMATCH);
  CHECK(kv_client_cas(client, "key", 3, ver, "new", 3, &ver) == 0);

  int64_t left_ms = -1;
  CHECK(kv_client_get_ttl(client, "key", 3, &left_ms) == 0 && left_ms == 0);
  CHECK(kv_client_put_ttl(client, "short", 5, "value", 5, 60000) == 0);
  CHECK(kv_client_get_ttl(client, "short", 5, &left_ms) == 0 && left_ms > 0 && left_ms <= 60000);
  CHECK(kv_client_put_ttl(client, "short", 5, "value", 5, 1) == 0);
  while (kv_client_get_ttl(client, "short", 5, &left_ms) == 0) CHECK(left_ms <= 1);
  CHECK(kv_client_get_ttl(client, "short", 5, &left_ms) == KV_ERR_NOT_FOUND);

  const char* keys[] = {"a", "bb"};
  const size_t klens[] = {1, 2};
  const void* values[] = {"one", "two"};
  const size_t vlens[] = {3, 3};
  CHECK(kv_client_batch_put(client, keys, klens, values, vlens, 2) == 0);
  char one[3], two[3];
  void* into[] = {one, two};
  size_t got[] = {sizeof one, sizeof two};
  CHECK(kv_client_batch_get(client, keys, klens, into, got, 2) == 0);
  CHECK(memcmp(one, "one", 3) == 0 && memcmp(two, "two", 3) == 0);
  kv_put_item_t items[2] = {{.key = "a", .klen = 1, .value = "1", .vlen = 1}, {.key = "bb", .klen = 2}};
  CHECK(kv_client_put_items_ttl(client, items, 2, 60000) == 0 && items[0].code == 0 && items[1].version != 0);
  CHECK(kv_client_get_ttl(client, "bb", 2, &left_ms) == 0 && left_ms > 0 && left_ms <= 60000);

  kv_cell_t cell;
  uint64_t old;
  CHECK(kv_client_cell_open(client, "cell", 4, 1, &cell) == 0 && cell.is_new == 1);
  CHECK(kv_client_cell_fetch_add(client, &cell, 2, &old) == 0 && old == 1);
  CHECK(kv_client_cell_compare_swap(client, &cell, 3, 9, &old) == 0 && old == 3);
  CHECK(kv_client_cell_read(client, &cell, &old) == 0 && old == 9);

  len = sizeof buf;
  CHECK(kv_client_delete(client, "key", 3) == 0);
  CHECK(kv_client_get(client, "key", 3, buf, &len) == KV_ERR_NOT_FOUND);
}

int main(void) {
  kv_client_options_t options;
  CHECK(kv_client_options_init(&options) == KV_OK);
  options.device = "soft";

  kv_server_t* server = serve(CONN_MODE_CM);
  kv_client_t* client = kv_client_create(CONN_MODE_CM);
  CHECK(client && kv_client_set_options(client, &options) == 0);
  CHECK(kv_client_connect(client, "127.0.0.1", kv_server_port(server)) == 0);
  use(client);
  CHECK(kv_client_disconnect(client) == 0);
  kv_client_destroy(client);

  char name[32];
  void* handle;
  char* value;
  snprintf(name, sizeof name, "127.0.0.1:%d", kv_server_port(server));
  CHECK(kv_open_with(name, CONN_MODE_CM, &options, &handle) == 0);
  CHECK(kv_set(handle, "name", "text") == 0 && kv_get(handle, "name", &value) == 0);
  CHECK(strcmp(value, "text") == 0);
  kv_release(value);
  CHECK(kv_close(handle) == 0);
  CHECK(kv_server_stop(server) == 0);
  kv_server_destroy(server);

  server = serve(CONN_MODE_SOCKET);
  kv_client_t* other = kv_client_create(CONN_MODE_SOCKET);
  CHECK(kv_client_connect_socket(other, "127.0.0.1", kv_server_port(server), "soft") == 0);
  use(other);
  kv_client_destroy(other);
  kv_server_destroy(server);
  return 0;
}
