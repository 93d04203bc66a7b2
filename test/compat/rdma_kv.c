/* A program in strict C11 against verbena/compat/kv_store.h: what rdma_kv's README shows, in both modes, with a server
 * by kv_config_t. */
#include <verbena/compat/kv_store.h>

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
  const kv_config_t config = {
      .bind_ip = "127.0.0.1",
      .port = 0,
      .memory_size = (size_t)64 << 20,
      .use_huge_pages = true,
      .hash_table_size = 65536,
      .num_workers = 1,
      .conn_mode = mode,
      .ib_dev = "soft",
  };
  kv_server_t* server = kv_server_create(&config);
  CHECK(server && kv_server_start(server) == 0);
  return server;
}

/* The operations of the README, and what they leave behind. */
static void use(kv_client_t* client) {
  char buf[16];
  size_t len = sizeof buf;
  uint64_t ver = 0;
  CHECK(kv_client_put(client, "key", 3, "value", 5) == KV_OK);
  CHECK(kv_client_get(client, "key", 3, buf, &len) == KV_OK && len == 5 && memcmp(buf, "value", 5) == 0);
  CHECK(kv_client_cas(client, "key", 3, 1, "new", 3, &ver) == KV_OK && ver == 2);
  CHECK(kv_client_cas(client, "key", 3, 1, "newer", 5, &ver) == KV_ERR_CAS_FAILED && ver == 2);
  len = 2;
  CHECK(kv_client_get(client, "key", 3, buf, &len) == KV_ERR_BUFFER_TOO_SMALL && len == 3);
  CHECK(kv_client_delete(client, "key", 3) == KV_OK);
  CHECK(kv_client_delete(client, "key", 3) == KV_ERR_NOT_FOUND);
  len = sizeof buf;
  CHECK(kv_client_get(client, "key", 3, buf, &len) == KV_ERR_NOT_FOUND);
  CHECK(kv_client_cas(client, "key", 3, 1, "new", 3, &ver) == KV_ERR_NOT_FOUND);
  CHECK(kv_client_put(client, "", 0, "value", 5) == KV_ERR_KEY_TOO_LONG);
  CHECK(kv_client_put(client, "key", 3, "", 0) == KV_OK);
  CHECK(kv_client_get(client, "key", 3, buf, &len) == KV_OK && len == 0);
}

/* Values that are larger than a message, and grow and shrink. */
static void use_large(kv_client_t* client) {
  const size_t sizes[] = {4095, 4096, 1 << 20, 3, 70000};
  uint64_t version = 0;
  char* value = malloc(1 << 20);
  char* got = malloc(1 << 20);
  CHECK(value && got);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    size_t len = 1 << 20;
    memset(value, 'a' + (int)i, sizes[i]);
    CHECK(kv_client_put(client, "large", 5, value, sizes[i]) == KV_OK);
    CHECK(kv_client_get_counted(client, "large", 5, got, &len, &version) == KV_OK && version == i + 1);
    CHECK(len == sizes[i] && memcmp(value, got, len) == 0);
  }
  free(value);
  free(got);
}

static void use_batches(kv_client_t* client) {
  const char* keys[] = {"a", "bb", "missing"};
  const size_t klens[] = {1, 2, 7};
  const void* values[] = {"one", "two"};
  const size_t vlens[] = {3, 3};
  char one[3], two[3], none[3];
  void* into[] = {one, two, none};
  size_t got[] = {sizeof one, sizeof two, sizeof none};
  CHECK(kv_client_batch_put(client, keys, klens, values, vlens, 2) == KV_OK);
  CHECK(kv_client_batch_get(client, keys, klens, into, got, 3) == KV_ERR_NOT_FOUND);
  CHECK(got[0] == 3 && memcmp(one, "one", 3) == 0 && got[1] == 3 && memcmp(two, "two", 3) == 0 && got[2] == SIZE_MAX);
}

/* A value that another kind of client put has no version of its own. */
static void refuse_plain_values(int port) {
  void* handle = 0;
  char name[32], buf[16];
  size_t len = sizeof buf;
  kv_client_options_t options;
  CHECK(kv_client_options_init(&options) == KV_OK);
  options.device = "soft";
  snprintf(name, sizeof name, "127.0.0.1:%d", port);
  CHECK(kv_open_with(name, CONN_MODE_CM, &options, &handle) == KV_OK);
  CHECK(kv_set(handle, "plain", "a value of its own") == KV_OK);
  CHECK(kv_client_get(handle, "plain", 5, buf, &len) == KV_ERR_WRONG_KIND);
  CHECK(kv_client_put(handle, "plain", 5, "x", 1) == KV_ERR_WRONG_KIND);
  CHECK(strstr(kv_error_detail(), "kv_client_put_counted"));
  CHECK(kv_client_put(0, "key", 3, "x", 1) == KV_ERR_BAD_ARGUMENT);
  CHECK(kv_client_get(handle, "key", 3, buf, 0) == KV_ERR_BAD_ARGUMENT);
  CHECK(kv_close(handle) == KV_OK);
}

int main(void) {
  kv_server_t* server = serve(CONN_MODE_CM);
  kv_client_t* client = kv_client_create(CONN_MODE_CM);
  kv_config_t wrong = {.memory_size = 1, .num_workers = -1, .ib_dev = "soft"};
  kv_client_options_t options;
  CHECK(kv_client_options_init(&options) == KV_OK);
  options.device = "soft";
  CHECK(kv_client_set_options(client, &options) == KV_OK);
  CHECK(kv_client_connect(client, "127.0.0.1", kv_server_port(server)) == 0);
  use(client);
  use_large(client);
  use_batches(client);
  kv_client_disconnect(client);
  kv_client_destroy(client);
  refuse_plain_values(kv_server_port(server));
  kv_server_stop(server);
  kv_server_destroy(server);

  server = serve(CONN_MODE_SOCKET);
  client = kv_client_create(CONN_MODE_SOCKET);
  CHECK(kv_client_connect_socket(client, "127.0.0.1", kv_server_port(server), "soft") == 0);
  use(client);
  kv_client_disconnect(client);
  CHECK(kv_client_put(client, "key", 3, "value", 5) != KV_OK);
  kv_client_destroy(client);
  kv_server_destroy(server);

  server = kv_server_create(&wrong);
  CHECK(!server || kv_server_start(server) == KV_ERR_BAD_ARGUMENT);
  kv_server_destroy(server);
  return 0;
}
