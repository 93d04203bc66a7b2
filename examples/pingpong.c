/* Half of a round trip between two processes: messages, and writes into memory that the other one polls.
 * usage: pingpong serve [ADDRESS]      prints its port, serves one client, ends
 *        pingpong PORT [ADDRESS] */
#include <verbena/rdma.h>

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 10000, BYTES = 64 };

static sem_t done;

static void echo(RdmaConn* conn, const RdmaMessage* message, void* user) {
  (void)user;
  rdmaConnSend(conn, message->data, message->length);
}

static void gone(RdmaConn* conn, int code, void* user) {
  (void)conn, (void)code, (void)user;
  sem_post(&done);
}

static int failed(const char* what, int code) {
  fprintf(stderr, "%s: %s\n%s\n", what, rdmaErrorString(code), rdmaErrorDetail());
  return 1;
}

static int serve(const RdmaOptions* options, const char* address) {
  RdmaListener* listener;
  int code = rdmaServer(&listener, address, 0); /* Any free port. */
  if (code != RDMA_OK) return failed("rdmaServer", code);
  sem_init(&done, 0, 0);
  rdmaServerSetOptions(listener, options);
  rdmaServerOnMessage(listener, echo, NULL);
  rdmaServerOnDisconnect(listener, gone, NULL);
  code = rdmaServerStart(listener);
  if (code != RDMA_OK) return failed("rdmaServerStart", code);
  printf("%d\n", rdmaServerPort(listener));
  fflush(stdout);
  sem_wait(&done);
  rdmaServerRelease(listener);
  return 0;
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int ping(const RdmaOptions* options, const char* address, int port) {
  char out[BYTES] = "ping", in[BYTES];
  RdmaConn* conn = rdmaConn();
  if (conn == NULL || rdmaConnSetOptions(conn, options) != RDMA_OK || rdmaConnect(conn, address, port) != RDMA_OK)
    return failed("rdmaConnect", rdmaConnError(conn));
  double begin = now_us();
  for (int i = 0; i < ROUNDS; ++i) {
    memcpy(out + 8, &i, sizeof i);
    if (rdmaConnSend(conn, out, sizeof out) == 0) return failed("rdmaConnSend", rdmaConnError(conn));
    int code = rdmaConnRecv(conn, in, sizeof in, NULL, -1);
    if (code != RDMA_OK) return failed("rdmaConnRecv", code);
    if (memcmp(in, out, sizeof in) != 0) return fprintf(stderr, "round %d came back wrong\n", i), 1;
  }
  printf("message of %d bytes, one way: %.2f us\n", BYTES, (now_us() - begin) / ROUNDS / 2);
  begin = now_us();
  for (int i = 0; i < ROUNDS; ++i)
    if (rdmaConnWrite(conn, out, sizeof out) == 0) return failed("rdmaConnWrite", rdmaConnError(conn));
  printf("write of %d bytes: %.2f us\n", BYTES, (now_us() - begin) / ROUNDS);
  begin = now_us();
  for (int i = 0; i < ROUNDS; ++i) {
    int code = rdmaConnRead(conn, in, sizeof in);
    if (code != RDMA_OK) return failed("rdmaConnRead", code);
  }
  printf("read of %d bytes: %.2f us\n", BYTES, (now_us() - begin) / ROUNDS);
  rdmaConnClose(conn);
  return memcmp(in, out, sizeof in) != 0;
}

int main(int argc, char** argv) {
  RdmaOptions options;
  rdmaOptionsInit(&options);
  options.device = getenv("VERBENA_NIC"); /* "soft", "mlx5_0"; else what there is. */
  const char* address = argc > 2 ? argv[2] : NULL;
  if (argc > 1 && strcmp(argv[1], "serve") == 0) return serve(&options, address);
  if (argc > 1) return ping(&options, address, atoi(argv[1]));
  return fprintf(stderr, "usage: %s serve [ADDRESS] | PORT [ADDRESS]\n", argv[0]), 2;
}
