/* What SnowRDMA's README shows, against verbena/rdma.h as it is: its control and data functions in its words, server
 * and client in one process. Its rdmaSync... and rdmaPA... functions are not there yet. */
#include <verbena/rdma.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                            \
  do {                                                                                              \
    if (!(condition)) {                                                                             \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, rdmaErrorDetail());        \
      exit(1);                                                                                      \
    }                                                                                               \
  } while (0)

static atomic_int accepted, connected, disconnected, client_received;

static void connRecvSuccess(RdmaConn *conn, void *data, size_t data_len) {
  CHECK(rdmaConnSend(conn, data, data_len) == data_len);
}
static void connConnectSuccess(RdmaConn *conn) {
  (void)conn;
  atomic_fetch_add(&connected, 1);
}
static void connDisconnectSuccess(RdmaConn *conn) {
  (void)conn;
  atomic_fetch_add(&disconnected, 1);
}
static void serverAcceptSuccess(RdmaConn *conn) {
  atomic_fetch_add(&accepted, 1);
  rdmaConnSetRecvCallback(conn, connRecvSuccess);
  rdmaConnSetConnectedCallback(conn, connConnectSuccess);
  rdmaConnSetDisconnectCallback(conn, connDisconnectSuccess);
}
static void clientRecv(RdmaConn *conn, void *data, size_t data_len) {
  (void)conn;
  CHECK(data_len == 6 && memcmp(data, "hello", 6) == 0);
  atomic_fetch_add(&client_received, 1);
}

int main(void) {
  RdmaListener *server;
  char *ip = "127.0.0.1";
  CHECK(rdmaServer(&server, ip, 0) == RDMA_OK);
  rdmaServerSetAcceptCallback(server, serverAcceptSuccess);
  CHECK(rdmaServerStart(server) == RDMA_OK);
  int port = rdmaServerPort(server);

  /* A client that blocks. */
  RdmaConn *conn = rdmaConn();
  CHECK(conn && rdmaConnect(conn, ip, port) == RDMA_OK);
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

  /* One that is called back, with other bytes in between. */
  RdmaConn *other = rdmaConn();
  CHECK(rdmaConnSetRecvCallback(other, clientRecv) == RDMA_OK);
  CHECK(rdmaConnect(other, ip, port) == RDMA_OK);
  CHECK(rdmaConnSend(other, hello, sizeof hello) == sizeof hello);
  for (int i = 0; i < 5000 && atomic_load(&client_received) == 0; ++i)
    CHECK(rdmaConnRead(other, back, sizeof back) == RDMA_OK);
  CHECK(atomic_load(&client_received) == 1);

  rdmaConnClose(conn);
  rdmaRuntimeStop();
  CHECK(rdmaConnSend(other, hello, sizeof hello) == 0 && rdmaConnError(other) == RDMA_ERR_CLOSED);
  rdmaConnClose(other);
  rdmaServerStop(server);
  CHECK(atomic_load(&accepted) == 2 && atomic_load(&connected) == 2 && atomic_load(&disconnected) == 2);
  rdmaServerRelease(server);
  return 0;
}
