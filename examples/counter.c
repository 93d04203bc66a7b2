/* Tickets from a counter in the server's memory: each is one atomic of the NIC, and the server's program does nothing.
 * usage: counter serve CLIENTS [ADDRESS]      prints its port, and the count when so many clients have left
 *        counter PORT [ADDRESS]               takes 10000 tickets */
#include <verbena/rdma.h>

#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TICKETS = 10000 };

static sem_t left;

static void gone(RdmaConn* conn, int code, void* user) {
  (void)conn, (void)code, (void)user;
  sem_post(&left);
}

static int failed(const char* what, int code) {
  fprintf(stderr, "%s: %s\n%s\n", what, rdmaErrorString(code), rdmaErrorDetail());
  return 1;
}

static int serve(const RdmaOptions* options, int clients, const char* address) {
  RdmaListener* listener;
  int code = rdmaServer(&listener, address, 0); /* Any free port. */
  if (code != RDMA_OK) return failed("rdmaServer", code);
  sem_init(&left, 0, 0);
  rdmaServerSetOptions(listener, options);
  rdmaServerOnDisconnect(listener, gone, NULL);
  code = rdmaServerStart(listener);
  if (code != RDMA_OK) return failed("rdmaServerStart", code);
  const RdmaMemory* memory = rdmaServerRegMem(listener, sizeof(uint64_t));
  if (memory == NULL) return fprintf(stderr, "%s\n", rdmaErrorDetail()), 1;
  code = rdmaServerPublish(listener, "counter", memory);
  if (code != RDMA_OK) return failed("rdmaServerPublish", code);
  printf("%d\n", rdmaServerPort(listener));
  fflush(stdout);
  for (int i = 0; i < clients; ++i) sem_wait(&left);
  printf("%" PRIu64 " tickets were taken\n", *(const uint64_t*)memory->addr);
  rdmaServerRelease(listener);
  return 0;
}

static int take(const RdmaOptions* options, const char* address, int port) {
  RdmaConn* conn = rdmaConn();
  RdmaWindow window;
  uint64_t ticket = 0, last = 0;
  if (conn == NULL || rdmaConnSetOptions(conn, options) != RDMA_OK || rdmaConnect(conn, address, port) != RDMA_OK)
    return failed("rdmaConnect", rdmaConnError(conn));
  int code = rdmaConnLookup(conn, "counter", &window, -1); /* Waits until it is published. */
  if (code != RDMA_OK) return failed("rdmaConnLookup", code);
  for (int i = 0; i < TICKETS; ++i) {
    code = rdmaSyncFetchAdd(conn, window.addr, window.rkey, 1, &ticket);
    if (code != RDMA_OK) return failed("rdmaSyncFetchAdd", code);
    if (i > 0 && ticket <= last) return fprintf(stderr, "ticket %" PRIu64 " came twice\n", ticket), 1;
    last = ticket;
  }
  printf("the last of %d tickets is number %" PRIu64 "\n", TICKETS, last);
  rdmaConnClose(conn);
  return 0;
}

int main(int argc, char** argv) {
  RdmaOptions options;
  rdmaOptionsInit(&options);
  options.device = getenv("VERBENA_NIC"); /* "soft", "mlx5_0"; else what there is. */
  if (argc > 2 && strcmp(argv[1], "serve") == 0) return serve(&options, atoi(argv[2]), argc > 3 ? argv[3] : NULL);
  if (argc > 1 && atoi(argv[1]) > 0) return take(&options, argc > 2 ? argv[2] : NULL, atoi(argv[1]));
  return fprintf(stderr, "usage: %s serve CLIENTS [ADDRESS] | PORT [ADDRESS]\n", argv[0]), 2;
}
