// A value that is got is written to memory, which must not be someone's constant.
// expect: could not convert|no matching function|no viable conversion
#include <verbena/coroutines_kv.hpp>

using namespace verbena;

#ifdef WRONG
using Out = std::span<const std::byte>;
#else
using Out = std::span<std::byte>;
#endif

coroutine::Task<kv::Outcome> look(coroutine::Loop& /*loop*/, kv::Client& store, kv::Key key, Out out) {
  co_return co_await coroutine::get(store, key, out);
}
