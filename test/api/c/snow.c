/* What SnowRDMA's README and example show, against verbena/rdma.h as it is: its control and data functions in its
 * words, server and client in one process. Those by physical address only where the kernel tells any. */
#include <verbena/rdma.h>

#include <stdatomic.h>
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

static atomic_int accepted, connected, disconnected, client_received, client_written, client_read;
static _Atomic(const RdmaMemory*) server_mr;
static _Atomic uint64_t server_pa;

static void connRecvSuccess(RdmaConn* conn, void* data, size_t data_len) {
  CHECK(rdmaConnSend(conn, data, data_len) == data_len);
}
static void connConnectSuccess(RdmaConn* conn) {
  (void)conn;
  atomic_fetch_add(&connected, 1);
}
static void connDisconnectSuccess(RdmaConn* conn) {
  (void)conn;
  atomic_fetch_add(&disconnected, 1);
}
static void serverAcceptSuccess(RdmaConn* conn) {
  atomic_fetch_add(&accepted, 1);
  rdmaConnSetRecvCallback(conn, connRecvSuccess);
  rdmaConnSetConnectedCallback(conn, connConnectSuccess);
  rdmaConnSetDisconnectCallback(conn, connDisconnectSuccess);
  /* Memory that the client reaches by its key, and by its physical address. */
  const RdmaMemory* mr = rdmaConnRegMem(conn, 4096);
  CHECK(mr);
  uint64_t pa = 0;
  int code = rdmaPAExport(conn, mr, &pa);
  CHECK(code == RDMA_OK || code == RDMA_ERR_PERMISSION);
  atomic_store(&server_pa, pa);
  atomic_store(&server_mr, mr);
}
static void clientWrite(RdmaConn* conn) {
  (void)conn;
  atomic_fetch_add(&client_written, 1);
}
static void clientRead(RdmaConn* conn) {
  (void)conn;
  atomic_fetch_add(&client_read, 1);
}
static void clientRecv(RdmaConn* conn, void* data, size_t data_len) {
  (void)conn;
  CHECK(data_len == 6 && memcmp(data, "hello", 6) == 0);
  atomic_fetch_add(&client_received, 1);
}

/* Messages, and the window that a peer has by default. */
static void talk(RdmaConn* conn) {
  char hello[6] = "hello", echo[6], there[6] = "there", back[6];
  CHECK(rdmaConnSend(conn, hello, sizeof hello) == sizeof hello);
  CHECK(rdmaConnRecv(conn, echo, sizeof echo, 0, -1) == RDMA_OK && memcmp(hello, echo, sizeof echo) == 0);
  CHECK(rdmaConnSendWithImm(conn, 7, hello, sizeof hello) == sizeof hello);
  CHECK(rdmaConnRecv(conn, echo, sizeof echo, 0, -1) == RDMA_OK && memcmp(hello, echo, sizeof echo) == 0);
  CHECK(rdmaConnWrite(conn, there, sizeof there) == sizeof there);
  CHECK(rdmaConnRead(conn, back, sizeof back) == RDMA_OK && memcmp(there, back, sizeof back) == 0);
  /* The callback gets what was written, and echoes it. */
  CHECK(rdmaConnWriteWithImm(conn, 8, hello, sizeof hello) == RDMA_OK);
  CHECK(rdmaConnRecv(conn, echo, sizeof echo, 0, -1) == RDMA_OK && memcmp(hello, echo, sizeof echo) == 0);
}

