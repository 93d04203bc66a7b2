// The library's polling threads, without the threads: the linker puts `capture` in the place of Shard::start, and who
// measures takes the turns of the shard's thread.
#pragma once

#include <thread>

namespace verbena::budget {

/// Drives the captured shards in a thread of its own while it lives: connections are made by several sides at once.
/// Afterwards the calling thread owns them.
class Background {
 public:
  Background();
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

 private:
  std::jthread thread_;
};

/// One turn of the loop of the only captured shard: what its thread does from one look at `is_running` to the next,
/// except that it does not wait where there is nothing.
/// \thread the one that ended Background
void turn() noexcept;
/// Ends the program unless exactly one shard is captured.
void require_one_shard();

}  // namespace verbena::budget
