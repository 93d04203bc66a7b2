/* Workers fit a line to their samples, all at the same time, with the parameters in cells of a store: a gradient is an
 * atomic addition by the NIC, which takes neither a lock nor the server's CPU.
 * usage: parameter_server PORT WORKER WORKERS      start all WORKERS of them; the server needs --max-cells 4 */
#include <verbena/kv.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 20000, TIMEOUT_S = 60 };
enum { SLOPE, OFFSET, READY, DONE, CELLS }; /* Two parameters, and two counts of workers. */
static const char* const names[CELLS] = {"slope", "offset", "ready", "done"};

static kv_client_t* client;
static kv_cell_t cells[CELLS];

static void check(const char* what, int code) {
  if (code == KV_OK) return;
  fprintf(stderr, "%s: %s %s\n", what, kv_error_string(code), kv_error_detail());
  exit(1);
}

/* Cells hold integers: a parameter is a multiple of 2^-32, modulo 2^64, so that additions in any order come to the
 * same.
 */
static const double kUnit = 1.0 / 4294967296.0;
static uint64_t fixed(double value) { return (uint64_t)(int64_t)llround(value / kUnit); }
static double real(uint64_t cell) { return (double)(int64_t)cell * kUnit; }

static double parameter(int which) {
  uint64_t value;
  check("kv_client_cell_read", kv_client_cell_read(client, &cells[which], &value));
  return real(value);
}
static void add(int which, uint64_t delta) {
  check("kv_client_cell_fetch_add", kv_client_cell_fetch_add(client, &cells[which], delta, NULL));
}

/* Counts this worker, and waits for the others. */
static void meet(int which, uint64_t workers) {
  const time_t deadline = time(NULL) + TIMEOUT_S;
  uint64_t here = 0;
  add(which, 1);
  while (here < workers) {
    check("kv_client_cell_read", kv_client_cell_read(client, &cells[which], &here));
    if (here < workers && time(NULL) > deadline) {
      fprintf(stderr, "only %" PRIu64 " of %" PRIu64 " workers came\n", here, workers);
      exit(1);
    }
  }
}

/* Between -1 and 1, as Lehmer's generator has it. */
static double chance(uint64_t* state) {
  *state = *state * 48271 % 2147483647;
  return (double)*state / 1073741823.5 - 1;
}

int main(int argc, char** argv) {
  if (argc != 4) return fprintf(stderr, "usage: %s PORT WORKER WORKERS\n", argv[0]), 2;
  const uint64_t worker = strtoul(argv[2], NULL, 10), workers = strtoul(argv[3], NULL, 10);
  kv_client_options_t options;
  kv_client_options_init(&options);
  options.device = getenv("VERBENA_NIC");
  client = kv_client_create(CONN_MODE_CM);
  if (client == NULL) return fprintf(stderr, "%s\n", kv_error_detail()), 1;
  check("kv_client_set_options", kv_client_set_options(client, &options));
  check("kv_client_connect", kv_client_connect(client, NULL, atoi(argv[1])));
  for (int i = 0; i < CELLS; ++i) /* The first worker makes them. */
    check(names[i], kv_client_cell_open(client, names[i], strlen(names[i]), 0, &cells[i]));

  meet(READY, workers);
  uint64_t state = 1 + worker;
  for (int step = 0; step < STEPS; ++step) {
    /* A sample of y = 3 x - 2, with noise. Others move the parameters meanwhile: each step follows its own view. */
    const double rate = 0.05 / (1 + step / 2000.0);
    const double x = chance(&state), y = 3 * x - 2 + 0.1 * chance(&state);
    const double error = parameter(SLOPE) * x + parameter(OFFSET) - y;
    add(SLOPE, fixed(-rate * error * x));
    add(OFFSET, fixed(-rate * error));
  }
  meet(DONE, workers);

  const double slope = parameter(SLOPE), offset = parameter(OFFSET);
  printf("worker %" PRIu64 " of %" PRIu64 ": y = %.2f x %+.2f\n", worker, workers, slope, offset);
  kv_client_destroy(client);
  return fabs(slope - 3) < 0.05 && fabs(offset + 2) < 0.05 ? 0 : 1;
}
