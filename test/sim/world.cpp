#include "world.hpp"

#include <algorithm>

namespace verbena::sim {

namespace {

/// FNV-1a: of the name's letters, since its address differs from run to run.
std::uint64_t hash_of(std::string_view name) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3;
  return hash;
}

}  // namespace

std::uint64_t Random::next() noexcept {
  // SplitMix64.
  state_ += 0x9E3779B97F4A7C15;
  std::uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  return mixed ^ (mixed >> 31);
}

void World::after(Nanoseconds delay, std::string_view what, std::function<void()> event) {
  std::size_t place = events_due_.size();
  if (free_.empty()) {
    events_due_.emplace_back();
  } else {
    place = free_.back();
    free_.pop_back();
  }
  events_due_[place] = {hash_of(what), std::move(event)};
  queue_.push_back({now_ + delay, asked_++, place});
  std::push_heap(queue_.begin(), queue_.end(), Later());
}

bool World::step() {
  if (queue_.empty()) return false;
  std::pop_heap(queue_.begin(), queue_.end(), Later());
  const Due next = queue_.back();
  queue_.pop_back();
  const Event event = std::exchange(events_due_[next.place], {});
  free_.push_back(next.place);
  now_ = next.due;
  ++events_;
  note({next.due, next.order, event.kind});
  event.happens();
  return true;
}

void World::turn(Nanoseconds most) {
  const Nanoseconds until = now_ + most;
  if (next_due(until + 1) <= until) {
    (void)step();
  } else {
    now_ = until;
  }
}

void World::run_for(Nanoseconds time) {
  const Nanoseconds until = now_ + time;
  while (next_due(until + 1) <= until) (void)step();
  now_ = until;
}

void World::note(std::initializer_list<std::uint64_t> facts) noexcept {
  for (const std::uint64_t fact : facts) mix(fact);
}

void World::mix(std::uint64_t fact) noexcept {
  hash_ = (hash_ ^ fact) * 0x9FB21C651E98DF25;
  hash_ ^= hash_ >> 28;
}

void World::print(const std::string& text) const {
  fmt::print(story_, "{:>12.3f} us  {}\n", static_cast<double>(now_) / 1000, text);
}

}  // namespace verbena::sim
