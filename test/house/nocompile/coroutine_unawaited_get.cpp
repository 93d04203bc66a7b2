// An operation of a store that nobody awaits never begins.
// expect: nodiscard|unused-result|unused-value
#include <verbena/coroutines_kv.hpp>

using namespace verbena;

coroutine::Task<kv::Outcome> look(coroutine::Loop& /*loop*/, kv::Client& store, kv::Key key, std::span<std::byte> out) {
#ifdef WRONG
  coroutine::get(store, key, out);
  co_return kv::Outcome{};
#else
  co_return co_await coroutine::get(store, key, out);
#endif
}
