// What a run of a store is asked besides its history. Each is a client of its own, in a task.
#pragma once

#include "recorder.hpp"
#include "tasks.hpp"

#include <verbena/kv.hpp>

#include <string>

namespace verbena::sim {

/// Fills the index until entries have to move, and goes on with erasing and storing. Every key has to be where its one
/// client left it, or gone where the server evicts. It gives up when its connection breaks.
/// \return what is wrong, or ""
[[nodiscard]] std::string fill_index(const kv::ClientOptions& options, unsigned keys, std::uint64_t seed,
                                     kv::Evict evict);

/// Whether a server's statistics can be: what is taken fits, and what is counted twice is the same. \return what is
/// wrong, or ""
[[nodiscard]] std::string check_sums(const kv::ServerOptions& options, const kv::ServerStatistics& now);

/// What is left once all other clients are gone.
struct Leftovers {
  unsigned keys = 0;         ///< Of the run, cells excluded. They are erased.
  bool is_filled = false;    ///< By keys of `fill_index`, which stay.
  bool may_be_lost = false;  ///< Clients may have gone without a goodbye.
};
/// Erases the keys; after a while nothing may be taken by anything.
[[nodiscard]] std::string find_leftovers(const kv::ClientOptions& options, const Leftovers& expected, Tasks& tasks);

}  // namespace verbena::sim
