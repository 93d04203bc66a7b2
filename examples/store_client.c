/* Clients change one value at the same time, and no change is lost: each reads the value with its version, and stores a
 * new one only if the version is still that.
 * usage: store_client PORT CHANGES      with 0 it prints how many changes the value has seen */
#include <verbena/kv.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_TRIES = 1000000 };

static const char key[] = "account";
typedef struct {
  uint64_t changes, balance;
} Account;

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, kv_error_detail());
  return 1;
}

/* Reads the account and its version, which is 0 as long as there is none. */
static int look(kv_client_t* client, Account* account, uint64_t* version) {
  size_t length = sizeof *account;
  int code = kv_client_get_version(client, key, sizeof key, account, &length, version);
  if (code != KV_ERR_NOT_FOUND) return code;
  *account = (Account){0, 0};
  *version = 0;
  return KV_OK;
}

/* Adds to the account. `*tries`: how often it took another client's change into account. */
static int change(kv_client_t* client, uint64_t amount, long* tries) {
  for (int i = 0; i < MOST_TRIES; ++i) {
    Account account;
    uint64_t version;
    int code = look(client, &account, &version);
    if (code != KV_OK) return code;
    account.changes += 1;
    account.balance += amount;
    code = kv_client_cas(client, key, sizeof key, version, &account, sizeof account, &version);
    if (code != KV_ERR_VERSION_MISMATCH) return code;
    ++*tries; /* Somebody else was quicker. */
  }
  return KV_ERR_VERSION_MISMATCH;
}

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "usage: %s PORT CHANGES\n", argv[0]), 2;
  kv_client_options_t options;
  kv_client_options_init(&options);
  options.device = getenv("VERBENA_NIC");

  kv_client_t* client = kv_client_create(CONN_MODE_CM);
  if (client == NULL || kv_client_set_options(client, &options) != KV_OK) return failed("kv_client_create");
  if (kv_client_connect(client, NULL, atoi(argv[1])) != KV_OK) return failed("kv_client_connect");

  long changes = atol(argv[2]), tries = 0;
  for (long i = 0; i < changes; ++i)
    if (change(client, 5, &tries) != KV_OK) return failed("the change");
  if (changes > 0) {
    fprintf(stderr, "%ld changes, %ld of them tried again\n", changes, tries);
  } else {
    Account account;
    uint64_t version;
    if (look(client, &account, &version) != KV_OK) return failed("kv_client_get_version");
    printf("%" PRIu64 " changes, balance %" PRIu64 "\n", account.changes, account.balance);
  }
  kv_client_destroy(client);
  return 0;
}
