// expect: nodiscard|unused-result
#include <verbena/kv.hpp>

void open() {
#ifdef WRONG
  verbena::kv::Client::connect({});
#else
  const auto client = verbena::kv::Client::connect({});
  (void)client;
#endif
}
