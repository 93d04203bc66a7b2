// What the programs that a launcher starts have in common: they join by a carrier, or see that they cannot. Without
// GoogleTest, because the launcher collects one exit code of all processes.
#pragma once

#include <verbena/mesh.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::mesh::test {

using namespace std::chrono_literals;
using MakeCarrier = std::function<Result<std::unique_ptr<Carrier>>(Options&)>;

/// For any machine that is only slow.
[[nodiscard]] inline Deadline launch_patience() { return Deadline::after(60s); }

/// Exit code 1, and the reason, unless `is_so`.
#define VERBENA_EXPECT(is_so, ...)                         \
  do {                                                     \
    if (!(is_so)) {                                        \
      std::fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
      std::fprintf(stderr, __VA_ARGS__);                   \
      std::fprintf(stderr, "\n");                          \
      return 1;                                            \
    }                                                      \
  } while (false)

[[nodiscard]] inline Options launched_options() {
  Options options;
  options.job = "launched";
  options.device = "soft";
  return options;
}

/// Takes completions until each peer's message is here, and each own one has ended.
inline int exchange(Lane& lane, const Options& options) {
  for (unsigned peer = 0; peer < options.processes; ++peer) {
    if (peer == options.id) continue;
    const std::array<unsigned, 2> message = {options.id, peer};
    VERBENA_EXPECT(lane.send(peer, std::as_bytes(std::span(message)), peer) == Status::kOk, "%s", error_detail());
  }
  unsigned sent = 0;
  std::vector<unsigned> heard(options.processes);
  for (const Deadline deadline = launch_patience();
       sent + 1 < options.processes || heard[options.id] + 1 < options.processes;) {
    VERBENA_EXPECT(!deadline.passed(), "process %u: %u sent, %u heard", options.id, sent, heard[options.id]);
    std::array<Completion, 1> one;
    if (lane.wait(one, deadline) == 0 || one[0].kind == Completion::Kind::kJoined) continue;
    VERBENA_EXPECT(one[0].status == Status::kOk, "process %u left: %s", one[0].peer, to_string(one[0].status));
    if (one[0].kind == Completion::Kind::kSend) {
      ++sent;
      continue;
    }
    std::array<unsigned, 2> message{};
    VERBENA_EXPECT(one[0].bytes.size() == sizeof message, "%zu bytes came", one[0].bytes.size());
    std::memcpy(message.data(), one[0].bytes.data(), sizeof message);
    VERBENA_EXPECT(message[0] == one[0].peer && message[1] == options.id, "process %u got that for %u from %u",
                   options.id, message[1], message[0]);
    VERBENA_EXPECT(heard[one[0].peer]++ == 0, "two messages of process %u", one[0].peer);
    ++heard[options.id];
    (void)lane.release(one[0]);
  }
  return 0;
}

/// Joins, sends a message to each peer, gathers, and leaves.
inline int join(const MakeCarrier& make_carrier, std::chrono::milliseconds timeout = 60s) {
  Options options = launched_options();
  options.join_timeout = timeout;
  auto carrier = make_carrier(options);
  VERBENA_EXPECT(carrier, "%s", carrier.error().text());
  const auto mesh = Mesh::join(options, std::move(*carrier));
  VERBENA_EXPECT(mesh, "process %u of %u: %s", options.id, options.processes, mesh.error().text());
  Lane& lane = (*mesh)->lane(0);
  if (exchange(lane, options) != 0) return 1;
  const std::array<unsigned, 1> mine = {options.id};
  std::vector<unsigned> all(options.processes, options.processes);
  const auto gathered =
      lane.gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), launch_patience());
  VERBENA_EXPECT(gathered, "gather: %s", gathered.error().text());
  for (unsigned id = 0; id < options.processes; ++id) VERBENA_EXPECT(all[id] == id, "%u is %u", id, all[id]);
  std::printf("process %u of %u joined\n", options.id, options.processes);
  return 0;
}

/// Asks until there is more to say than kAgain.
[[nodiscard]] inline Result<Blob> find_patiently(Carrier& carrier, unsigned id) {
  for (const Deadline deadline = launch_patience();;) {
    auto found = carrier.find(id);
    if (found || found.error().status() != Status::kAgain || deadline.passed()) return found;
  }
}

}  // namespace verbena::mesh::test
