/* A program in strict C11 against verbena/mesh.h: two processes that it forks send to each other, and write into each
 * other's memory. */
#include <verbena/mesh.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 2, TIMEOUT_MS = 30000 };

#define CHECK(condition)                                                                       \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, mesh_error_detail()); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

/* Takes completions until one is of this kind. */
static mesh_completion_t await(mesh_lane_t* lane, mesh_kind_t kind) {
  mesh_completion_t one;
  do {
    CHECK(mesh_wait(lane, &one, 1, MESH_ALL, TIMEOUT_MS) == 1);
    CHECK(one.code == MESH_OK);
  } while (one.kind != kind);
  return one;
}

static void use(mesh_t* mesh, unsigned id) {
  const unsigned peer = 1 - id;
  mesh_lane_t* lane = mesh_lane(mesh, 0);
  uint64_t* words;
  void* memory;
  CHECK(lane && mesh_allocate(mesh, 4096, &memory) == MESH_OK);
  words = memory;
  words[0] = 100 + id;
  CHECK(mesh_publish(mesh, "words", words, 4096) == MESH_OK);

  mesh_window_t window;
  CHECK(mesh_find(lane, peer, "words", TIMEOUT_MS, &window) == MESH_OK && window.length == 4096);
  CHECK(mesh_read(lane, &window, 0, words + 1, 8, 0) == MESH_OK);
  (void)await(lane, MESH_READ);
  CHECK(words[1] == 100 + peer);
  CHECK(mesh_barrier(lane, TIMEOUT_MS) == MESH_OK);
  CHECK(mesh_fetch_add(lane, &window, 0, 1, 0) == MESH_OK);
  CHECK(await(lane, MESH_ATOMIC).old == 100 + peer);

  CHECK(mesh_send_imm(lane, peer, "hello", 5, 0, 0) == MESH_OK);
  mesh_completion_t message = await(lane, MESH_RECEIVE);
  CHECK(message.length == 5 && memcmp(message.bytes, "hello", 5) == 0);
  CHECK(message.has_immediate && message.immediate == 0);
  CHECK(mesh_release(lane, &message) == MESH_OK);

  uint64_t all[PROCESSES];
  CHECK(mesh_gather(lane, words, sizeof *words, all, TIMEOUT_MS) == MESH_OK);
  CHECK(all[0] == 101 && all[1] == 102);
}

static void run(unsigned id, const char* directory) {
  mesh_options_t options;
  CHECK(mesh_options_init(&options) == MESH_OK);
  options.id = id;
  options.processes = PROCESSES;
  options.device = "soft";
  mesh_carrier_t* carrier;
  mesh_t* mesh;
  CHECK(mesh_carrier_directory(directory, "c11", &carrier) == MESH_OK);
  CHECK(mesh_join(&options, carrier, &mesh) == MESH_OK);
  use(mesh, id);
  CHECK(mesh_leave(mesh) == MESH_OK);
}

int main(void) {
  char directory[] = "/tmp/verbena-mesh-c11-XXXXXX";
  CHECK(mkdtemp(directory));
  pid_t children[PROCESSES];
  for (unsigned id = 0; id < PROCESSES; ++id) {
    CHECK((children[id] = fork()) >= 0);
    if (children[id] == 0) {
      run(id, directory);
      return 0;
    }
  }
  int failures = 0;
  for (unsigned id = 0; id < PROCESSES; ++id) {
    int status;
    CHECK(waitpid(children[id], &status, 0) == children[id]);
    failures += status != 0;
  }
  for (unsigned id = 0; id < PROCESSES; ++id) {
    char name[sizeof directory + 16];
    snprintf(name, sizeof name, "%s/c11.%u", directory, id);
    failures += unlink(name) != 0;
  }
  failures += rmdir(directory) != 0;
  return failures == 0 ? 0 : 1;
}
