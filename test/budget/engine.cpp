#include "engine.hpp"

#include "engine/duty.hpp"
#include "node/shard.hpp"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace verbena::budget {

namespace {

struct Captured {
  node::Shard* shard;
  engine::Duty* duty;
};
struct All {
  std::mutex mutex;
  std::vector<Captured> shards;
};
All& all() {
  static All captured;
  return captured;
}

void take_turn(const Captured& one) noexcept {
  (void)one.duty->before_wait();
  one.duty->after_wait(one.shard->loop().poll());
}

}  // namespace

Background::Background()
    : thread_([](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          {
            const std::lock_guard lock(all().mutex);
            for (const Captured& one : all().shards) {
              one.shard->loop().become_owner();
              take_turn(one);
            }
          }
          std::this_thread::yield();
        }
      }) {}

Background::~Background() {
  thread_.request_stop();
  thread_.join();
  for (const Captured& one : all().shards) one.shard->loop().become_owner();
}

void turn() noexcept {
  static const Captured one = all().shards.front();
  if (one.shard->is_running()) take_turn(one);
}

void require_one_shard() {
  const std::lock_guard lock(all().mutex);
  if (all().shards.size() == 1) return;
  std::fprintf(stderr, "budget: %zu shards are captured, not 1: Shard::start has another name, or was inlined\n",
               all().shards.size());
  std::_Exit(EXIT_FAILURE);
}

// NOLINTBEGIN(misc-use-internal-linkage): the linker's.
Result<void> capture(node::Shard* shard, engine::Duty& duty) asm("__wrap_" VERBENA_SHARD_START);
Result<void> capture(node::Shard* shard, engine::Duty& duty) {
  shard->loop().open_calls();
  const std::lock_guard lock(all().mutex);
  all().shards.push_back({shard, &duty});
  return {};
}
// NOLINTEND(misc-use-internal-linkage)

}  // namespace verbena::budget
