// What the library did for its caller: cheap enough to stay on, and what budgets are written in.
#pragma once

#include <verbena/status.hpp>

#include <cstdint>

namespace verbena {

/// What a polling thread did, for all its connections, since it was made. `Number` is a plain number in a snapshot.
template <class Number>
struct BasicCounters {
  Number work_requests{};    ///< Send-queue work requests posted, or held for the next doorbell; and `direct` ones.
  Number direct{};           ///< Of these, those of blocking calls that a NIC made of software carried out at once, in
                             ///< the calling thread: without queue, doorbell and completion.
  Number doorbells{};        ///< ibv_post_send calls.
  Number completions{};      ///< Completions polled, receives included.
  Number inline_sends{};     ///< Of the work requests, those whose bytes went with the request itself.
  Number receive_refills{};  ///< ibv_post_recv calls.
  Number empty_polls{};      ///< Polls that found nothing.
  Number sleeps{};           ///< Waits on the completion channel: system calls.
  Number quarantined{};      ///< Operations abandoned, now, whose segments are kept until their completion.
  Number bytes{};            ///< Payload bytes posted.
  Number strays{};           ///< Completions of queue pairs that are gone, dropped.
  Number keepalives{};       ///< Of the work requests, those that only ask whether the peer is there.

  /// Adds what another thread did. \thread any  \alloc none
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
