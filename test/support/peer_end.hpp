// The ways in which a peer ends, each told to it by a signal.
#pragma once

#include <peer.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <tuple>

namespace verbena::test {

/// In the peer: what read_number() returns to the test.
inline void say(int number) {
  std::printf("%d\n", number);
  std::fflush(stdout);
}

/// What drives a connection of the test's own: its calls, or a thread that calls a handler.
enum class Driver : std::uint8_t { kCaller, kThread };

/// `Outcome` is what calls return afterwards.
template <class Outcome>
struct PeerEnd {
  const char* name;
  int signal;
  bool has_ended;  ///< The peer's process ends; else the peer prints the signal once it has done what it means.
  Outcome outcome;
};

/// Names the cases of a suite whose parameter is a tuple of a PeerEnd and a Driver.
inline constexpr auto kEndName = [](const auto& each) {
  const bool has_thread = std::get<1>(each.param) == Driver::kThread;
  return std::string(std::get<0>(each.param).name) + (has_thread ? "Handler" : "");
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
