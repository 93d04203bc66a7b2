// A counter goes once around all processes of a job. Without MPI: the launcher, by PMIx, tells who they are.
// usage: mpirun -np N mesh_ring      or srun --mpi=pmix -n N mesh_ring
#include <verbena/mesh_pmix.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mesh = verbena::mesh;
using namespace std::chrono_literals;
using verbena::Deadline;
using verbena::Status;

namespace {

[[noreturn]] void die(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);
}

void pass_on(mesh::Lane& lane, unsigned peer, unsigned count) {
  if (lane.send(peer, std::as_bytes(std::span(&count, 1)), 0) != Status::kOk) die("send", verbena::error_detail());
}

unsigned receive(mesh::Lane& lane) {
  mesh::Completion one[1];
  for (const Deadline deadline = Deadline::after(20s); lane.wait(one, deadline) == 1;) {
    if (one[0].status != Status::kOk) die("a peer", to_string(one[0].status));
    if (one[0].kind != mesh::Completion::Kind::kReceive) continue;
    unsigned count = 0;
    std::memcpy(&count, one[0].bytes.data(), sizeof count);
    (void)lane.release(one[0]);
    return count;
  }
  die("receive", "nothing came in 20 s");
}

}  // namespace

int main() {
  mesh::Options options;
  if (const char* device = std::getenv("VERBENA_NIC")) options.device = device;  // "soft", "mlx5_0"
  auto carrier = mesh::pmix_carrier(options);
  if (!carrier) die("carrier", carrier.error().text());
  const auto joined = mesh::Mesh::join(options, std::move(*carrier));
  if (!joined) die("join", joined.error().text());
  mesh::Lane& lane = (*joined)->lane(0);

  const unsigned next = (options.id + 1) % options.processes;
  if (options.id == 0) {
    if (options.processes > 1) pass_on(lane, next, 1);
    std::printf("%u of %u processes were visited\n", options.processes > 1 ? receive(lane) : 1, options.processes);
  } else {
    pass_on(lane, next, receive(lane) + 1);
  }
  // Nobody leaves while others still wait for it.
  if (const auto all = lane.barrier(Deadline::after(20s)); !all) die("barrier", all.error().text());
}
