/* A key-value server in a program of your own. It serves until it is told to end.
 * usage: store_server [PORT]      prints its port; without PORT it takes any free one */
#include <verbena/kv.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, kv_error_detail());
  return 1;
}

int main(int argc, char** argv) {
  sigset_t ends;
  int why;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, NULL); /* They wait for sigwait below. */

  kv_server_options_t options;
  kv_server_options_init(&options);
  options.device = getenv("VERBENA_NIC"); /* "soft", "mlx5_0"; else what there is. */
  options.port = argc > 1 ? atoi(argv[1]) : 0;
  options.memory_bytes = (size_t)64 << 20;
  options.max_clients = 16;
  options.max_cells = 100;

  kv_server_t* server = kv_server_create(&options);
  if (server == NULL) return failed("kv_server_create");
  if (kv_server_start(server) != KV_OK) return failed("kv_server_start"); /* Clients can connect from here on. */
  printf("%d\n", kv_server_port(server));
  fflush(stdout);

  sigwait(&ends, &why);
  fprintf(stderr, "the server ends: %s\n", why == SIGINT ? "interrupted" : "told to");
  kv_server_destroy(server); /* Tells the clients. The items are lost. */
  return 0;
}
