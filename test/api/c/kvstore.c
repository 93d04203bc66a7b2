/* A program in the style of the RDMA Key-Value Store, against our opt-in header: a server of two clients that takes
 * small values in packets and has large ones written and read, as its own protocol does. With "helpers" it is
 * run_server and run_client instead. The other processes are forked before the library is used. */
#define _POSIX_C_SOURCE 200809L
#include <verbena/compat/kvstore.h>

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, rdmaErrorDetail()); \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)

typedef enum { EAGER_SET = 1, EAGER_GET, RENDEZVOUS_SET, RENDEZVOUS_GET, CLOSE } PacketType;
typedef struct {
  PacketType type;
  unsigned long size;
  void* remote_addr;
  uint32_t remote_key;
  char value[4096];
} Packet;

enum { LARGE = 3 * 1024 * 1024 + 17, TRIES = 3000 };

static void rest(void) { nanosleep(&(struct timespec){.tv_nsec = 10000000}, 0); }

static Packet* packet_of(PingpongContext* ctx) { return (Packet*)ctx->buf[ctx->currBuffer]; }

static void next_buffer(PingpongContext* ctx) { ctx->currBuffer = (ctx->currBuffer + 1) % KVSTORE_BUFFERS; }

static RdmaOptions options(void) {
  RdmaOptions chosen;
  rdmaOptionsInit(&chosen);
  chosen.device = "soft";
  return chosen;
}

/* One client, until it closes. */
static void serve(PingpongContext* ctx) {
  char *large = calloc(1, LARGE + 1), small[4096] = "";
  uint32_t key = 0;
  int strays = 0;
  CHECK(large && RDMA_register(ctx, large, LARGE + 1, &key) == 0);
  for (int running = 1; running; next_buffer(ctx)) {
    const int code = receive_packet(ctx);
    strays += code == RDMA_ERR_PROTOCOL;
    if (code == RDMA_ERR_PROTOCOL) continue;
    CHECK(code == 0);
    Packet* packet = packet_of(ctx);
    switch (packet->type) {
      case EAGER_SET: memcpy(small, packet->value, sizeof small); break;
      case EAGER_GET:
        memcpy(packet->value, small, sizeof small);
        CHECK(send_packet(ctx) == 0);
        break;
      case RENDEZVOUS_SET:
      case RENDEZVOUS_GET:
        packet->size = strlen(large) + 1;
        packet->remote_addr = large;
        packet->remote_key = key;
        CHECK(send_packet(ctx) == 0 && receive_fin(ctx) == 0);
        break;
      case CLOSE: running = 0; break;
      default: CHECK(0);
    }
  }
  CHECK(strays == 1);
  CHECK(RDMA_deregister(ctx, large) == 0 && RDMA_deregister(ctx, large) == RDMA_ERR_BAD_ARGUMENT);
  free(large);
}

static void ask(PingpongContext* ctx, PacketType type) {
  memset(packet_of(ctx), 0, sizeof(Packet));
  packet_of(ctx)->type = type;
}

