// The ways in which a peer ends, each told to it by a signal.
#pragma once

#include <peer.hpp>

namespace verbena::test {

/// `Outcome` is what calls return afterwards.
template <class Outcome>
struct PeerEnd {
  const char* name;
  int signal;
  bool has_ended;  ///< The peer's process ends; else the peer prints the signal once it has done what it means.
  Outcome outcome;
};

/// Has the peer end in that way, and waits until it has.
template <class Outcome>
void end_by(Peer& peer, const PeerEnd<Outcome>& end) {
  peer.send(end.signal);
  if (end.has_ended) {
    (void)peer.wait();
  } else {
    ASSERT_EQ(peer.read_number(), end.signal) << "the peer has not done it";
  }
}

}  // namespace verbena::test
