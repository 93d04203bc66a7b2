// expect: nodiscard|unused-result
#include <verbena/kv.hpp>

void store(verbena::kv::Client& client, verbena::kv::Key key) {
#ifdef WRONG
  client.put(key, {});
#else
  (void)client.put(key, {});
#endif
}