int main(void) {
  RdmaListener* server;
  char* ip = "127.0.0.1";
  CHECK(rdmaServer(&server, ip, 0) == RDMA_OK);
  rdmaServerSetAcceptCallback(server, serverAcceptSuccess);
  CHECK(rdmaServerStart(server) == RDMA_OK);
  int port = rdmaServerPort(server);

  /* A client that blocks. */
  RdmaConn* conn = rdmaConn();
  CHECK(conn && rdmaConnect(conn, ip, port) == RDMA_OK);
  char hello[6] = "hello", there[6] = "there", back[6];
  talk(conn);

  /* Memory of both sides, by keys. An echo came: the server's callback has registered its own. */
  const RdmaMemory *data_mr = rdmaConnRegMem(conn, 64), *remote_mr = atomic_load(&server_mr);
  CHECK(data_mr);
  char* local_msg_buf = (char*)data_mr->addr;
  uint64_t local_addr = (uintptr_t)local_msg_buf, remote_addr = (uintptr_t)remote_mr->addr;
  memcpy(local_msg_buf, hello, sizeof hello);
  CHECK(rdmaSyncWriteSignaled(conn, local_addr, data_mr->lkey, remote_addr, remote_mr->rkey, 6) == RDMA_OK);
  CHECK(memcmp(remote_mr->addr, hello, sizeof hello) == 0);
  memcpy(remote_mr->addr, there, sizeof there);
  CHECK(rdmaSyncReadSignaled(conn, local_addr, data_mr->lkey, remote_addr, remote_mr->rkey, 6) == RDMA_OK);
  CHECK(memcmp(local_msg_buf, there, sizeof there) == 0);
  /* By physical address. */
  uint64_t remote_pa = atomic_load(&server_pa);
  if (remote_pa) {
    memcpy(local_msg_buf, hello, sizeof hello);
    CHECK(rdmaPASyncWriteSignaled(conn, local_addr, data_mr->lkey, remote_pa, 6) == RDMA_OK);
    CHECK(rdmaPASyncReadSignaled(conn, local_addr + 32, data_mr->lkey, remote_pa, 6) == RDMA_OK);
    CHECK(memcmp(local_msg_buf + 32, hello, sizeof hello) == 0);
  }

  /* One that is called back, with other bytes in between. */
  RdmaConn* other = rdmaConn();
  CHECK(rdmaConnSetRecvCallback(other, clientRecv) == RDMA_OK);
  CHECK(rdmaConnSetWriteCallback(other, clientWrite) == RDMA_OK);
  CHECK(rdmaConnSetReadCallback(other, clientRead) == RDMA_OK);
  CHECK(rdmaConnect(other, ip, port) == RDMA_OK);
  CHECK(rdmaConnSend(other, hello, sizeof hello) == sizeof hello);
  for (int i = 0; i < 50000 && atomic_load(&client_received) == 0; ++i)
    CHECK(rdmaConnRead(other, back, sizeof back) == RDMA_OK);
  CHECK(atomic_load(&client_received) == 1);
  remote_pa = atomic_load(&server_pa);
  if (remote_pa) {
    data_mr = rdmaConnRegMem(other, 64);
    CHECK(data_mr);
    local_addr = (uintptr_t)data_mr->addr;
    CHECK(rdmaPAWriteSignaled(other, local_addr, data_mr->lkey, remote_pa, 6) == RDMA_OK);
    CHECK(rdmaPAReadSignaled(other, local_addr, data_mr->lkey, remote_pa, 6) == RDMA_OK);
    for (int i = 0; i < 50000 && (atomic_load(&client_written) == 0 || atomic_load(&client_read) == 0); ++i)
      CHECK(rdmaConnRead(other, back, sizeof back) == RDMA_OK);
    CHECK(atomic_load(&client_written) == 1 && atomic_load(&client_read) == 1);
    rdmaConnDeregMem(other, data_mr);
  }

  rdmaConnClose(conn);
  rdmaRuntimeStop();
  CHECK(rdmaConnSend(other, hello, sizeof hello) == 0 && rdmaConnError(other) == RDMA_ERR_CLOSED);
  rdmaConnClose(other);
  rdmaServerStop(server);
  CHECK(atomic_load(&accepted) == 2 && atomic_load(&connected) == 2 && atomic_load(&disconnected) == 2);
  rdmaServerRelease(server);
  return 0;
}
