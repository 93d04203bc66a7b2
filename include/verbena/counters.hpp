/// \file
/// Counters of the library's work. They are cheap enough to be always on, and tests check budgets by them.
#pragma once

#include <verbena/status.hpp>

#include <cstdint>

namespace verbena {

/// Counts of a polling thread, over all its connections, since it was made. `Number` is a plain number in a snapshot.
template <class Number>
struct BasicCounters {
  Number work_requests{};    ///< Send-queue work requests posted or held for the next doorbell, and `direct` ones.
  Number direct{};           ///< Blocking calls and short messages that the software NIC carried out at once, in the
                             ///< calling thread: without queue, doorbell and completion.
  Number doorbells{};        ///< ibv_post_send calls.
  Number completions{};      ///< Completions polled, receives included, and short messages that the software NIC has
                             ///< given without one.
  Number inline_sends{};     ///< Work requests that carried their bytes inline.
  Number receive_refills{};  ///< ibv_post_recv calls. Messages without a completion need none.
  Number empty_polls{};      ///< Polls that found nothing.
  Number sleeps{};           ///< Waits on the completion channel: system calls.
  Number quarantined{};      ///< Abandoned operations whose segments are kept, now, until their completion.
  Number bytes{};            ///< Payload bytes posted.
  Number strays{};           ///< Dropped completions of queue pairs that are gone.
  Number keepalives{};       ///< Work requests that only ask whether the peer is there.

  /// Adds another thread's counts. \thread any  \alloc none
  template <class Other>
  BasicCounters& operator+=(const BasicCounters<Other>& more) noexcept {
    work_requests += more.work_requests;
    direct += more.direct;
    doorbells += more.doorbells;
    completions += more.completions;
    inline_sends += more.inline_sends;
    receive_refills += more.receive_refills;
    empty_polls += more.empty_polls;
    sleeps += more.sleeps;
    quarantined += more.quarantined;
    bytes += more.bytes;
    strays += more.strays;
    keepalives += more.keepalives;
    return *this;
  }
};
/// A snapshot.
using Counters = BasicCounters<std::uint64_t>;

}  // namespace verbena
