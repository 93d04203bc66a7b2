/* A program in strict C11 against verbena/compat/rdma_common.h and memory_pool.h: both ends of a connection, in both
 * modes, and what the calls refuse. */
#include <verbena/compat/kv_store.h>
#include <verbena/compat/memory_pool.h>
#include <verbena/compat/rdma_common.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, rdmaErrorDetail()); \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)

enum { POOL_BYTES = 1 << 20 };

/* Messages, in the order of the receives. */
static void converse(rdma_context_t* from, rdma_context_t* to) {
  char first[16], second[16];
  rdma_mem_info_t info = {(uint64_t)(uintptr_t)from->mr->addr, from->mr->rkey, POOL_BYTES};
  rdma_msg_type_t type = MSG_TYPE_RDMA_INFO;
  CHECK(rdma_poll_completion(to, 0) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(rdma_recv(to, first, sizeof first) == 0 && rdma_recv(to, second, sizeof second) == 0);
  CHECK(rdma_poll_completion(to, 0) == RDMA_ERR_TIMED_OUT);
  CHECK(rdma_send(from, "one", 4) == 0 && rdma_send(from, "two", 4) == 0);
  CHECK(rdma_poll_completion(to, RDMA_TIMEOUT_MS) == 0 && strcmp(first, "one") == 0);
  CHECK(rdma_poll_completion(to, RDMA_TIMEOUT_MS) == 0 && strcmp(second, "two") == 0);
  CHECK(type == 8 && rdma_send(from, &info, sizeof info) == 0);
  CHECK(rdma_recv(to, first, 1) == 0 && rdma_poll_completion(to, RDMA_TIMEOUT_MS) == RDMA_ERR_BUFFER_TOO_SMALL);
  CHECK(rdma_recv(to, &to->remote_mem, sizeof to->remote_mem) == 0);
  CHECK(rdma_poll_completion(to, RDMA_TIMEOUT_MS) == 0 && to->remote_mem.rkey == info.rkey);
  for (int i = 0; i < RDMA_MAX_WR; ++i) CHECK(rdma_recv(to, first, sizeof first) == 0);
  CHECK(rdma_recv(to, first, sizeof first) == RDMA_ERR_AGAIN);
}

/* READs, WRITEs and CAS of the peer's memory. */
static void reach(rdma_context_t* ctx, char* own, char* theirs) {
  const uint64_t at = ctx->remote_mem.addr;
  const uint32_t rkey = ctx->remote_mem.rkey;
  uint64_t word = 7, old = 0;
  char stack[8];
  CHECK(theirs == (char*)(uintptr_t)at);
  strcpy(own, "written");
  CHECK(rdma_write(ctx, own, 8, at + 64, rkey) == 0 && strcmp(theirs + 64, "written") == 0);
  strcpy(theirs + 128, "read");
  CHECK(rdma_read(ctx, own + 16, 5, at + 128, rkey) == 0 && strcmp(own + 16, "read") == 0);
  memcpy(theirs, &word, sizeof word);
  CHECK(rdma_cas(ctx, at, rkey, 7, 9, &old) == 0 && old == 7);
  CHECK(rdma_cas(ctx, at, rkey, 7, 11, &old) == 0 && old == 9);
  CHECK(rdma_cas(ctx, at, rkey, 9, 12, 0) == 0);
  memcpy(&word, theirs, sizeof word);
  CHECK(word == 12);
  CHECK(rdma_read(ctx, stack, sizeof stack, at, rkey) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(rdma_read(ctx, own + POOL_BYTES - 8, 9, at, rkey) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(rdma_write(ctx, own, 0, at, rkey) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(rdma_read(ctx, own, 8, at + POOL_BYTES - 4, rkey) < 0);
}

static void connect_both(conn_mode_t mode) {
  memory_pool_t* const pools[] = {memory_pool_create(POOL_BYTES, true), memory_pool_create(POOL_BYTES, true)};
  rdma_context_t listener, server, client;
  CHECK(pools[0] && pools[1]);
  CHECK(rdma_init_context(&listener, mode) == 0 && rdma_init_context(&client, mode) == 0);
  CHECK(rdma_register_memory(&listener, memory_pool_get_base(pools[0]), memory_pool_get_size(pools[0])) == 0);
  CHECK(rdma_register_memory(&client, memory_pool_get_base(pools[1]), memory_pool_get_size(pools[1])) == 0);
  CHECK(rdma_register_memory(&client, memory_pool_get_base(pools[1]), 64) == RDMA_ERR_BUSY);
  CHECK(rdma_send(&client, "early", 6) == RDMA_ERR_CLOSED);
  CHECK(rdma_listen_port(&client) == RDMA_ERR_CLOSED && rdma_accept(&client, &server) == RDMA_ERR_CLOSED);
  CHECK(rdma_socket_listen(&listener, "127.0.0.1", 0, "soft") == 0);
  CHECK(rdma_listen(&listener, "127.0.0.1", 0) == RDMA_ERR_BUSY);
  CHECK(rdma_socket_connect(&client, "127.0.0.1", rdma_listen_port(&listener), "soft") == 0);
  CHECK(rdma_accept(&listener, &server) == 0 && server.connected && server.mr && client.mr);
  CHECK(rdma_connect(&client, "127.0.0.1", 1) == RDMA_ERR_BUSY);
  converse(&server, &client);
  reach(&client, memory_pool_get_base(pools[1]), memory_pool_get_base(pools[0]));
  rdma_disconnect(&server);
  CHECK(!server.connected && !server.mr);
  CHECK(rdma_send(&client, "late", 5) < 0 || rdma_read(&client, client.buf, 8, client.remote_mem.addr, 0) < 0);
  rdma_deregister_memory(&client);
  rdma_destroy_context(&client);
  rdma_destroy_context(&server);
  rdma_destroy_context(&listener);
  memory_pool_destroy(pools[0]);
  memory_pool_destroy(pools[1]);
}

int main(void) {
  rdma_context_t ctx;
  rdma_context_t none = {0};
  CHECK(rdma_init_context(0, CONN_MODE_CM) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(rdma_init_context(&ctx, (conn_mode_t)2) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(rdma_send(&none, "x", 1) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(rdma_init_context(&ctx, CONN_MODE_CM) == 0);
  CHECK(rdma_connect(&ctx, "127.0.0.1", 1) == RDMA_ERR_CONNECTION_REFUSED && !ctx.connected);
  CHECK(rdma_socket_connect(&ctx, "127.0.0.1", 1, "nosuch0") < 0 && strstr(rdmaErrorDetail(), "nosuch0"));
  CHECK(rdma_register_memory(&ctx, 0, 1) == RDMA_ERR_BAD_ARGUMENT);
  rdma_destroy_context(&ctx);
  rdma_destroy_context(&ctx);
  connect_both(CONN_MODE_CM);
  connect_both(CONN_MODE_SOCKET);
  return 0;
}
