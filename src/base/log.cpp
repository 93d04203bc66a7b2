#include "base/log.hpp"

#include <atomic>
#include <mutex>
#include <shared_mutex>

namespace verbena::detail {

namespace {

/// Lines of this level and of more important ones are wanted; -1: none.
constinit std::atomic<int> log_level{-1};

struct Sink {
  std::shared_mutex mutex;  ///< Held during each call of the function, so that a caller can replace it safely.
  verbena_log_func func = nullptr;
  void* user = nullptr;
};

Sink& sink() noexcept {
  // Never destroyed: threads of the library may outlive static objects.
  static auto* const one = new Sink;
  return *one;
}

}  // namespace

bool wants_log(verbena_log_level level) noexcept {
  return log_level.load(std::memory_order_relaxed) >= static_cast<int>(level);
}

void write_log(verbena_log_level level, const char* line) noexcept {
  Sink& to = sink();
  const std::shared_lock lock(to.mutex);
  if (to.func != nullptr) to.func(level, line, to.user);
}

}  // namespace verbena::detail

void verbena_set_log(verbena_log_func func, void* user, verbena_log_level least) {
  using namespace verbena::detail;
  Sink& to = sink();
  const std::unique_lock lock(to.mutex);
  to.func = func;
  to.user = user;
  log_level.store(func != nullptr ? static_cast<int>(least) : -1, std::memory_order_relaxed);
}