static void client(int port, char letter) {
  char name[32], *large = malloc(LARGE + 1), *back = malloc(LARGE + 1);
  PingpongContext* ctx;
  const RdmaOptions chosen = options();
  CHECK(large && back && snprintf(name, sizeof name, "127.0.0.1:%d", port) > 0);
  int code = RDMA_ERR_CONNECTION_REFUSED; /* Until the server listens. */
  for (int i = 0; i < TRIES && code == RDMA_ERR_CONNECTION_REFUSED; ++i, rest())
    code = RDMA_connect_with(name, 0, &chosen, &ctx);
  CHECK(code == 0);

  ask(ctx, EAGER_SET);
  memset(packet_of(ctx)->value, letter, 4095);
  CHECK(send_packet(ctx) == 0);
  /* Small after large: nothing of the old value is left. */
  ask(ctx, EAGER_SET);
  packet_of(ctx)->value[0] = letter;
  CHECK(send_packet(ctx) == 0);
  ask(ctx, EAGER_GET);
  CHECK(send_packet(ctx) == 0);
  next_buffer(ctx);
  memset(packet_of(ctx), 'x', sizeof(Packet));
  CHECK(receive_packet_async(ctx) == 0 && pp_wait_completions(ctx, 1) == 0);
  CHECK(packet_of(ctx)->value[0] == letter && packet_of(ctx)->value[1] == '\0');

  memset(large, letter, LARGE);
  large[LARGE] = '\0';
  ask(ctx, RENDEZVOUS_SET);
  CHECK(send_packet(ctx) == 0 && receive_packet(ctx) == 0);
  CHECK(send_RDMA_write(ctx, large, packet_of(ctx)->remote_addr, packet_of(ctx)->remote_key) == 0);
  CHECK(send_fin(ctx) == 0);
  ask(ctx, RENDEZVOUS_GET);
  CHECK(send_packet(ctx) == 0 && receive_packet(ctx) == 0);
  const Packet found = *packet_of(ctx);
  CHECK(found.size == LARGE + 1);
  CHECK(send_RDMA_read(ctx, back, found.size, found.remote_addr, found.remote_key) == 0);
  CHECK(send_fin(ctx) == 0 && strcmp(large, back) == 0);

  /* What cannot be is refused, and the connection goes on. */
  CHECK(send_RDMA_read(ctx, back, LARGE + 2, found.remote_addr, found.remote_key) == RDMA_ERR_OUT_OF_RANGE);
  CHECK(send_RDMA_read(ctx, back, 1, found.remote_addr, found.remote_key + 1) == RDMA_ERR_NOT_FOUND);
  CHECK(send_RDMA_read(ctx, 0, 1, found.remote_addr, found.remote_key) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(send_RDMA_read(ctx, back, 0, found.remote_addr, found.remote_key) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(pp_wait_completions(ctx, 1) == RDMA_ERR_BAD_ARGUMENT);
  for (int i = 0; i < KVSTORE_BUFFERS; ++i) CHECK(receive_packet_async(ctx) == 0);
  CHECK(receive_packet_async(ctx) == RDMA_ERR_AGAIN);
  ctx->currBuffer = KVSTORE_BUFFERS;
  CHECK(send_packet(ctx) == RDMA_ERR_BAD_ARGUMENT);
  ctx->currBuffer = 0;
  CHECK(send_fin(ctx) == 0); /* Where a packet is expected. */
  ask(ctx, CLOSE);
  CHECK(send_packet(ctx) == 0);
  CHECK(RDMA_disconnect(ctx) == 0);
  free(large);
  free(back);
}

static int ended_well(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

static int free_port(void) {
  struct sockaddr_in at = {.sin_family = AF_INET};
  socklen_t length = sizeof at;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(fd >= 0 && bind(fd, (struct sockaddr*)&at, sizeof at) == 0);
  CHECK(getsockname(fd, (struct sockaddr*)&at, &length) == 0 && close(fd) == 0);
  return ntohs(at.sin_port);
}

static void primitives(void) {
  const int port = free_port();
  pid_t clients[2];
  for (int i = 0; i < 2; ++i) {
    clients[i] = fork();
    CHECK(clients[i] >= 0);
    if (clients[i] == 0) {
      client(port, (char)('a' + i));
      exit(0);
    }
  }
  const RdmaOptions chosen = options();
  PingpongContext* ctx[2];
  for (int i = 0; i < 2; ++i) CHECK(RDMA_connect_with(0, port, &chosen, &ctx[i]) == 0);
  for (int i = 0; i < 2; ++i) serve(ctx[i]);
  for (int i = 0; i < 2; ++i) {
    CHECK(receive_packet(ctx[i]) != 0); /* It has closed. */
    CHECK(RDMA_disconnect(ctx[i]) == 0 && ended_well(clients[i]));
  }
  CHECK(RDMA_connect(0, 0) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(RDMA_connect("127.0.0.1:65536", &ctx[0]) == RDMA_ERR_BAD_ARGUMENT && ctx[0] == 0);
  CHECK(send_packet(0) == RDMA_ERR_BAD_ARGUMENT && receive_packet(0) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(send_fin(0) == RDMA_ERR_BAD_ARGUMENT && receive_fin(0) == RDMA_ERR_BAD_ARGUMENT);
  CHECK(RDMA_disconnect(0) == 0);
}

static void on_signal(int number) { (void)number; }

static void helpers(void) {
  const pid_t server = fork();
  CHECK(server >= 0);
  if (server == 0) {
    const struct sigaction action = {.sa_handler = on_signal};
    CHECK(sigaction(SIGTERM, &action, 0) == 0);
    exit(run_server() == 0 ? 0 : 2);
  }
  /* The server listens before it has touched its memory: on a busy machine the first clients give up. */
  int code = KV_ERR_CONNECTION_REFUSED;
  for (int i = 0; i < TRIES && (code == KV_ERR_CONNECTION_REFUSED || code == KV_ERR_TIMED_OUT); ++i, rest()) {
    CHECK(waitpid(server, 0, WNOHANG) == 0);
    code = run_client(0);
  }
  CHECK(code == 0);
  CHECK(kill(server, SIGTERM) == 0 && ended_well(server));
  CHECK(run_client("no-such-host.invalid") == KV_ERR_NOT_FOUND);
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "helpers") == 0)
    helpers();
  else
    primitives();
  return 0;
}
