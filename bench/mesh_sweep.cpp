// What a poll costs that asks each peer in turn: as many meshes of two as there are peers, each with a completion queue
// of its own, all of which this process polls. The other process of each is one child, which sleeps.
// usage: mesh_sweep PEERS DIRECTORY     prints JSON: the median of a poll of all of them, in ns
#include <verbena/deadline.hpp>
#include <verbena/mesh.hpp>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace verbena;

constexpr unsigned kPollsOfAGroup = 64;
constexpr unsigned kGroups = 2000;

/// The same meshes in the same order at both ends.
std::vector<std::unique_ptr<mesh::Mesh>> join_all(unsigned id, unsigned peers, const char* directory) {
  std::vector<std::unique_ptr<mesh::Mesh>> meshes;
  for (unsigned peer = 0; peer < peers; ++peer) {
    const std::string job = "sweep-" + std::to_string(peer);
    auto carrier = mesh::directory_carrier(directory, job);
    auto joined = carrier
                      ? mesh::Mesh::join({.id = id, .processes = 2, .job = job, .device = "soft", .message_bytes = 64},
                                         std::move(*carrier))
                      : Result<std::unique_ptr<mesh::Mesh>>(std::unexpected(carrier.error()));
    if (!joined) {
      std::fprintf(stderr, "mesh_sweep: %s\n", joined.error().text());
      std::exit(1);
    }
    meshes.push_back(std::move(*joined));
  }
  return meshes;
}

/// Sleeps until the other process is done with the first mesh.
int be_peers(unsigned peers, const char* directory) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto meshes = join_all(1, peers, directory);
  std::array<mesh::Completion, 4> taken;
  const auto deadline = Deadline::after(std::chrono::seconds{120});
  while (meshes[0]->lane(0).is_here(0) && !deadline.passed()) (void)meshes[0]->lane(0).wait(taken, deadline);
  return 0;
}

int measure(unsigned peers, const char* directory) {
  const auto meshes = join_all(0, peers, directory);
  std::array<mesh::Completion, 16> taken;
  std::vector<double> polls_ns;
  for (unsigned group = 0; group < kGroups; ++group) {
    const std::uint64_t start = ticks_now();
    for (unsigned i = 0; i < kPollsOfAGroup; ++i)
      for (const auto& each : meshes) (void)each->lane(0).poll(taken);
    polls_ns.push_back(static_cast<double>(ticks_now() - start) / ticks_per_us() * 1e3 / kPollsOfAGroup);
  }
  std::ranges::nth_element(polls_ns, polls_ns.begin() + kGroups / 2);
  std::printf("{\"median_ns\":%.3f,\"peers\":%u}\n", polls_ns[kGroups / 2], peers);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const unsigned peers = count == 3 ? static_cast<unsigned>(std::atoi(arguments[1])) : 0;
  if (peers == 0 || peers > 1024) return std::fputs("usage: mesh_sweep PEERS DIRECTORY\n", stderr), 2;
  const pid_t child = ::fork();
  if (child < 0) return std::perror("mesh_sweep: fork"), 1;
  if (child == 0) return be_peers(peers, arguments[2]);
  const int status = measure(peers, arguments[2]);
  ::waitpid(child, nullptr, 0);
  return status;
}
