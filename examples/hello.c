#include <stdio.h>
#include <verbena/rdma.h>

int main(void) {
  RdmaListener* server;
  RdmaConn* conn = rdmaConn();
  char out[] = "hello", in[sizeof out];
  if (rdmaServer(&server, NULL, 0) || rdmaServerStart(server) || rdmaConnect(conn, NULL, rdmaServerPort(server)) ||
      rdmaConnWrite(conn, out, sizeof out) != sizeof out || rdmaConnRead(conn, in, sizeof in))
    return fprintf(stderr, "%s\n", rdmaErrorDetail()), 1;
  printf("%s came back from the other side's memory\n", in);
  rdmaConnClose(conn);
  rdmaServerRelease(server);
  return 0;
}
